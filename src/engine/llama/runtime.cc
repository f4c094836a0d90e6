#include "engine/llama/runtime.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string_view>

#include <ggml-backend.h>
#include <llama-io.h>
#include <llama-memory.h>
#include <llama.h>
#include "base/check.h"

// libomp's, on which ggml's threads run. How long a thread spins at a barrier before it sleeps.
extern "C" void kmp_set_blocktime(int milliseconds);

namespace nereid::engine::llama {
namespace {

// ---------------------------------------------------------------- log

// llama.cpp logs from the loading thread and its workers.
struct LogRing {
    std::mutex mutex;
    std::deque<std::string> lines;
    void add(std::string_view text) {
        while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
        if (text.empty()) return;
        const std::scoped_lock lock(mutex);
        lines.emplace_back(text);
        if (lines.size() > 4) lines.pop_front();
    }
};
LogRing& log_ring() {
    static LogRing ring;
    return ring;
}

// ---------------------------------------------------------------- deleters

struct FreeModel {
    void operator()(llama_model* m) const { llama_model_free(m); }
};
struct FreeContext {
    void operator()(llama_context* c) const { llama_free(c); }
};
struct Batch {
    explicit Batch(std::int32_t rows) : value(llama_batch_init(rows, 0, 1)) {}
    ~Batch() { llama_batch_free(value); }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    llama_batch value;
};

// ---------------------------------------------------------------- the cache's tensors

// Tensors named cache_k_l<N> / cache_v_l<N>, seen while a graph runs.
struct Capture {
    bool done = false;
    std::map<std::string, ggml_tensor*> tensors;

    static bool on_eval(ggml_tensor* node, bool /*ask*/, void* self) {
        auto& capture = *static_cast<Capture*>(self);
        if (!capture.done) {
            capture.look(node);
            for (ggml_tensor* source : node->src) capture.look(source);
        }
        return false;  // no node's data is needed
    }
    void look(ggml_tensor* t) {
        if (t == nullptr) return;
        if (t->view_src != nullptr) t = t->view_src;
        if (std::string_view(t->name).starts_with("cache_")) tensors.emplace(t->name, t);
    }
};

struct CacheTensor {
    const std::uint8_t* base = nullptr;
    std::size_t row_bytes = 0;
    std::size_t stream_bytes = 0;
};

// A sequence's state as llama.cpp's cache reads it, its rows straight from where the blocks lie.
// The public way (llama_state_seq_set_data_ext) wants all of it in one piece: a copy of 94 MB more
// for 4,096 tokens, and that memory.
class BlocksReader final : public llama_io_read_i {
  public:
    BlocksReader(const KvGeometry& geometry, std::span<const BlockView> blocks)
        : tensors_(geometry.tensors),
          blocks_(blocks),
          frame_(state_frame(geometry, blocks.back().first_token + blocks.back().tokens)) {}

    void read(void* to, std::size_t size) override {
        if (size > frame_.size() - at_) throw std::runtime_error("the state's frame is shorter");
        std::memcpy(to, frame_.data() + at_, size);
        at_ += size;
    }
    // Tensors come in the order of the geometry, each from its first row to its last.
    void read_tensor(ggml_tensor* tensor, std::size_t offset, std::size_t size) override {
        while (size > 0) {
            if (tensor_ == tensors_.size()) throw std::runtime_error("the state has more tensors");
            const BlockView& b = blocks_[block_];
            const std::uint64_t row_bytes = tensors_[tensor_].row_bytes;
            const auto rows =
                b.rows.subspan(before_ * b.tokens + done_, row_bytes * b.tokens - done_);
            const std::size_t n = std::min(size, rows.size());
            ggml_backend_tensor_set(tensor, rows.data(), offset, n);
            rows_read_ += n;
            offset += n;
            size -= n;
            done_ = n == rows.size() ? 0 : done_ + n;
            if (done_ != 0 || ++block_ < blocks_.size()) continue;
            block_ = 0;
            before_ += row_bytes;
            ++tensor_;
        }
    }
    std::size_t n_bytes() override { return at_ + rows_read_; }
    bool at_end() const { return at_ == frame_.size() && tensor_ == tensors_.size(); }

