// TLS over real sockets and over the simulated network (byte pieces of every size), and the
// mistakes people make with certificate files.
#include "io/tls.h"

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/prng.h"
#include "io/disk.h"
#include "io/memory_stream.h"
#include "io/test_worlds.h"

namespace nereid::io {
namespace {

using StreamPtr = std::unique_ptr<Stream>;
constexpr std::int64_t kDay = 86'400;

// A folder with self-signed certificates.
class Certificates {
  public:
    Certificates() { std::filesystem::create_directories(folder_); }
    ~Certificates() { std::filesystem::remove_all(folder_); }
    std::string path(const std::string& name) const { return folder_ + "/" + name; }
    // NAME.crt and NAME.key, valid in [now + from, now + to] seconds.
    void make(const std::string& name, std::int64_t from = -kDay, std::int64_t to = kDay) {
        EVP_PKEY* key = EVP_EC_gen("P-256");
        X509* cert = X509_new();
        X509_set_version(cert, 2);
        ASN1_INTEGER_set(X509_get_serialNumber(cert), ++serial_);
        X509_gmtime_adj(X509_getm_notBefore(cert), from);
        X509_gmtime_adj(X509_getm_notAfter(cert), to);
        X509_set_pubkey(cert, key);
        X509_NAME* subject = X509_get_subject_name(cert);
        X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                   reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
        X509_set_issuer_name(cert, subject);
        X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name,
                                                    "DNS:localhost,IP:127.0.0.1");
        X509_add_ext(cert, names, -1);
        X509_EXTENSION_free(names);
        X509_sign(cert, key, EVP_sha256());
        write(name + ".crt", [&](BIO* b) { PEM_write_bio_X509(b, cert); });
        write(name + ".key", [&](BIO* b) {
            PEM_write_bio_PrivateKey(b, key, nullptr, nullptr, 0, nullptr, nullptr);
        });
        write(name + ".enc", [&](BIO* b) {
            PEM_write_bio_PrivateKey(b, key, EVP_aes_128_cbc(),
                                     reinterpret_cast<const unsigned char*>("pw"), 2, nullptr,
                                     nullptr);
        });
        X509_free(cert);
        EVP_PKEY_free(key);
    }
    void text(const std::string& name, const std::string& content) {
        std::ofstream(path(name)) << content;
    }
    TlsServerOptions options(const std::string& name) const {
        return {.certificate_file = path(name + ".crt"),
                .key_file = path(name + ".key"),
                .handshake_timeout = 10s};
    }

  private:
    template <class F>
    void write(const std::string& name, F f) {
        BIO* b = BIO_new_file(path(name).c_str(), "w");
        f(b);
        BIO_free(b);
    }
    std::string folder_ = testing::TempDir() + "nereid-tls-" + std::to_string(getpid());
    int serial_ = 0;
};

WallTime real_now() {
    const RealLoop loop;
    return loop.wall_now();
}

Task<Result<void>> write_text(Stream& s, std::string_view text,
                              TimePoint deadline = TimePoint::never()) {
    const std::array pieces{text};
    co_return co_await s.write(pieces, deadline);
}
Task<Result<std::string>> read_exactly(Stream& s, std::size_t bytes,
                                       TimePoint deadline = TimePoint::never()) {
    std::string out;
    std::string into(50'000, '\0');
    while (out.size() < bytes) {
        CO_TRY(const auto n, co_await s.read(into, deadline));
        if (n == 0) break;
        out.append(into, 0, n);
    }
    co_return out;
}

template <class World>
class TlsTest : public testing::Test {
  protected:
    TlsTest() {
        certs_.make("server");
        server_ = *TlsServer::create(certs_.options("server"), real_now());
        client_ = *TlsClient::create(
            {.ca_file = certs_.path("server.crt"), .verify = true, .handshake_timeout = 10s});
    }
    template <class F>
    void run(F f) {
        run_in(world_, std::move(f));
    }
    // Plain streams: client's and server's end.
    Task<std::pair<StreamPtr, StreamPtr>> plain() {
        auto listener = *world_.network().listen(world_.listen_at());
        StreamPtr server;
        world_.loop.spawn([](Listener& l, StreamPtr& out) -> Task<void> {
            out = *co_await l.accept();
        }(*listener, server));
        auto client =
            *co_await world_.network().connect(listener->local(), world_.loop.now() + 10s);
        while (!server) co_await world_.loop.sleep_for(100us);
        co_return std::pair{std::move(client), std::move(server)};
    }
    Task<std::pair<StreamPtr, StreamPtr>> connected() {
        auto [client, server] = co_await plain();
        co_return std::pair{client_->wrap(world_.loop, std::move(client), "localhost"),
                            server_->wrap(world_.loop, std::move(server))};
    }
    // Sends `text` from a task of its own, since a handshake needs both sides.
    void send(Stream& s, std::string text) {
        world_.loop.spawn([](Stream& stream, std::string bytes) -> Task<void> {
            EXPECT_TRUE((co_await write_text(stream, bytes)).ok());
        }(s, std::move(text)));
    }
    Certificates certs_;
    World world_;
    std::unique_ptr<TlsServer> server_;
    std::unique_ptr<TlsClient> client_;
};
TYPED_TEST_SUITE(TlsTest, NetworkWorlds);

TYPED_TEST(TlsTest, CarriesBytesBothWaysAndEnds) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        this->send(*client, "question");
        EXPECT_EQ(*co_await read_exactly(*server, 8), "question");
        EXPECT_TRUE((co_await write_text(*server, "answer")).ok());
        EXPECT_EQ(*co_await read_exactly(*client, 6), "answer");
        client->shutdown_write();
        EXPECT_EQ(*co_await read_exactly(*server, 1), "");
        EXPECT_TRUE((co_await write_text(*server, "late")).ok());
        EXPECT_EQ(*co_await read_exactly(*client, 4), "late");
        server.reset();
        EXPECT_EQ(*co_await read_exactly(*client, 1), "");  // close_notify came
    });
}

