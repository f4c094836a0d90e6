#include "io/uring.h"

#include <liburing.h>
#include <sys/epoll.h>

#include <cerrno>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "io/waiter.h"

namespace nereid::io {

struct Uring::Op {
    explicit Op(RealLoop& loop) : waiter(loop) {}
    What what = What::kRead;
    int fd = -1;
    const iovec* pieces = nullptr;
    unsigned count = 0;
    std::uint64_t offset = 0;
    int result = 0;
    enum class Phase : std::uint8_t { kWaiting, kInKernel, kDone } phase = Phase::kWaiting;
    Waiter waiter;
    std::shared_ptr<Op> self;  // held while the kernel has its address
};

struct Uring::State {
    State(RealLoop& l, unsigned d) : loop(l), depth(d) {}
    ~State() {
        watch.reset();
        if (open) io_uring_queue_exit(&ring);
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    // Moves waiting operations into the submission queue, as far as `depth` lets them.
    void fill() {
        while (!waiting.empty() && in_kernel < depth) {
            io_uring_sqe* sqe = io_uring_get_sqe(&ring);
            if (sqe == nullptr) {
                io_uring_submit(&ring);
                sqe = io_uring_get_sqe(&ring);
                if (sqe == nullptr) return;
            }
            auto op = std::move(waiting.front());
            waiting.pop_front();
            switch (op->what) {
                case What::kRead:
                    io_uring_prep_readv(sqe, op->fd, op->pieces, op->count, op->offset);
                    break;
                case What::kWrite:
                    io_uring_prep_writev(sqe, op->fd, op->pieces, op->count, op->offset);
                    break;
                case What::kSync:
                    io_uring_prep_fsync(sqe, op->fd, IORING_FSYNC_DATASYNC);
                    break;
            }
            io_uring_sqe_set_data(sqe, op.get());
            op->phase = Op::Phase::kInKernel;
            ++in_kernel;
            op->self = op;
        }
    }
    void submit() {
        fill();
        // EBUSY, EAGAIN: the kernel is short of something; completions will call again.
        io_uring_submit(&ring);
    }
    // Takes completions out of the ring; wakes nobody.
    void reap(std::vector<std::shared_ptr<Op>>& ended) {
        io_uring_cqe* cqe = nullptr;
        while (io_uring_peek_cqe(&ring, &cqe) == 0 && cqe != nullptr) {
            if (auto* op = static_cast<Op*>(io_uring_cqe_get_data(cqe)); op != nullptr) {
                op->result = cqe->res;
                op->phase = Op::Phase::kDone;
                --in_kernel;
                ended.push_back(std::exchange(op->self, nullptr));
            }
            io_uring_cqe_seen(&ring, cqe);
        }
    }

    RealLoop& loop;
    unsigned depth;
    io_uring ring{};
    bool open = false;
    bool flush_posted = false;
    unsigned in_kernel = 0;
    std::deque<std::shared_ptr<Op>> waiting;
    std::optional<FdWatch> watch;
};

Uring::Uring(std::unique_ptr<State> state) : state_(std::move(state)) {}
Uring::~Uring() {
    CHECK_MSG(state_->in_kernel == 0, "a disk went away while operations ran in its ring");
}

std::shared_ptr<Uring> Uring::create(RealLoop& loop, unsigned depth) {
    auto state = std::make_unique<State>(loop, depth);
    if (io_uring_queue_init(depth, &state->ring, 0) != 0) return nullptr;
    state->open = true;
    auto ring = std::shared_ptr<Uring>(new Uring(std::move(state)));
    State& s = *ring->state_;
    s.watch.emplace(loop, s.ring.ring_fd, EPOLLIN, [weak = std::weak_ptr(ring)](std::uint32_t) {
        const auto self = weak.lock();
        if (!self) return;
        std::vector<std::shared_ptr<Op>> ended;
        self->state_->reap(ended);
        if (!self->state_->waiting.empty() || io_uring_sq_ready(&self->state_->ring) > 0)
            self->state_->submit();
        for (const auto& op : ended) op->waiter.wake(Wake::kEvent);
    });
    return ring;
}

void Uring::start(const std::shared_ptr<Op>& op) {
    State& s = *state_;
    CHECK(s.loop.on_loop_thread());
    s.waiting.push_back(op);
    submit_later();
}

void Uring::submit_later() {
    State& s = *state_;
    if (std::exchange(s.flush_posted, true)) return;
    s.loop.post([weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self) return;
        self->state_->flush_posted = false;
        self->state_->submit();
    });
}

void Uring::abandon(Op& op) {
    State& s = *state_;
    if (op.phase == Op::Phase::kWaiting)
        std::erase_if(s.waiting, [&](const auto& w) { return w.get() == &op; });
    if (op.phase != Op::Phase::kInKernel) return;
    if (io_uring_sqe* sqe = io_uring_get_sqe(&s.ring); sqe != nullptr) {
        io_uring_prep_cancel(sqe, &op, 0);
        io_uring_sqe_set_data(sqe, nullptr);
    }
    while (op.phase == Op::Phase::kInKernel) {
        io_uring_submit_and_wait(&s.ring, 1);
        std::vector<std::shared_ptr<Op>> ended;
        s.reap(ended);
        for (const auto& other : ended) {
            if (other.get() == &op) continue;
            s.loop.post([other] { other->waiter.wake(Wake::kEvent); });
        }
    }
    if (!s.waiting.empty()) submit_later();  // what was reaped here raises no event any more
}

Task<int> Uring::run(std::shared_ptr<Uring> ring, What what, int fd,
                     const std::vector<iovec>& pieces, std::uint64_t offset) {
    const auto op = std::make_shared<Op>(ring->state_->loop);
    op->what = what;
    op->fd = fd;
    op->pieces = pieces.data();
    op->count = static_cast<unsigned>(pieces.size());
    op->offset = offset;
    struct Guard {  // the caller's memory is the kernel's until the operation has ended
        Uring& ring;
        Op& op;
        ~Guard() { ring.abandon(op); }
    };
    const Guard guard{*ring, *op};
    ring->start(op);
    if (op->phase != Op::Phase::kDone) co_await op->waiter.wait();
    co_return op->result;
}

}  // namespace nereid::io