  private:
    std::span<const KvTensor> tensors_;
    std::span<const BlockView> blocks_;
    std::string frame_;
    std::size_t at_ = 0;  // in frame_
    std::size_t tensor_ = 0;
    std::uint64_t before_ = 0;  // bytes of one token's rows in the tensors before tensor_
    std::size_t block_ = 0;
    std::size_t done_ = 0;  // bytes of tensor_'s rows in block_
    std::size_t rows_read_ = 0;
};

class LlamaRuntime final : public Runtime {
  public:
    LlamaRuntime(std::unique_ptr<llama_model, FreeModel> model, std::uint32_t streams,
                 std::uint32_t max_rows)
        : model_(std::move(model)),
          streams_(streams),
          max_rows_(max_rows),
          batch_(static_cast<std::int32_t>(max_rows)),
          length_(streams, 0) {}

    Result<void> create_context(const LlamaOptions& options, TokenCount context_tokens);
    void read_facts();
    void find_cache();

    const ModelFacts& facts() const override { return facts_; }
    const llama_vocab* vocab() const override { return llama_model_get_vocab(model_.get()); }
    llama_model* model() const override { return model_.get(); }
    TokenCount stream_capacity() const override { return llama_n_ctx_seq(context_.get()); }
    std::uint32_t streams() const override { return streams_; }
    TokenCount length(std::uint32_t stream) const override { return length_[stream]; }
    void wait_by_spinning(bool spin) override {
        constexpr int kLibompDefault = 200;
        if (spin != spinning_) kmp_set_blocktime(spin ? kLibompDefault : 0);
        spinning_ = spin;
    }
    bool blocks() const override { return !cache_.empty(); }
    const KvGeometry& geometry() const override { return geometry_; }

    DecodeStatus decode(std::span<const Row> rows) override;
    std::span<const float> logits(std::size_t index) override;
    void truncate(std::uint32_t stream, TokenCount from) override;
    void read_rows(std::uint32_t stream, TokenCount first, TokenCount count,
                   std::span<std::uint8_t> out) const override;
    bool restore(std::uint32_t stream, std::span<const BlockView> blocks) override;

  private:
    bool build_geometry();
    bool matches_own_export();
    void return_unused_pages();
    void reread_length(std::uint32_t stream);

