#include <openssl/err.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "io/tls_context.h"
#include "io/waiter.h"

namespace nereid::io {

namespace {

constexpr std::size_t kRecord = 16 << 10;     // TLS's largest
constexpr std::size_t kFlushAt = 64 << 10;    // ciphertext kept back before a write goes out
constexpr std::size_t kReadBlock = 17 << 10;  // a record with its header and tag

Error cancelled() { return {Code::kCancelled, "the stream was closed on our side"}; }
Error dead() { return {Code::kIo, "TLS: the stream is unusable after an earlier error"}; }

// Shared by the Stream and the coroutines in the middle of an operation. At most one of them reads
// the inner stream and at most one writes it; SSL calls never wait, since both ends of SSL are
// memory.
struct Tls : std::enable_shared_from_this<Tls> {
    Tls(Loop& l, std::unique_ptr<Stream> s, SSL* owned, std::shared_ptr<TlsServer::Context> c,
        TimePoint by)
        : loop(l),
          inner(std::move(s)),
          context(std::move(c)),
          ssl(owned),
          handshake_by(by),
          fill_turn(l),
          flush_turn(l) {
        in = BIO_new(BIO_s_mem());
        out = BIO_new(BIO_s_mem());
        CHECK(in != nullptr && out != nullptr);
        BIO_set_mem_eof_return(in, -1);  // empty means "later", not "end"
        SSL_set_bio(ssl, in, out);       // ssl owns both
    }
    ~Tls() { SSL_free(ssl); }
    Tls(const Tls&) = delete;
    Tls& operator=(const Tls&) = delete;

    Loop& loop;
    std::unique_ptr<Stream> inner;
    std::shared_ptr<TlsServer::Context> context;
    SSL* ssl;
    BIO* in = nullptr;   // ciphertext from the peer
    BIO* out = nullptr;  // ciphertext for the peer
    TimePoint handshake_by;
    std::vector<char> block;  // of the one who fills
    bool filling = false;
    bool flushing = false;
    bool broken = false;
    bool closed = false;
    bool ended = false;             // close_notify has come
    bool shut_after_flush = false;  // shutdown_write() was called
    Waiter fill_turn;
    Waiter flush_turn;