TYPED_TEST(TlsTest, MegabytesBothWaysAtOnce) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        Prng rng(1);
        std::string bytes(2'000'000, '\0');
        for (auto& c : bytes) c = static_cast<char>(rng.next());
        int left = 2;
        for (Stream* s : {client.get(), server.get()}) {
            this->send(*s, bytes);
            this->world_.loop.spawn(
                [](Stream& stream, const std::string& expected, int& n) -> Task<void> {
                    const auto got = co_await read_exactly(stream, expected.size());
                    EXPECT_TRUE(got.ok());
                    if (got.ok()) {
                        EXPECT_TRUE(*got == expected);
                    }
                    --n;
                }(*s, bytes, left));
        }
        while (left > 0) co_await this->world_.loop.sleep_for(1ms);
    });
}

TYPED_TEST(TlsTest, DeadlineCloseAndDestructionWhileWaiting) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        this->send(*client, "x");
        EXPECT_EQ(*co_await read_exactly(*server, 1), "x");
        // The session tickets come after the handshake: nothing for the reader.
        EXPECT_EQ((co_await read_exactly(*client, 1, this->world_.loop.now() + 5ms)).code(),
                  Code::kDeadlineExceeded);
        auto reading = read_exactly(*client, 1).release();
        reading.resume();
        co_await this->world_.loop.sleep_for(1ms);
        reading.destroy();
        this->send(*server, "usable");
        EXPECT_EQ(*co_await read_exactly(*client, 6), "usable");
        int cancelled = 0;
        this->world_.loop.spawn([](Stream& s, int& n) -> Task<void> {
            EXPECT_EQ((co_await read_exactly(s, 1)).code(), Code::kCancelled);
            ++n;
        }(*client, cancelled));
        this->world_.loop.spawn([](Stream& s, int& n) -> Task<void> {
            EXPECT_EQ((co_await s.wait_hangup()).code(), Code::kCancelled);
            ++n;
        }(*client, cancelled));
        client->close();
        while (cancelled < 2) co_await this->world_.loop.sleep_for(100us);
        EXPECT_EQ(*co_await read_exactly(*server, 1), "");
    });
}

TYPED_TEST(TlsTest, WriteToAPeerThatDoesNotReadHitsItsDeadline) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        this->send(*client, "x");
        EXPECT_EQ(*co_await read_exactly(*server, 1), "x");
        const std::string much(32 << 20, 'x');
        EXPECT_EQ((co_await write_text(*server, much, this->world_.loop.now() + 20ms)).code(),
                  Code::kDeadlineExceeded);
        EXPECT_EQ((co_await write_text(*server, "y")).code(), Code::kIo);  // half a record is out
    });
}

