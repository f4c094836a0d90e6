// NodeRunner: a node on a loop. It gives the node its events and the time, and does what the node
// says: copies from clients' staging regions, reads and writes of the SSD tier, timers, metrics.
//
// It is also what makes the SSD tier's own news (expired, moved, full) events of the node, and it
// loads the tier's records at start while the node already serves (partial service).
//
// Threads: the loop's. Copies run on it: 1 MB is about 0.2 ms. Destroy after stop() has ended.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "io/loop.h"
#include "io/task.h"
#include "kv/node/node.h"
#include "kv/node/probe.h"
#include "kv/tier/tier.h"

namespace nereid::kv {

class NodeRunner final : public SsdListener {
  public:
    struct Hooks {
        // An answer for this client. May submit() again.
        std::function<void(Reply)> reply;
        // [offset, offset + length) of a client's region, or kInvalidArgument. Called only for
        // clients that are not gone.
        std::function<Result<std::span<const std::uint8_t>>(
            ClientId, std::uint32_t region, std::uint64_t offset, std::uint64_t length)>
            staging;
    };
    // `ssd` and `probe` may be null. All outlive the runner.
    NodeRunner(io::Loop& loop, Node& node, SsdTier* ssd, Hooks hooks, NodeProbe* probe = nullptr);
    ~NodeRunner() override;
    NodeRunner(const NodeRunner&) = delete;
    NodeRunner& operator=(const NodeRunner&) = delete;

    // Starts timers and the loading of records.
    void start();
    void submit(Request request);
    void client_gone(ClientId client);
    // Ends when no effect is under way; nothing may be submitted afterwards.
    io::Task<void> stop();

    bool loaded() const { return loaded_; }  // all records of the SSD tier have been seen
    std::uint64_t scanned() const { return scanned_; }
    Error load_error() const { return load_error_; }  // code kInternal, no message: none
    const Node& node() const { return node_; }

    // SsdListener
    void on_gone(std::span<const ScanEntry> entries, GoneCause cause) override;
    void on_moved(ObjectKey key, Location from, Location to, ExpiryHour expiry) override;
    void on_writable(bool writable) override;

  private:
    void post(Event event);
    void pump();
    void perform(Action& action);
    void rearm();
    void on_timer();
    io::Task<void> append(AppendSsd a);
    io::Task<void> read(ReadSsd r);
    io::Task<void> remember(RememberClear r);
    io::Task<void> load();
    io::Task<void> tick_ssd();
    Now now() const { return {loop_.now(), loop_.wall_now()}; }

    io::Loop& loop_;
    Node& node_;
    SsdTier* ssd_;
    Hooks hooks_;
    NodeProbe* probe_;
    std::deque<Event> events_;
    bool pumping_ = false;
    bool stopping_ = false;
    bool loaded_ = false;
    bool ticking_ = false;
    Error load_error_;
    std::uint64_t scanned_ = 0;
    std::uint32_t effects_ = 0;
    io::Loop::TimerId timer_ = 0;
    TimePoint timer_at_ = TimePoint::never();
    TimePoint next_tick_;
};

}  // namespace nereid::kv