    std::unique_ptr<llama_model, FreeModel> model_;
    Capture capture_;  // outlives the context
    std::unique_ptr<llama_context, FreeContext> context_;
    std::uint32_t streams_;
    std::uint32_t max_rows_;
    Batch batch_;
    std::vector<TokenCount> length_;
    ModelFacts facts_;
    KvGeometry geometry_;
    std::vector<CacheTensor> cache_;
    bool spinning_ = true;
};

Result<void> LlamaRuntime::create_context(const LlamaOptions& options, TokenCount context_tokens) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx = context_tokens * streams_;
    p.n_batch = max_rows_;
    p.n_ubatch = max_rows_;
    p.n_seq_max = streams_;
    p.n_threads = static_cast<std::int32_t>(options.threads);
    p.n_threads_batch = p.n_threads;
    p.flash_attn_type =
        options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.type_k = p.type_v = options.kv_type == KvType::kF16 ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
    p.kv_unified = false;
    p.no_perf = true;
    p.cb_eval = &Capture::on_eval;
    p.cb_eval_user_data = &capture_;
    context_.reset(llama_init_from_model(model_.get(), p));
    if (context_ == nullptr) {
        return err(
            Code::kConfig,
            fmt::format("engine: llama.cpp makes no context of {} sequences x {} tokens "
                        "(llama.cpp: {}). Mend: less "
                        "engine.parallel or engine.context_tokens, or another engine.kv_type",
                        streams_, context_tokens, recent_llama_log()));
    }
    return {};
}

void LlamaRuntime::read_facts() {
    char text[256] = {};
    llama_model_desc(model_.get(), text, sizeof text);
    facts_.description = text;
    facts_.build = llama_print_system_info();
    facts_.vocab_size = static_cast<std::uint32_t>(llama_vocab_n_tokens(vocab()));
    facts_.embedding_width = static_cast<std::uint32_t>(llama_model_n_embd(model_.get()));
    facts_.trained_context =
        static_cast<TokenCount>(std::max(llama_model_n_ctx_train(model_.get()), 0));
    for (TokenId id = 0; id < static_cast<TokenId>(facts_.vocab_size); ++id) {
        if (llama_vocab_is_eog(vocab(), id)) facts_.end_ids.push_back(id);
    }
}

// One block of warm-up shows the cache's tensors and touches every code path of a prefill once.
void LlamaRuntime::find_cache() {
    std::vector<Row> rows(kBlockTokens);
    for (TokenCount i = 0; i < kBlockTokens; ++i) {
        rows[i] = {.token = static_cast<TokenId>(i % facts_.vocab_size),
                   .position = i,
                   .stream = 0,
                   .logits = i + 1 == kBlockTokens};
    }
    const bool ran = decode(rows) == DecodeStatus::kOk;
    capture_.done = true;
    if (!ran || !build_geometry() || !matches_own_export()) {
        cache_.clear();
        geometry_ = {};
    }
    truncate(0, 0);
    if (blocks()) return_unused_pages();
    capture_.tensors.clear();
}

bool LlamaRuntime::build_geometry() {
    for (const bool value : {false, true}) {
        const std::string prefix = value ? "cache_v_l" : "cache_k_l";
        std::map<std::uint32_t, ggml_tensor*> by_layer;
        for (const auto& [name, tensor] : capture_.tensors) {
            if (!name.starts_with(prefix)) continue;
            by_layer[static_cast<std::uint32_t>(std::stoul(name.substr(prefix.size())))] = tensor;
        }
        for (const auto& [layer, t] : by_layer) {
            const bool usable = t->buffer != nullptr && ggml_backend_buffer_is_host(t->buffer) &&
                                t->data != nullptr &&
                                t->ne[1] == static_cast<std::int64_t>(stream_capacity()) &&
                                t->ne[2] == static_cast<std::int64_t>(streams_);
            if (!usable) return false;
            geometry_.tensors.push_back(
                {layer, value, static_cast<std::int32_t>(t->type), t->nb[1]});
            cache_.push_back({static_cast<const std::uint8_t*>(t->data), t->nb[1], t->nb[2]});
        }
    }
    geometry_.streams = streams_;
    return !cache_.empty();
}

// Reads the warm-up block both ways; the assembled state must be llama.cpp's, byte for byte.
bool LlamaRuntime::matches_own_export() {
    const std::size_t size = llama_state_seq_get_size_ext(context_.get(), 0, 0);
    std::string theirs(size, '\0');
    auto* bytes = reinterpret_cast<std::uint8_t*>(theirs.data());
    if (size < 8 || llama_state_seq_get_data_ext(context_.get(), bytes, size, 0, 0) != size)
        return false;
    std::memcpy(&geometry_.state_magic, theirs.data(), sizeof geometry_.state_magic);
    std::vector<std::uint8_t> rows(kBlockTokens * geometry_.token_bytes());
    read_rows(0, 0, kBlockTokens, rows);
    const BlockView view{
        .key = {}, .first_token = 0, .tokens = kBlockTokens, .rows = rows, .size = 0};
    std::string ours;
    assemble_state(geometry_, {&view, 1}, ours);
    return ours == theirs;
}

// llama.cpp zeroes the whole cache when it makes the context, which commits the memory of all
// streams at full length. Dropped pages of an anonymous private mapping read as zeros again, so
// memory is committed as it is used.
void LlamaRuntime::return_unused_pages() {
    constexpr std::uintptr_t kPage = 4096;
    for (const auto& t : cache_) {
        const auto first = (reinterpret_cast<std::uintptr_t>(t.base) + kPage - 1) / kPage * kPage;
        const auto last =
            (reinterpret_cast<std::uintptr_t>(t.base) + t.stream_bytes * streams_) / kPage * kPage;
        if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    }
}

DecodeStatus LlamaRuntime::decode(std::span<const Row> rows) {
    CHECK(!rows.empty() && rows.size() <= max_rows_);
    llama_batch& b = batch_.value;
    b.n_tokens = static_cast<std::int32_t>(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const Row& row = rows[i];
        CHECK(row.stream < streams_ && row.position < stream_capacity());
        CHECK(row.token >= 0 && static_cast<std::uint32_t>(row.token) < facts_.vocab_size);
        b.token[i] = row.token;
        b.pos[i] = static_cast<llama_pos>(row.position);
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = static_cast<llama_seq_id>(row.stream);
        b.logits[i] = static_cast<std::int8_t>(row.logits);
    }
    const std::int32_t rc = llama_decode(context_.get(), b);
    for (const Row& row : rows) {
        if (rc == 0) {
            length_[row.stream] = row.position + 1;
        } else {
            reread_length(row.stream);
        }
    }
    switch (rc) {
        case 0:
            return DecodeStatus::kOk;
        case 1:
            return DecodeStatus::kNoSlot;
        case 2:
            return DecodeStatus::kAborted;
        default:
            return DecodeStatus::kFailed;
    }
}

void LlamaRuntime::reread_length(std::uint32_t stream) {
    const auto last = llama_memory_seq_pos_max(llama_get_memory(context_.get()),
                                               static_cast<llama_seq_id>(stream));
    length_[stream] = static_cast<TokenCount>(last + 1);
}

std::span<const float> LlamaRuntime::logits(std::size_t index) {
    const float* row = llama_get_logits_ith(context_.get(), static_cast<std::int32_t>(index));
    CHECK(row != nullptr);
    return {row, facts_.vocab_size};
}

void LlamaRuntime::truncate(std::uint32_t stream, TokenCount from) {
    if (length_[stream] <= from) return;
    llama_memory_seq_rm(llama_get_memory(context_.get()), static_cast<llama_seq_id>(stream),
                        static_cast<llama_pos>(from), -1);
    length_[stream] = from;
}

void LlamaRuntime::read_rows(std::uint32_t stream, TokenCount first, TokenCount count,
                             std::span<std::uint8_t> out) const {
    CHECK(first + count <= length_[stream] && out.size() == count * geometry_.token_bytes());
    std::uint8_t* to = out.data();
    for (const auto& t : cache_) {
        const std::size_t bytes = count * t.row_bytes;
        std::memcpy(to, t.base + stream * t.stream_bytes + first * t.row_bytes, bytes);
        to += bytes;
    }
}

bool LlamaRuntime::restore(std::uint32_t stream, std::span<const BlockView> blocks) {
    truncate(stream, 0);
    if (blocks.empty()) return true;
    BlocksReader reader(geometry_, blocks);
    llama_synchronize(context_.get());
    bool ok = false;
    try {
        llama_get_memory(context_.get())->state_read(reader, static_cast<llama_seq_id>(stream), 0);
        ok = reader.at_end();
    } catch (const std::exception& e) {
        log_ring().add(e.what());
    }
    reread_length(stream);
    if (!ok) truncate(stream, 0);
    return ok;
}

}  // namespace

