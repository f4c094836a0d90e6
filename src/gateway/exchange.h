// Exchange: one request and its one response. Whatever ends it, its destructor releases the slot,
// writes the one access-log line and moves the metrics: nothing else does (cases A31, A55).
//
// Lives in the frame of the connection's handler. Loop thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dialect/seal.h"
#include "gateway/core.h"
#include "gateway/record.h"
#include "io/http.h"
#include "io/loop.h"

namespace nereid::gateway {

class Exchange {
  public:
    Exchange(Core& core, io::Loop& loop, std::shared_ptr<const Settings> settings,
             io::HttpRequest& http, io::HttpReply& reply, std::string fallback_id);
    ~Exchange();
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    io::HttpRequest& http() { return http_; }
    const io::HttpRequest& http() const { return http_; }
    io::HttpReply& reply() { return reply_; }
    io::Loop& loop() { return loop_; }
    const io::Clock& clock() const { return loop_; }
    Core& core() { return core_; }
    const Core& core() const { return core_; }
    const GatewayOptions& options() const { return settings_->options; }
    const Settings& settings() const { return *settings_; }
    std::shared_ptr<const Settings> shared_settings() const { return settings_; }
    const ApiKey* key() const { return key_; }

    RequestRecord record;

    // For the reasoning that this caller keeps for us.
    dialect::Seal seal() const { return {core_.aead, record.key}; }

    // false: no valid key was presented. Always true without a key file.
    bool authenticate();
    // For a request that another one has started: its key, from the same settings.
    void adopt_key(const ApiKey* key);
    bool adopted() const { return adopted_; }
    Result<void> admit();
    void drop_slot() { ticket_.release(); }

    // Whether the answer's headers and errors are Anthropic's; else they are OpenAI's.
    bool speaks_messages() const;

    // Headers that every response carries.
    io::Headers headers(std::string_view content_type) const;
    // The whole response in one write. A client that is gone is noted in the record.
    io::Task<void> send(int status, io::Headers headers, std::string body);
    io::Task<void> send_json(int status, std::string body);
    // The error in the request's own shape, with its status and retry hints; nothing may have been
    // sent before.
    io::Task<void> fail(Error error);
    // The body of an error that has no Code, in the same shape. `code` is for OpenAI's.
    std::string error_json(int status, std::string_view message, std::string_view code) const;

    // What fail() has said, if it was called.
    const std::optional<Error>& failure() const { return failure_; }

    // Sets why it ended, unless that is known already.
    void ended_as(std::string_view why);
    // The same for a write that failed: a client that does not read, or one that is gone.
    void write_failed(const Error& error);

  private:
    Core& core_;
    io::Loop& loop_;
    std::shared_ptr<const Settings> settings_;
    io::HttpRequest& http_;
    io::HttpReply& reply_;
    const ApiKey* key_ = nullptr;
    Admission::Ticket ticket_;
    std::optional<Error> failure_;
    bool adopted_ = false;
};

}  // namespace nereid::gateway