    bool shaken() const { return SSL_is_init_finished(ssl) == 1; }
    std::size_t pending() const { return BIO_ctrl_pending(out); }
    std::string take_pending() {
        std::string bytes(pending(), '\0');
        if (!bytes.empty()) BIO_read(out, bytes.data(), static_cast<int>(bytes.size()));
        return bytes;
    }
    TimePoint bounded(TimePoint deadline) const {
        return shaken() ? deadline : std::min(deadline, handshake_by);
    }
};
using TlsPtr = std::shared_ptr<Tls>;

// Holds a turn for a scope, also when the coroutine is destroyed in it.
struct Turn {
    Turn(TlsPtr t, bool Tls::* busy, Waiter Tls::* next)
        : tls(std::move(t)), busy_(busy), next_(next) {
        (*tls).*busy_ = true;
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
        (*tls).*busy_ = false;
        if (!done && busy_ == &Tls::flushing) tls->broken = true;  // half a record may be out
        ((*tls).*next_).wake_later(Wake::kEvent, tls);
    }
    TlsPtr tls;
    bool done = false;
    bool Tls::* busy_;
    Waiter Tls::* next_;
};

// Sends all ciphertext that there is.
Task<Result<void>> flush(TlsPtr t, TimePoint deadline) {
    while (t->pending() > 0) {
        if (t->broken) co_return dead();
        if (t->flushing) {
            if (co_await t->flush_turn.wait(deadline) == Wake::kDeadline) {
                co_return Error{Code::kDeadlineExceeded,
                                "the peer did not take the data before the deadline"};
            }
            continue;
        }
        Turn turn(t, &Tls::flushing, &Tls::flush_turn);
        const std::string bytes = t->take_pending();
        const std::array pieces{std::string_view(bytes)};
        CO_TRY_VOID(co_await t->inner->write(pieces, t->bounded(deadline)));
        turn.done = true;
    }
    if (t->shut_after_flush && !t->flushing) t->inner->shutdown_write();
    co_return Result<void>{};
}

// Brings in more ciphertext; also returns when somebody else has.
Task<Result<void>> fill(TlsPtr t, TimePoint deadline) {
    if (t->filling) {
        if (co_await t->fill_turn.wait(deadline) == Wake::kDeadline) {
            co_return Error{Code::kDeadlineExceeded, "the peer sent nothing before the deadline"};
        }
        co_return Result<void>{};
    }
    const Turn turn(t, &Tls::filling, &Tls::fill_turn);
    t->block.resize(kReadBlock);
    const bool shaken = t->shaken();
    const auto n = co_await t->inner->read(t->block, t->bounded(deadline));
    if (!n.ok()) {
        if (!shaken && n.code() == Code::kDeadlineExceeded && t->loop.now() >= t->handshake_by) {
            t->broken = true;
            co_return Error{Code::kDeadlineExceeded, "TLS: the handshake took too long"};
        }
        co_return n.error();
    }
    if (*n == 0) {
        t->broken = true;
        co_return Error{Code::kIo, shaken ? "TLS: the peer closed without close_notify"
                                          : "TLS: the peer left in the handshake"};
    }
    BIO_write(t->in, t->block.data(), static_cast<int>(*n));
    co_return Result<void>{};
}

// After SSL_read or SSL_write returned `rc` <= 0: brings what SSL wants, or says why it cannot go
// on.
Task<Result<void>> serve_ssl(TlsPtr t, int rc, TimePoint deadline) {
    switch (SSL_get_error(t->ssl, rc)) {
        case SSL_ERROR_WANT_READ:
        case SSL_ERROR_WANT_WRITE:
            CO_TRY_VOID(co_await flush(t, deadline));
            co_return co_await fill(t, deadline);
        case SSL_ERROR_ZERO_RETURN:
            t->ended = true;
            co_return Result<void>{};
        default:
            break;
    }
    std::string reason = openssl_reason();
    if (const long verdict = SSL_get_verify_result(t->ssl); !t->shaken() && verdict != X509_V_OK) {
        reason = fmt::format("the peer's certificate is refused: {}",
                             X509_verify_cert_error_string(verdict));
    }
    // The alert that tells the peer why is worth a try, not a wait.
    static_cast<void>(co_await flush(t, std::min(deadline, t->loop.now() + 100ms)));
    t->broken = true;
    co_return Error{Code::kIo, "TLS: " + reason};
}

Result<void> usable(const Tls& t) {
    if (t.closed) return cancelled();
    if (t.broken) return dead();
    return {};
}

Task<Result<std::size_t>> read(TlsPtr t, std::span<char> into, TimePoint deadline) {
    CHECK(!into.empty());
    for (;;) {
        CO_TRY_VOID(usable(*t));
        if (t->ended) co_return std::size_t{0};
        ERR_clear_error();
        const int size = static_cast<int>(std::min<std::size_t>(into.size(), 1 << 30));
        const int n = SSL_read(t->ssl, into.data(), size);
        if (n > 0) {
            // What SSL has to say meanwhile (the end of a handshake, a key update) goes out before
            // we may rest.
            if (t->pending() > 0 && !t->flushing) CO_TRY_VOID(co_await flush(t, deadline));
            co_return static_cast<std::size_t>(n);
        }
        CO_TRY_VOID(co_await serve_ssl(t, n, deadline));
    }
}

Task<Result<void>> write_record(TlsPtr t, std::string_view record, TimePoint deadline) {
    for (;;) {
        CO_TRY_VOID(usable(*t));
        ERR_clear_error();
        const int n = SSL_write(t->ssl, record.data(), static_cast<int>(record.size()));
        if (n > 0) break;
        CO_TRY_VOID(co_await serve_ssl(t, n, deadline));
        if (t->ended) co_return Error{Code::kIo, "TLS: the peer has closed"};
    }
    if (t->pending() >= kFlushAt) co_return co_await flush(t, deadline);
    co_return Result<void>{};
}

// Small pieces share a record; a large one is cut.
Task<Result<void>> write(TlsPtr t, std::span<const std::string_view> pieces, TimePoint deadline) {
    CO_TRY_VOID(usable(*t));
    std::string record;
    for (std::string_view piece : pieces) {
        while (!piece.empty()) {
            const std::size_t n = std::min(piece.size(), kRecord - record.size());
            record.append(piece.substr(0, n));
            piece.remove_prefix(n);
            if (record.size() < kRecord) continue;
            CO_TRY_VOID(co_await write_record(t, record, deadline));
            record.clear();
        }
    }
    if (!record.empty()) CO_TRY_VOID(co_await write_record(t, record, deadline));
    co_return co_await flush(t, deadline);
}

Task<Result<void>> wait_hangup(TlsPtr t) { co_return co_await t->inner->wait_hangup(); }

Task<void> flush_detached(TlsPtr t) { static_cast<void>(co_await flush(t, t->loop.now() + 10s)); }

// Written at once or not at all: the deadline is now.
Task<void> say_goodbye(TlsPtr t, std::string bytes) {
    const std::array pieces{std::string_view(bytes)};
    static_cast<void>(co_await t->inner->write(pieces, t->loop.now()));
    t->inner->close();
}

class TlsStream final : public Stream {
  public:
    explicit TlsStream(TlsPtr t) : t_(std::move(t)) {}
    ~TlsStream() override { shut(); }
    Task<Result<std::size_t>> read(std::span<char> into, TimePoint deadline) override {
        return io::read(t_, into, deadline);
    }
    Task<Result<void>> write(std::span<const std::string_view> pieces,
                             TimePoint deadline) override {
        return io::write(t_, pieces, deadline);
    }
    Task<Result<void>> wait_hangup() override { return io::wait_hangup(t_); }
    void shutdown_write() override {
        if (t_->closed || t_->broken) return;
        t_->shut_after_flush = true;
        if (t_->shaken()) SSL_shutdown(t_->ssl);
        if (!t_->flushing) t_->loop.spawn(flush_detached(t_));  // else the one who flushes does it
    }
    void close() override { shut(); }
    std::string peer() const override { return t_->inner->peer(); }

  private:
    void shut() {
        if (std::exchange(t_->closed, true)) return;
        if (t_->shaken() && !t_->broken && !t_->flushing) {
            if (!t_->shut_after_flush) SSL_shutdown(t_->ssl);
            if (auto bytes = t_->take_pending(); !bytes.empty()) {
                t_->loop.spawn(say_goodbye(t_, std::move(bytes)));
                return;
            }
        }
        t_->inner->close();
    }
    TlsPtr t_;
};

}  // namespace

std::unique_ptr<Stream> make_tls_stream(Loop& loop, std::unique_ptr<Stream> inner, SSL* ssl,
                                        std::shared_ptr<TlsServer::Context> context,
                                        Duration handshake_timeout) {
    return std::make_unique<TlsStream>(std::make_shared<Tls>(
        loop, std::move(inner), ssl, std::move(context), loop.now() + handshake_timeout));
}

}  // namespace nereid::io
