// SimNetwork: hosts and byte streams between them in virtual time, with faults.
//
//     SimScheduler sched(seed);  SimNetwork net(sched, {});
//     SimLoop a(sched), b(sched);
//     SimHost at_a(net, "10.0.0.1", a), at_b(net, "10.0.0.2", b);      // each is a Network for its
//     process net.partition("10.0.0.1", "10.0.0.2");
//
// A host name is compared as a string; "127.0.0.1", "localhost" and Unix paths mean the host
// itself. Bytes are cut into pieces of random size when written and when read, and arrive after a
// random latency, in order. Buffers are bounded.
//
// | fault | what it stands for | what the program sees |
// |---|---|---|
// | partition / heal | cable, switch, security group | nothing arrives until heal; connects wait
// for their deadline | | reset | a middlebox, a killed peer machine that came back | kIo on both
// sides, received data lost | | slow | congestion | latency of that pair grows by a fixed amount |
// | destroying a host's streams | its process died | end of data at the peer, or a reset when data
// was unread | | refuse_accepts | EMFILE, a full backlog | connects wait for their deadline |
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/sim_loop.h"
#include "io/stream.h"

namespace nereid::io {

struct SimNetworkOptions {
    Duration min_latency = 20us;
    Duration max_latency = 500us;
    Duration local_latency = 5us;      // at most, within a host
    std::size_t window = 64 << 10;     // bytes in flight and unread per direction
    std::size_t max_piece = 16 << 10;  // pieces are 1..max_piece bytes; now and then a single byte
    std::size_t backlog = 128;         // connections not yet accepted, per listener
};

struct SimNetworkCounters {
    std::uint64_t connects = 0, refused = 0, messages = 0, bytes = 0, held = 0, resets = 0;
};

class SimNetwork {
  public:
    SimNetwork(SimScheduler& scheduler, SimNetworkOptions options);
    ~SimNetwork();
    SimNetwork(const SimNetwork&) = delete;
    SimNetwork& operator=(const SimNetwork&) = delete;

    // Both directions, until heal(). Of a pair that is not partitioned, or unknown: nothing.
    void partition(const std::string& a, const std::string& b);
    void heal(const std::string& a, const std::string& b);
    void heal_all();
    // All streams between two hosts (also a == b) are reset.
    void reset(const std::string& a, const std::string& b);
    void slow(const std::string& a, const std::string& b, Duration extra);  // 0 = normal again
    void refuse_accepts(const std::string& host, bool refuse);
    const SimNetworkCounters& counters() const;

    struct Core;

  private:
    friend class SimHost;
    std::shared_ptr<Core> core_;  // streams may outlive the network object
};

// The Network of one process on a host. Several processes may share a host name.
class SimHost final : public Network {
  public:
    SimHost(SimNetwork& network, std::string name, SimLoop& loop);
    // kUnavailable (nobody listens), kDeadlineExceeded (partition, backlog), kInvalidArgument.
    Task<Result<std::unique_ptr<Stream>>> connect(const Endpoint& to, TimePoint deadline) override;
    // kConflict, kInvalidArgument.
    Result<std::unique_ptr<Listener>> listen(const Endpoint& at, bool reuse_port = false) override;

  private:
    std::shared_ptr<SimNetwork::Core> core_;
    std::string name_;
    SimLoop& loop_;
};

}  // namespace nereid::io
