#include "engine/deepinfer/group_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

namespace nereid::engine::deepinfer {

namespace {

std::vector<std::string_view> words(std::string_view line, std::size_t most) {
    std::vector<std::string_view> out;
    while (!line.empty()) {
        const std::size_t end = out.size() + 1 == most ? std::string_view::npos : line.find(' ');
        out.push_back(line.substr(0, end));
        if (end == std::string_view::npos) break;
        line.remove_prefix(end + 1);
    }
    return out;
}

bool number(std::string_view text, std::uint32_t& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc{} && end == text.data() + text.size();
}

template <class T>
void append(std::vector<T>& into, std::vector<T>&& from) {
    if (into.empty()) {
        into = std::move(from);
    } else {
        into.insert(into.end(), std::make_move_iterator(from.begin()),
                    std::make_move_iterator(from.end()));
    }
}

}  // namespace

Result<std::vector<RankLaunch>> parse_launches(std::string_view text) {
    std::vector<RankLaunch> out;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.empty()) continue;
        if (line.starts_with("rank ")) {
            RankLaunch launch;
            const auto w = words(line, 4);
            if (w.size() != 4 || w[3].empty() || !number(w[1], launch.rank) ||
                !number(w[2], launch.of) || launch.rank >= launch.of)
                return err(Code::kConfig, fmt::format("\"{}\" names no rank", line));
            launch.python = w[3];
            out.push_back(std::move(launch));
            continue;
        }
        const std::size_t equals = line.find('=');
        if (out.empty() || equals == std::string_view::npos || equals == 0)
            return err(Code::kConfig, fmt::format("\"{}\" is no variable of a rank", line));
        out.back().environment.emplace_back(line.substr(0, equals), line.substr(equals + 1));
    }
    if (out.empty()) return err(Code::kConfig, "the configuration names no rank on this machine");
    return out;
}

Result<model::EngineInfo> merge_infos(std::span<const model::EngineInfo> infos) {
    model::EngineInfo out = infos[0];
    for (const auto& info : infos.subspan(1)) {
        const auto differs = [&](const char* what) {
            return err(Code::kConfig,
                       fmt::format("ranks {} and {} differ in their {}: they are not "
                                   "of one group",
                                   infos[0].data_parallel_rank, info.data_parallel_rank, what));
        };
        if (info.engine_version != out.engine_version) return differs("version");
        if (info.model_digest != out.model_digest || info.model_id != out.model_id)
            return differs("model");
        if (info.layout.fingerprint() != out.layout.fingerprint()) return differs("KV layout");
        if (info.roles != out.roles) return differs("role");
        out.context_tokens = std::min(out.context_tokens, info.context_tokens);
        out.max_running += info.max_running;
        out.max_queued += info.max_queued;
        out.kv_capacity_tokens += info.kv_capacity_tokens;
    }
    return out;
}

model::Load merge_loads(std::span<const model::Load> loads) {
    model::Load out;
    for (const auto& load : loads) {
        out.running += load.running;
        out.waiting += load.waiting;
        out.waiting_uncached_tokens += load.waiting_uncached_tokens;
        out.kv_used_tokens += load.kv_used_tokens;
        out.kv_total_tokens += load.kv_total_tokens;
        out.prefix_store_bytes += load.prefix_store_bytes;
        out.prefix_hit_tokens += load.prefix_hit_tokens;
        out.prefix_miss_tokens += load.prefix_miss_tokens;
        out.preempted += load.preempted;
        out.last_step = std::max(out.last_step, load.last_step);
        out.predicted_step = std::max(out.predicted_step, load.predicted_step);
    }
    return out;
}

void merge_frame(model::StepFrame& into, model::StepFrame&& from) {
    append(into.started, std::move(from.started));
    append(into.tokens, std::move(from.tokens));
    append(into.embeddings, std::move(from.embeddings));
    append(into.prompt_logprobs, std::move(from.prompt_logprobs));
    append(into.kv_ready, std::move(from.kv_ready));
    append(into.kv_failed, std::move(from.kv_failed));
    append(into.drafts, std::move(from.drafts));
    append(into.finished, std::move(from.finished));
}

std::size_t GroupRouter::place(const model::AddRequest& request) {
    const auto weight = [](const Rank& r) { return r.tokens + kRowWeight * r.rows; };
    const auto best =
        std::min_element(ranks_.begin(), ranks_.end(),
                         [&](const Rank& a, const Rank& b) { return weight(a) < weight(b); });
    const auto rank = static_cast<std::size_t>(best - ranks_.begin());
    // An id that is added twice goes where the first is: that rank answers for it.
    const auto [it, fresh] = requests_.try_emplace(request.id, Placed{rank, request.prompt.size()});
    if (!fresh) return it->second.rank;
    best->tokens += request.prompt.size();
    ++best->rows;
    return rank;
}

std::optional<std::size_t> GroupRouter::rank_of(RequestId id) const {
    if (const auto it = requests_.find(id); it != requests_.end()) return it->second.rank;
    if (const auto it = prefilled_.find(id); it != prefilled_.end()) return it->second;
    return std::nullopt;
}

void GroupRouter::on_frame(std::size_t rank, const model::StepFrame& frame) {
    for (const auto& started : frame.started) {
        const auto it = requests_.find(started.id);
        if (it == requests_.end() || it->second.rank != rank) continue;
        ranks_[rank].tokens -= std::exchange(it->second.tokens, 0);
    }
    for (const auto& finished : frame.finished) {
        const auto it = requests_.find(finished.id);
        if (it == requests_.end() || it->second.rank != rank) continue;
        ranks_[rank].tokens -= it->second.tokens;
        --ranks_[rank].rows;
        requests_.erase(it);
        if (finished.reason != model::EndReason::kPrefilled) continue;
        prefilled_[finished.id] = rank;
        prefilled_order_.push_back(finished.id);
        if (prefilled_order_.size() > kRemembered) {
            prefilled_.erase(prefilled_order_.front());
            prefilled_order_.pop_front();
        }
    }
}

std::optional<std::size_t> GroupRouter::release(RequestId id) {
    const auto it = prefilled_.find(id);
    if (it == prefilled_.end()) return std::nullopt;
    const std::size_t rank = it->second;
    prefilled_.erase(it);
    return rank;
}

void GroupRouter::clear() {
    for (auto& rank : ranks_) rank = {};
    requests_.clear();
    prefilled_.clear();
    prefilled_order_.clear();
}

}  // namespace nereid::engine::deepinfer
