// The members of every struct that travels in engine-wire, in the order of their bytes: encoder,
// decoder, tests and the count of members that a struct really has are all held against these
// lists, so that a member cannot be forgotten. Internal to model. Changing a list changes the
// format: docs/formats/engine-wire.md, "Versions".
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/result.h"
#include "model/engine_port.h"
#include "model/engine_wire.h"

namespace nereid::model::wire {

template <class T>
inline constexpr std::nullptr_t kFields = nullptr;  // not a struct of ours

template <>
inline constexpr auto kFields<Hello> =
    std::tuple{&Hello::version_min, &Hello::version_max, &Hello::client};
template <>
inline constexpr auto kFields<Welcome> = std::tuple{&Welcome::version, &Welcome::info};
template <>
inline constexpr auto kFields<Refuse> = std::tuple{&Refuse::error};
template <>
inline constexpr auto kFields<Ping> = std::tuple{&Ping::nonce};
template <>
inline constexpr auto kFields<Pong> = std::tuple{&Pong::nonce};

template <>
inline constexpr auto kFields<KvSlice> =
    std::tuple{&KvSlice::layer, &KvSlice::offset, &KvSlice::length, &KvSlice::role};
template <>
inline constexpr auto kFields<KvLayout> =
    std::tuple{&KvLayout::family,      &KvLayout::block_tokens,  &KvLayout::block_bytes,
               &KvLayout::state_bytes, &KvLayout::replay_tokens, &KvLayout::detail,
               &KvLayout::slices};
template <>
inline constexpr auto kFields<EngineInfo> = std::tuple{&EngineInfo::engine,
                                                       &EngineInfo::engine_version,
                                                       &EngineInfo::model_id,
                                                       &EngineInfo::model_digest,
                                                       &EngineInfo::vocab_size,
                                                       &EngineInfo::context_tokens,
                                                       &EngineInfo::eos_ids,
                                                       &EngineInfo::layout,
                                                       &EngineInfo::roles,
                                                       &EngineInfo::grammars,
                                                       &EngineInfo::logprobs,
                                                       &EngineInfo::max_top_logprobs,
                                                       &EngineInfo::penalties,
                                                       &EngineInfo::logit_bias,
                                                       &EngineInfo::seeds,
                                                       &EngineInfo::embeddings,
                                                       &EngineInfo::embedding_width,
                                                       &EngineInfo::images,
                                                       &EngineInfo::adapters,
                                                       &EngineInfo::speculation,
                                                       &EngineInfo::deterministic,
                                                       &EngineInfo::replay,
                                                       &EngineInfo::max_running,
                                                       &EngineInfo::max_queued,
                                                       &EngineInfo::kv_capacity_tokens,
                                                       &EngineInfo::data_parallel_rank,
                                                       &EngineInfo::data_parallel_size};

template <>
inline constexpr auto kFields<SamplingParams> = std::tuple{&SamplingParams::temperature,
                                                           &SamplingParams::top_p,
                                                           &SamplingParams::top_k,
                                                           &SamplingParams::min_p,
                                                           &SamplingParams::frequency_penalty,
                                                           &SamplingParams::presence_penalty,
                                                           &SamplingParams::repetition_penalty,
                                                           &SamplingParams::seed,
                                                           &SamplingParams::logit_bias};
template <>
inline constexpr auto kFields<ImageRef> = std::tuple{&ImageRef::position, &ImageRef::digest};
template <>
inline constexpr auto kFields<AddRequest> = std::tuple{&AddRequest::id,
                                                       &AddRequest::mode,
                                                       &AddRequest::prompt,
                                                       &AddRequest::sampling,
                                                       &AddRequest::max_tokens,
                                                       &AddRequest::stop_ids,
                                                       &AddRequest::ignore_eos,
                                                       &AddRequest::logprobs,
                                                       &AddRequest::top_logprobs,
                                                       &AddRequest::prompt_logprobs,
                                                       &AddRequest::grammar_kind,
                                                       &AddRequest::grammar,
                                                       &AddRequest::grammar_trigger,
                                                       &AddRequest::kv_namespace,
                                                       &AddRequest::images,
                                                       &AddRequest::image_bytes,
                                                       &AddRequest::adapter,
                                                       &AddRequest::priority,
                                                       &AddRequest::generated,
                                                       &AddRequest::sample_position};
template <>
inline constexpr auto kFields<AbortRequest> = std::tuple{&AbortRequest::id};
template <>
inline constexpr auto kFields<ImportPrefix> =
    std::tuple{&ImportPrefix::id, &ImportPrefix::first_block, &ImportPrefix::keys,
               &ImportPrefix::offset, &ImportPrefix::length};
template <>
inline constexpr auto kFields<ExportBlocks> =
    std::tuple{&ExportBlocks::id, &ExportBlocks::first_block, &ExportBlocks::count,
               &ExportBlocks::offset, &ExportBlocks::capacity};
template <>
inline constexpr auto kFields<AdmitDecode> = std::tuple{
    &AdmitDecode::request, &AdmitDecode::first_token, &AdmitDecode::offset, &AdmitDecode::length};
template <>
inline constexpr auto kFields<Pin> = std::tuple{&Pin::id, &Pin::lease};
template <>
inline constexpr auto kFields<Release> = std::tuple{&Release::id};
template <>
inline constexpr auto kFields<Drain> = std::tuple{};
template <>
inline constexpr auto kFields<MapRegion> = std::tuple{&MapRegion::path, &MapRegion::size};

template <>
inline constexpr auto kFields<TopToken> = std::tuple{&TopToken::id, &TopToken::logprob};
template <>
inline constexpr auto kFields<TokenOut> =
    std::tuple{&TokenOut::id, &TokenOut::token, &TokenOut::logprob, &TokenOut::top};
template <>
inline constexpr auto kFields<Finished> = std::tuple{&Finished::id,
                                                     &Finished::reason,
                                                     &Finished::prompt_tokens,
                                                     &Finished::cached_tokens,
                                                     &Finished::output_tokens,
                                                     &Finished::queue_time,
                                                     &Finished::restore_time,
                                                     &Finished::prefill_time,
                                                     &Finished::decode_time,
                                                     &Finished::error};
template <>
inline constexpr auto kFields<PromptLogprobs> =
    std::tuple{&PromptLogprobs::id, &PromptLogprobs::logprobs};
template <>
inline constexpr auto kFields<Embedding> = std::tuple{&Embedding::id, &Embedding::values};
template <>
inline constexpr auto kFields<Started> = std::tuple{&Started::id, &Started::cached_tokens};
template <>
inline constexpr auto kFields<KvReady> = std::tuple{
    &KvReady::id, &KvReady::first_block, &KvReady::count, &KvReady::offset, &KvReady::length};
template <>
inline constexpr auto kFields<KvFailed> = std::tuple{&KvFailed::id, &KvFailed::error};
template <>
inline constexpr auto kFields<DraftCount> =
    std::tuple{&DraftCount::id, &DraftCount::drafted, &DraftCount::accepted};
template <>
inline constexpr auto kFields<Load> = std::tuple{&Load::running,
                                                 &Load::waiting,
                                                 &Load::waiting_uncached_tokens,
                                                 &Load::kv_used_tokens,
                                                 &Load::kv_total_tokens,
                                                 &Load::prefix_store_bytes,
                                                 &Load::prefix_hit_tokens,
                                                 &Load::prefix_miss_tokens,
                                                 &Load::preempted,
                                                 &Load::last_step,
                                                 &Load::predicted_step};
template <>
inline constexpr auto kFields<StepFrame> =
    std::tuple{&StepFrame::step,       &StepFrame::started,         &StepFrame::tokens,
               &StepFrame::embeddings, &StepFrame::prompt_logprobs, &StepFrame::kv_ready,
               &StepFrame::kv_failed,  &StepFrame::drafts,          &StepFrame::finished,
               &StepFrame::load};

template <class T>
concept Listed = !std::is_same_v<std::remove_cvref_t<decltype(kFields<T>)>, std::nullptr_t>;

// Calls f with every member of v, in order.
template <class T, class F>
    requires Listed<std::remove_const_t<T>>
constexpr void for_each_field(T& v, F&& f) {
    std::apply([&](auto... member) { (f(v.*member), ...); }, kFields<std::remove_const_t<T>>);
}

// How many members the struct really has: the largest number of values that its braces take.
template <class Owner>
struct AnyMember {
    template <class U>
        requires(!std::is_same_v<U, Owner>)
    operator U() const;  // NOLINT(google-explicit-constructor): never defined, only named
};
template <class T, class Indices>
inline constexpr bool kTakes = false;
template <class T, std::size_t... I>
inline constexpr bool kTakes<T, std::index_sequence<I...>> =
    requires { T{(void(I), AnyMember<T>{})...}; };
template <class T, std::size_t N = 40>
consteval std::size_t member_count() {
    if constexpr (kTakes<T, std::make_index_sequence<N>>)
        return N;
    else if constexpr (N > 0)
        return member_count<T, N - 1>();
    else
        return 0;
}
// A struct whose list is out of date does not compile.
template <class T>
inline constexpr bool kListIsComplete =
    std::tuple_size_v<std::remove_cvref_t<decltype(kFields<T>)>> == member_count<T>();

}  // namespace nereid::model::wire