Duration engine_clock() { return std::chrono::microseconds(ggml_time_us()); }

std::string recent_llama_log() {
    auto& ring = log_ring();
    const std::scoped_lock lock(ring.mutex);
    if (ring.lines.empty()) return "no message";
    return fmt::format("{}", fmt::join(ring.lines, " | "));
}

void silence_llama_log() {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN) log_ring().add(text);
        },
        nullptr);
}

Result<std::unique_ptr<Runtime>> Runtime::open(const LlamaOptions& options, std::uint32_t streams,
                                               TokenCount context_tokens) {
    silence_llama_log();
    llama_backend_init();
    std::unique_ptr<llama_model, FreeModel> model(
        llama_model_load_from_file(options.model_path.c_str(), llama_model_default_params()));
    if (model == nullptr) {
        return err(
            Code::kConfig,
            fmt::format(
                "engine.model \"{}\": llama.cpp does not load it ({}). Mend: give a model of an "
                "architecture that llama.cpp v0.5.0 knows",
                options.model_path, recent_llama_log()));
    }
    const auto trained = static_cast<TokenCount>(std::max(llama_model_n_ctx_train(model.get()), 1));
    const TokenCount context =
        context_tokens != 0 ? context_tokens : std::min<TokenCount>(trained, 8192);
    auto runtime = std::make_unique<LlamaRuntime>(std::move(model), streams,
                                                  std::max(options.ubatch, streams));
    // One spare cell per stream: a padding row may have to go behind a sequence of full length.
    TRY_VOID(runtime->create_context(options, context + 1));
    runtime->read_facts();
    runtime->find_cache();
    return std::unique_ptr<Runtime>(std::move(runtime));
}

}  // namespace nereid::engine::llama