TYPED_TEST(TlsTest, HangupIsSeen) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        this->send(*client, "x");
        EXPECT_EQ(*co_await read_exactly(*server, 1), "x");
        client.reset();
        EXPECT_TRUE((co_await server->wait_hangup()).ok());
    });
}

TYPED_TEST(TlsTest, ACutConnectionIsNoEnd) {
    this->run([&]() -> Task<void> {
        auto [plain_client, plain_server] = co_await this->plain();
        Stream* raw = plain_client.get();
        auto client = this->client_->wrap(this->world_.loop, std::move(plain_client), "localhost");
        auto server = this->server_->wrap(this->world_.loop, std::move(plain_server));
        this->send(*client, "x");
        EXPECT_EQ(*co_await read_exactly(*server, 1), "x");
        raw->shutdown_write();
        const auto r = co_await read_exactly(*server, 1);
        EXPECT_EQ(r.code(), Code::kIo);
        EXPECT_EQ(r.error().message, "TLS: the peer closed without close_notify");
    });
}

TYPED_TEST(TlsTest, NonsenseAndSilenceInTheHandshake) {
    this->run([&]() -> Task<void> {
        {
            auto [client, server] = co_await this->plain();
            auto tls = this->server_->wrap(this->world_.loop, std::move(server));
            EXPECT_TRUE((co_await write_text(*client, "GET / HTTP/1.1\r\n\r\n")).ok());
            const auto r = co_await read_exactly(*tls, 1);
            EXPECT_EQ(r.code(), Code::kIo);
            EXPECT_EQ(r.error().message, "TLS: http request");
            EXPECT_EQ((co_await write_text(*tls, "x")).code(), Code::kIo);
        }
        auto options = this->certs_.options("server");
        options.handshake_timeout = 20ms;
        auto hasty = *TlsServer::create(options, real_now());
        auto [client, server] = co_await this->plain();
        auto tls = hasty->wrap(this->world_.loop, std::move(server));
        const auto r = co_await read_exactly(*tls, 1);
        EXPECT_EQ(r.code(), Code::kDeadlineExceeded);
        EXPECT_EQ(r.error().message, "TLS: the handshake took too long");
    });
}

TYPED_TEST(TlsTest, ReloadServesNewConnectionsWithTheNewCertificateAndKeepsOldOnes) {
    this->run([&]() -> Task<void> {
        auto [client, server] = co_await this->connected();
        this->send(*client, "x");
        EXPECT_EQ(*co_await read_exactly(*server, 1), "x");
        this->certs_.make("server", -kDay, 20 * kDay);  // another key under the same names
        const WallTime before = this->server_->expires();
        EXPECT_TRUE(this->server_->reload(real_now()).ok());
        EXPECT_GT(this->server_->expires(), before);
        this->send(*client, "old one lives");
        EXPECT_EQ(*co_await read_exactly(*server, 13), "old one lives");
        // The client still trusts the first certificate only.
        auto [plain_client, plain_server] = co_await this->plain();
        auto tls_server = this->server_->wrap(this->world_.loop, std::move(plain_server));
        auto reading = read_exactly(*tls_server, 1).release();
        reading.resume();
        auto refused = this->client_->wrap(this->world_.loop, std::move(plain_client), "localhost");
        const auto r = co_await write_text(*refused, "x");
        EXPECT_EQ(r.code(), Code::kIo);
        EXPECT_NE(r.error().message.find("certificate is refused: self-signed"), std::string::npos)
            << r.error().message;
        reading.destroy();
        // A bad reload changes nothing.
        this->certs_.text("server.crt", "rubbish");
        const WallTime good = this->server_->expires();
        EXPECT_EQ(this->server_->reload(real_now()).code(), Code::kConfig);
        EXPECT_EQ(this->server_->expires(), good);
        this->send(*client, "still");
        EXPECT_EQ(*co_await read_exactly(*server, 5), "still");
    });
}

TYPED_TEST(TlsTest, TheNameIsChecked) {
    this->run([&]() -> Task<void> {
        for (const auto& [name, good] : std::vector<std::pair<std::string, bool>>{
                 {"127.0.0.1", true}, {"other", false}, {"10.1.1.1", false}}) {
            auto [plain_client, plain_server] = co_await this->plain();
            auto server = this->server_->wrap(this->world_.loop, std::move(plain_server));
            auto reading = read_exactly(*server, 1).release();
            reading.resume();
            auto client = this->client_->wrap(this->world_.loop, std::move(plain_client), name);
            EXPECT_EQ((co_await write_text(*client, "x")).ok(), good) << name;
            reading.destroy();
        }
    });
}

