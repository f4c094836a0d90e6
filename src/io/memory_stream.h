// Streams in memory: PipeEnd, one end of a byte stream with bounded buffers, and make_memory_pair,
// two of them joined directly on one loop (for tests and in-process use). SimNetwork joins its ends
// by a wire with latency and faults.
//
// Semantics are TCP's: half-close; a peer that closed while it had unread data, or that gets data
// after it closed, answers with a reset, after which reads and writes fail with kIo and received
// data is lost. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "io/stream.h"
#include "io/waiter.h"

namespace nereid::io {

struct PipeMessage {
    enum class Kind : std::uint8_t { kData, kFin, kReset, kTaken };
    Kind kind = Kind::kData;
    std::string bytes = {};  // kData
    std::size_t taken = 0;   // kTaken: bytes that the receiver's reader has consumed
};

class PipeEnd;

// What carries messages between two ends. `from_first`: sent by the first end of the pair.
class PipeWire {
  public:
    virtual ~PipeWire() = default;
    virtual void carry(bool from_first, PipeMessage message) = 0;
    // Bounds for one piece written and one read: at least 1. Lets a simulation cut streams
    // anywhere.
    virtual std::size_t piece_limit() = 0;
};

class PipeEnd : public std::enable_shared_from_this<PipeEnd> {
  public:
    // `window`: bytes that may be on the way or unread at the other end before write() waits.
    PipeEnd(Loop& loop, std::shared_ptr<PipeWire> wire, bool first, std::size_t window,
            std::string peer);

    // A message has arrived. The waiting coroutine is resumed from the loop's queue.
    void receive(PipeMessage message);

    static Task<Result<std::size_t>> read(std::shared_ptr<PipeEnd> e, std::span<char> into,
                                          TimePoint deadline);
    static Task<Result<void>> write(std::shared_ptr<PipeEnd> e,
                                    std::span<const std::string_view> pieces, TimePoint deadline);
    static Task<Result<void>> wait_hangup(std::shared_ptr<PipeEnd> e);
    void shutdown_write();
    void close();
    const std::string& peer() const { return peer_; }

  private:
    Task<Result<void>> write_piece(std::string_view piece, TimePoint deadline);
    std::size_t take(std::span<char> into);
    void wake_all(Wake why);

    std::shared_ptr<PipeWire> wire_;
    bool first_;
    std::size_t window_;
    std::string peer_;

    std::string buffer_;  // received; read up to read_at_
    std::size_t read_at_ = 0;
    std::size_t outstanding_ = 0;  // sent and not yet taken
    bool fin_received_ = false;
    bool fin_sent_ = false;
    bool reset_ = false;
    bool closed_ = false;
    Waiter reader_;
    Waiter writer_;
    Waiter hangup_;
};

std::unique_ptr<Stream> make_pipe_stream(std::shared_ptr<PipeEnd> end);

// Two joined streams on one loop, real or simulated.
std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>> make_memory_pair(
    Loop& loop, std::size_t window = 64 << 10);

}  // namespace nereid::io
