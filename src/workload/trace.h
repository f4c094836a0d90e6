// Recorded request traces: readers of public formats, a compact binary form, replay with scaling.
//
// Readers are sans-I/O: feed() takes the file in pieces of any size (the result does not depend on
// how it was cut), finish() gives the trace. Errors are kInvalidArgument and name the line
// ("line 17: output_length: expected an integer >= 0, found string"); nothing of a trace with an
// error is kept. Blank lines are skipped, CR LF is accepted. A line over 4 MiB is kTooLarge.
//
// Formats (details: docs/formats/trace.md):
//   kMooncake  JSON lines {timestamp ms, input_length, output_length, hash_ids}, 512-token blocks
//              (FAST'25 release, kvcache-ai/Mooncake); optional chat_id, parent_chat_id, turn as in
//              the Qwen-Bailian traces, whose timestamps are seconds and whose blocks are 16 tokens
//              (kBailian)
//   kAzure     CSV TIMESTAMP,ContextTokens,GeneratedTokens (Azure LLM inference traces 2023, 2024)
//   kCompact   ours: binary, about 8 bytes a request
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "workload/request.h"

namespace nereid::workload {

// All requests of a trace, sorted by arrival, ids of all chains in one array.
class Trace {
  public:
    struct Entry {
        Duration arrival{0};
        TokenCount input_tokens = 0;
        TokenCount output_tokens = 0;
        std::uint64_t session = 0;
        std::uint32_t turn = 0;
        std::uint32_t block_count = 0;
        std::size_t first_block = 0;  // in ids
        bool operator==(const Entry&) const = default;
    };

    explicit Trace(TokenCount block_tokens = 0) : block_tokens_(block_tokens) {}
    // Precondition (CHECK): chains only in a trace with block_tokens. The order of calls is kept
    // among equal arrivals by sort().
    void add(Duration arrival, TokenCount input, TokenCount output,
             std::span<const std::uint64_t> blocks, std::uint64_t session = 0,
             std::uint32_t turn = 0);
    // Sorts by arrival (stable) and moves the first arrival to 0.
    void sort();

    std::size_t size() const { return entries_.size(); }
    bool empty() const { return entries_.empty(); }
    const std::vector<Entry>& entries() const { return entries_; }
    std::vector<Entry>& entries() { return entries_; }
    std::span<const std::uint64_t> blocks(const Entry& e) const {
        return std::span(ids_).subspan(e.first_block, e.block_count);
    }
    TokenCount block_tokens() const { return block_tokens_; }
    // Last arrival; the first is 0 once sorted.
    Duration span() const { return entries_.empty() ? Duration{0} : entries_.back().arrival; }
    bool operator==(const Trace&) const = default;

  private:
    TokenCount block_tokens_;
    std::vector<Entry> entries_;
    std::vector<std::uint64_t> ids_;
};

enum class TraceFormat : std::uint8_t { kMooncake, kBailian, kAzure, kCompact };
// By the end of a name: .jsonl is kMooncake ("qwen" or "blksz" in it: kBailian), .csv kAzure,
// .ntrace kCompact. kInvalidArgument names the known ends.
Result<TraceFormat> trace_format_of(std::string_view file_name);

class TraceReader {
  public:
    explicit TraceReader(TraceFormat format);
    ~TraceReader();
    TraceReader(TraceReader&&) noexcept;
    TraceReader& operator=(TraceReader&&) noexcept;
    // After an error every later call returns the same error.
    Result<void> feed(std::string_view piece);
    // The sorted trace; kInvalidArgument when it holds no request. The reader is spent.
    Result<Trace> finish();

  private:
    struct State;
    std::unique_ptr<State> state_;
};
// feed(text) and finish().
Result<Trace> parse_trace(TraceFormat format, std::string_view text);

// The kCompact form of a trace. Ids are renumbered in order of first use (equality and prefixes are
// kept, values are not); arrivals are rounded down to microseconds.
std::string write_compact(const Trace& trace);

// Mooncake names no sessions: a request continues the latest earlier request whose whole blocks all
// begin its own chain (at least `min_blocks` of them), and gets its session and turn + 1. The
// others begin a session. Sessions that the trace names stay as they are. Cost: O(ids).
void infer_sessions(Trace& trace, std::uint32_t min_blocks = 2);

// What a trace is, for tables and tests. hit_share: tokens found in an infinite prefix cache of
// whole blocks that remembers every earlier arrival, over all input tokens.
struct TraceSummary {
    std::uint64_t requests = 0;
    Duration span{0};
    double input_mean = 0, input_p50 = 0, input_max = 0;
    double output_mean = 0, output_p50 = 0, output_max = 0;
    double hit_share = 0;
    std::uint64_t sessions = 0;  // distinct; 0 when none are named
};
TraceSummary summarize(const Trace& trace);

// Replays a trace, larger and faster.
struct ReplayOptions {
    std::uint32_t copies = 1;  // independent copies, each with its own prefixes and sessions
    double speed = 1;          // arrivals are divided by this; > 0 (CHECK)
    // Whole trace times this many, one after another in time, each with its own prefixes.
    std::uint32_t repeats = 1;
    // Copy c starts this much later than copy 0, at most: drawn per copy, in trace time before
    // `speed`. Keeps the copies from arriving in lockstep.
    Duration copy_offset = 30s;
    // Each arrival is moved by less than this, drawn per request: Mooncake's clock ticks every 3 s.
    Duration jitter{0};
    Duration end = Source::kNever;  // stop before this arrival, in workload time
    std::uint64_t seed = 1;
};
// The trace must outlive the source. Memory: 12 bytes a request of the trace and a heap of
// `copies`.
std::unique_ptr<Source> replay(const Trace& trace, ReplayOptions options);

}  // namespace nereid::workload