TYPED_TEST(TlsTest, ListenerAndNetworkWrap) {
    this->run([&]() -> Task<void> {
        auto listener = this->server_->wrap(
            this->world_.loop, *this->world_.network().listen(this->world_.listen_at()));
        StreamPtr server;
        this->world_.loop.spawn([](Listener& l, StreamPtr& out) -> Task<void> {
            out = *co_await l.accept();
        }(*listener, server));
        auto any = *TlsClient::create({.ca_file = {}, .verify = false, .handshake_timeout = 10s});
        TlsNetwork network(this->world_.loop, this->world_.network(), *any);
        auto client = *co_await network.connect(listener->local(), this->world_.loop.now() + 10s);
        this->send(*client, "hi");
        while (!server) co_await this->world_.loop.sleep_for(100us);
        EXPECT_EQ(*co_await read_exactly(*server, 2), "hi");
        listener->close();
    });
}

// ------------------------------------------------------------------ files

std::string refusal(const TlsServerOptions& options) {
    const auto r = TlsServer::create(options, real_now());
    if (r.ok()) return "accepted";
    EXPECT_EQ(r.code(), Code::kConfig);
    return r.error().message;
}

TEST(TlsFiles, MistakesNameTheFileAndTheMend) {
    Certificates certs;
    certs.make("a");
    certs.make("b");
    certs.make("old", -10 * kDay, -3 * kDay);
    certs.make("early", kDay, 2 * kDay);
    certs.text("text.crt", "hello\n");
    auto with = [&](const std::string& crt, const std::string& key) {
        return refusal({.certificate_file = certs.path(crt),
                        .key_file = certs.path(key),
                        .handshake_timeout = 10s});
    };
    EXPECT_EQ(with("a.crt", "a.key"), "accepted");
    EXPECT_NE(with("none.crt", "a.key").find("none.crt: No such file or directory; give"),
              std::string::npos);
    EXPECT_NE(with("a.crt", "none.key").find("none.key: No such file or directory; give"),
              std::string::npos);
    EXPECT_NE(with("text.crt", "a.key").find("text.crt: holds no PEM certificate"),
              std::string::npos);
    EXPECT_NE(with("a.key", "a.crt").find("a.key: holds no PEM certificate"), std::string::npos);
    EXPECT_NE(with("a.crt", "a.crt").find("a.crt: holds no PEM private key"), std::string::npos);
    EXPECT_NE(with("a.crt", "b.key").find("b.key: does not belong to the certificate"),
              std::string::npos);
    EXPECT_NE(with("a.crt", "a.enc").find("a.enc: is encrypted: write it without a passphrase"),
              std::string::npos);
    EXPECT_NE(with("old.crt", "old.key").find("old.crt: expired 3 days ago: renew it"),
              std::string::npos);
    EXPECT_NE(with("early.crt", "early.key")
                  .find("early.crt: is not valid yet: check this machine's clock"),
              std::string::npos);
}

TEST(TlsFiles, ADamagedChainIsRefused) {
    Certificates certs;
    certs.make("a");
    certs.make("b");
    auto first = *read_file(certs.path("a.crt"), 1 << 20);
    auto second = *read_file(certs.path("b.crt"), 1 << 20);
    certs.text("chain.crt", first + second);
    TlsServerOptions options = certs.options("a");
    options.certificate_file = certs.path("chain.crt");
    EXPECT_EQ(refusal(options), "accepted");
    second[100] = '!';
    certs.text("chain.crt", first + second);
    EXPECT_NE(refusal(options).find("a certificate of the chain is damaged"), std::string::npos);
}

TEST(TlsFiles, CaFileOfTheClient) {
    Certificates certs;
    certs.text("ca.crt", "hello\n");
    EXPECT_EQ(TlsClient::create(
                  {.ca_file = certs.path("ca.crt"), .verify = true, .handshake_timeout = 10s})
                  .code(),
              Code::kConfig);
    EXPECT_EQ(
        TlsClient::create({.ca_file = certs.path("none"), .verify = true, .handshake_timeout = 10s})
            .code(),
        Code::kConfig);
}

}  // namespace
}  // namespace nereid::io
