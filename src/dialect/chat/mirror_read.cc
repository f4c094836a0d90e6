#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/base64.h"
#include "base/utf8.h"
#include "dialect/chat/mirror.h"

namespace nereid::dialect::chat {
namespace {

constexpr std::uint32_t kMaxChoices = 4096;
constexpr std::size_t kMaxCalls = 1024;
constexpr std::size_t kMaxMessageBytes = 2000;  // of a backend's error text that is passed on

const Json* given(const Json& object, std::string_view name) {
    const Json* value = object.find(name);
    return value == nullptr || value->is_null() ? nullptr : value;
}

std::string_view string_of(const Json& object, std::string_view name) {
    const Json* value = object.find(name);
    return value != nullptr && value->is_string() ? std::string_view(value->as_string())
                                                  : std::string_view();
}

TokenCount count_of(const Json& object, std::string_view name) {
    const Json* value = object.find(name);
    if (value == nullptr || !value->is_number()) return 0;
    const auto count = value->as_int();
    if (!count || *count < 0) return 0;
    return static_cast<TokenCount>(
        std::min<std::int64_t>(*count, std::numeric_limits<TokenCount>::max()));
}

model::Usage read_usage(const Json& from) {
    model::Usage usage;
    usage.prompt_tokens = count_of(from, "prompt_tokens");
    usage.completion_tokens = count_of(from, "completion_tokens");
    if (const Json* details = from.find("prompt_tokens_details"))
        usage.cached_tokens = count_of(*details, "cached_tokens");
    if (usage.cached_tokens == 0)
        usage.cached_tokens = count_of(from, "prompt_cache_hit_tokens");  // DeepSeek
    usage.cached_tokens = std::min(usage.cached_tokens, usage.prompt_tokens);
    if (const Json* details = from.find("completion_tokens_details")) {
        usage.reasoning_tokens = count_of(*details, "reasoning_tokens");
    }
    return usage;
}

// nullopt: a reason that means the answer is broken ("error", "abort", unknown ones: A26, A30).
std::optional<model::FinishReason> finish_reason(std::string_view name) {
    if (name == "stop" || name == "eos" || name == "eos_token" || name == "stop_sequence" ||
        name == "end_turn") {
        return model::FinishReason::kStop;
    }
    if (name == "length" || name == "max_tokens") return model::FinishReason::kLength;
    if (name == "tool_calls" || name == "function_call") return model::FinishReason::kToolCalls;
    if (name == "content_filter") return model::FinishReason::kContentFilter;
    return std::nullopt;
}

std::string token_bytes(const Json& entry) {
    const Json* bytes = entry.find("bytes");
    if (bytes != nullptr && bytes->is_array()) {
        std::string out;
        for (const Json& b : bytes->as_array()) {
            const auto value = b.is_number() ? b.as_int() : std::nullopt;
            if (!value || *value < 0 || *value > 255) return std::string(string_of(entry, "token"));
            out.push_back(static_cast<char>(*value));
        }
        return out;
    }
    return std::string(string_of(entry, "token"));
}

float logprob_of(const Json& value) {
    return value.is_number() ? static_cast<float>(value.as_double())
                             : std::numeric_limits<float>::quiet_NaN();
}

// "bytes:\xe4\xbd" -> its bytes (completions).
std::string unprintable_token(std::string_view token) {
    constexpr std::string_view kMark = "bytes:";
    if (!token.starts_with(kMark)) return std::string(token);
    std::string out;
    for (std::string_view rest = token.substr(kMark.size()); !rest.empty(); rest.remove_prefix(4)) {
        const auto digit = [](char c) {
            return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        };
        if (rest.size() < 4 || rest[0] != '\\' || rest[1] != 'x' || digit(rest[2]) < 0 ||
            digit(rest[3]) < 0)
            return std::string(token);
        out.push_back(static_cast<char>(digit(rest[2]) * 16 + digit(rest[3])));
    }
    return out;
}

std::vector<model::TokenLogprob> read_chat_logprobs(const Json& content) {
    std::vector<model::TokenLogprob> out;
    if (!content.is_array()) return out;
    for (const Json& entry : content.as_array()) {
        const Json* logprob = entry.find("logprob");
        model::TokenLogprob token{
            -1, logprob == nullptr ? 0.0f : logprob_of(*logprob), token_bytes(entry), {}};
        if (const Json* top = given(entry, "top_logprobs"); top != nullptr && top->is_array()) {
            for (const Json& alternative : top->as_array()) {
                const Json* value = alternative.find("logprob");
                token.top.push_back(
                    {-1, value == nullptr ? 0.0f : logprob_of(*value), token_bytes(alternative)});
            }
        }
        out.push_back(std::move(token));
    }
    return out;
}

std::vector<model::TokenLogprob> read_completion_logprobs(const Json& from) {
    std::vector<model::TokenLogprob> out;
    const Json* tokens = given(from, "tokens");
    const Json* logprobs = given(from, "token_logprobs");
    const Json* top = given(from, "top_logprobs");
    if (tokens == nullptr || !tokens->is_array()) return out;
    for (std::size_t i = 0; i < tokens->size(); ++i) {
        const Json& token = tokens->as_array()[i];
        const bool has = logprobs != nullptr && logprobs->is_array() && i < logprobs->size();
        model::TokenLogprob entry{
            -1,
            has ? logprob_of(logprobs->as_array()[i]) : 0.0f,
            token.is_string() ? unprintable_token(token.as_string()) : std::string(),
            {}};
        if (top != nullptr && top->is_array() && i < top->size() &&
            top->as_array()[i].is_object()) {
            for (const auto& [name, value] : top->as_array()[i].as_object()) {
                entry.top.push_back({-1, logprob_of(value), unprintable_token(name)});
            }
        }
        out.push_back(std::move(entry));
    }
    return out;
}

std::vector<model::TokenLogprob> read_logprobs(const Json& choice) {
    const Json* logprobs = given(choice, "logprobs");
    if (logprobs == nullptr) return {};
    if (const Json* content = given(*logprobs, "content")) return read_chat_logprobs(*content);
    return read_completion_logprobs(*logprobs);
}

std::vector<model::TokenLogprob> read_refusal_logprobs(const Json& choice) {
    const Json* logprobs = given(choice, "logprobs");
    const Json* refusal = logprobs == nullptr ? nullptr : given(*logprobs, "refusal");
    if (refusal == nullptr) return {};
    return read_chat_logprobs(*refusal);
}

// What a message, or a delta of one, says, in its order.
struct Piece {
    enum class Kind : std::uint8_t { kReasoning, kText, kRefusal } kind;
    std::string text;
};

void add_piece(Piece::Kind kind, std::string_view text, std::vector<Piece>& out) {
    if (text.empty()) return;
    if (out.empty() || out.back().kind != kind) out.push_back({kind, {}});
    out.back().text += text;
}

// A string, or parts: Mistral's servers say the content in parts, thoughts among them, as parts
// again.
void read_parts(const Json& content, Piece::Kind kind, std::vector<Piece>& out) {
    if (content.is_string()) add_piece(kind, content.as_string(), out);
    if (!content.is_array()) return;
    for (const Json& part : content.as_array()) {
        if (part.is_string()) add_piece(kind, part.as_string(), out);
        if (!part.is_object()) continue;
        add_piece(kind, string_of(part, "text"), out);
        add_piece(Piece::Kind::kRefusal, string_of(part, "refusal"), out);
        if (const Json* thoughts = given(part, "thinking"))
            read_parts(*thoughts, Piece::Kind::kReasoning, out);
    }
}

std::vector<Piece> read_pieces(const Json& message) {
    std::vector<Piece> out;
    std::string_view reasoning = string_of(message, "reasoning_content");
    if (reasoning.empty()) reasoning = string_of(message, "reasoning");  // newer vLLM
    add_piece(Piece::Kind::kReasoning, reasoning, out);
    if (const Json* content = given(message, "content"))
        read_parts(*content, Piece::Kind::kText, out);
    if (const Json* refusal = given(message, "refusal"))
        read_parts(*refusal, Piece::Kind::kRefusal, out);
    return out;
}

std::vector<Piece> text_of_completion(const Json& choice) {
    std::vector<Piece> out;
    add_piece(Piece::Kind::kText, string_of(choice, "text"), out);
    return out;
}

// The pieces of a choice as events; logprobs go with the first piece that they are of.
void say(std::uint32_t choice, std::vector<Piece> pieces, std::vector<model::TokenLogprob> logprobs,
         std::vector<model::TokenLogprob> of_refusal, std::vector<model::Event>& out) {
    const auto has = [&](Piece::Kind kind) {
        return std::ranges::find(pieces, kind, &Piece::kind) != pieces.end();
    };
    // Some servers give those of a refusal as the content's.
    if (of_refusal.empty() && has(Piece::Kind::kRefusal) && !has(Piece::Kind::kText))
        of_refusal = std::exchange(logprobs, {});
    if (!logprobs.empty() && !has(Piece::Kind::kText)) pieces.push_back({Piece::Kind::kText, {}});
    if (!of_refusal.empty() && !has(Piece::Kind::kRefusal))
        pieces.push_back({Piece::Kind::kRefusal, {}});
    for (Piece& piece : pieces) {
        if (piece.kind == Piece::Kind::kReasoning) {
            out.emplace_back(model::ReasoningDelta{choice, std::move(piece.text), 1});
            continue;
        }
        const bool refusal = piece.kind == Piece::Kind::kRefusal;
        std::vector<model::TokenLogprob> mine = std::exchange(refusal ? of_refusal : logprobs, {});
        const auto tokens = static_cast<std::uint32_t>(mine.empty() ? 1 : mine.size());
        out.emplace_back(
            model::TextDelta{choice, std::move(piece.text), std::move(mine), tokens, refusal});
    }
}

std::string limited(std::string_view text) {
    return std::string(text.substr(0, complete_utf8_prefix(text.substr(0, kMaxMessageBytes))));
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> words) {
    return std::ranges::any_of(
        words, [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

struct BackendError {
    std::string message;
    std::string code;  // OpenAI's string, or the type; an int code as digits
    std::string param;
};

// {"error":{...}}, {"error":"text"}, vLLM's old {"object":"error","message"}, FastAPI's
// {"detail":...}, or anything.
BackendError describe(const Json& body) {
    BackendError out;
    const Json* error = given(body, "error");
    const Json& from = error != nullptr && error->is_object() ? *error : body;
    out.message = string_of(from, "message");
    if (out.message.empty() && error != nullptr && error->is_string())
        out.message = error->as_string();
    if (out.message.empty()) out.message = string_of(body, "detail");
    if (const Json* code = given(from, "code"))
        out.code = code->is_string() ? code->as_string() : code->dump();
    if (out.code.empty()) out.code = string_of(from, "type");
    out.param = string_of(from, "param");
    out.message = limited(out.message);
    return out;
}

bool means_context_length(const BackendError& e) {
    return e.code == "context_length_exceeded" || e.code == "exceed_context_size_error" ||
           contains_any(e.message, {"maximum context length", "context length", "context window",
                                    "exceeds the available context"});
}

// As the SDKs test it: a null, false, zero or empty `error` is none.
bool is_error(const Json& body) {
    if (string_of(body, "object") == "error") return true;
    const Json* error = given(body, "error");
    if (error == nullptr) return false;
    if (error->is_string()) return !error->as_string().empty();
    if (error->is_object() || error->is_array()) return error->size() != 0;
    return *error != Json(false) && *error != Json(0);
}

Error error_of_status(int status, const BackendError& e, const std::string& message) {
    switch (status) {
        case 400:
        case 422:
            if (means_context_length(e)) return {Code::kContextLength, message, e.param};
            if (e.code == "unsupported_parameter" || e.code == "unsupported_value")
                return {Code::kUnsupported, message, e.param};
            return {Code::kInvalidArgument, message, e.param};
        case 401:
        case 403:
            return {Code::kConfig, "the backend refused our credential", {}};
        case 404:
            return {Code::kNotFound, message, e.code == "model_not_found" ? "model" : e.param};
        case 409:
            return {Code::kConflict, message, e.param};
        case 413:
            return {Code::kTooLarge, message, e.param};
        case 429:
            return {Code::kRateLimited, message, {}};
        case 408:  // as 503: it could not take the request in just now
        case 503:
            return {Code::kOverloaded, message, {}};
        case 504:
            return {Code::kDeadlineExceeded, message, {}};
        default:
            break;
    }
    if (status >= 400 && status < 500) return {Code::kInvalidArgument, message, e.param};
    return {Code::kUnavailable, message, {}};
}

// An error inside a stream that began with 200: its own words decide, else the work is lost.
Error error_of_frame(const Json& body) {
    const BackendError e = describe(body);
    const std::string message = e.message.empty() ? "the backend broke the stream off" : e.message;
    if (means_context_length(e)) return {Code::kContextLength, message, e.param};
    if (e.code == "rate_limit_exceeded") return {Code::kRateLimited, message, e.param};
    if (e.code == "overloaded") return {Code::kOverloaded, message, e.param};
    if (contains_any(e.code, {"invalid", "unsupported", "BadRequest"}))
        return {Code::kInvalidArgument, message, e.param};
    int status = 0;
    std::from_chars(e.code.data(), e.code.data() + e.code.size(), status);
    if ((status >= 400 && status < 500) || status == 503 || status == 504)
        return error_of_status(status, e, message);
    return {Code::kWorkerLost, message, e.param};
}

}  // namespace

// ---------------------------------------------------------------- lines and events of SSE

void StreamReader::feed(std::string_view bytes, std::vector<model::Event>& out) {
    while (!bytes.empty() && !ended_) {
        const void* found = std::memchr(bytes.data(), '\n', bytes.size());
        if (found == nullptr) {
            buffer_.append(bytes);
            if (buffer_.size() > kMaxLineBytes)
                fail({Code::kCorrupt, "a line of the backend's stream is too long", {}}, out);
            return;
        }
        const auto size = static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data());
        if (buffer_.empty()) {
            line(bytes.substr(0, size), out);
        } else {
            buffer_.append(bytes.substr(0, size));
            const std::string whole = std::move(buffer_);
            buffer_.clear();
            line(whole, out);
        }
        bytes.remove_prefix(size + 1);
    }
}

void StreamReader::line(std::string_view line, std::vector<model::Event>& out) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("data:")) {
        line.remove_prefix(5);
        while (line.starts_with(' ')) line.remove_prefix(1);
        // Servers of this dialect write one line per event. It is read at once: some forget the
        // empty line after it.
        if (!line.empty()) data(line, out);
        return;
    }
    // Empty lines, comments (": keep-alive"), event:, id:, retry: mean nothing here. A server that
    // answers 200 with plain JSON instead of a stream sends its error, or its whole answer, as such
    // a line.
    while (line.starts_with(' ')) line.remove_prefix(1);
    if (line.starts_with('{') && !started_) {
        for (model::Event& event : read_response(line)) {
            if (std::holds_alternative<model::Done>(event) ||
                std::holds_alternative<model::Failed>(event))
                ended_ = true;
            out.push_back(std::move(event));
        }
    }
}

void StreamReader::data(std::string_view json, std::vector<model::Event>& out) {
    if (json.starts_with("[DONE]")) {  // as the SDKs test it
        done(out);
        return;
    }
    if (like_the_last(json, out)) return;
    const auto parsed = Json::parse(json);
    if (!parsed.ok()) {
        fail({Code::kCorrupt, "the backend sent a chunk that is not JSON", {}}, out);
        return;
    }
    if (is_error(*parsed)) {
        fail(error_of_frame(*parsed), out);
        return;
    }
    start(out);
    const std::size_t before = out.size();
    if (const Json* usage = given(*parsed, "usage"); usage != nullptr && usage->is_object())
        usage_ = read_usage(*usage);
    const Json* choices = given(*parsed, "choices");
    if (choices == nullptr || !choices->is_array()) return;  // A13: an empty list is legal, too
    for (const Json& c : choices->as_array()) {
        choice(c, out);
        if (ended_) return;
    }
    // What is half a call says nothing yet, but is no text either.
    const bool calls = std::ranges::any_of(choices->as_array(), [](const Json& c) {
        const Json* delta = given(c, "delta");
        return delta != nullptr && given(*delta, "tool_calls") != nullptr;
    });
    if (!calls) learn(json, out, before);
}

// ---------------------------------------------------------------- the quick way

namespace {

// Appends the text of a JSON string's inside, or returns false when it holds what the quick way
// leaves to the parser.
bool append_unescaped(std::string_view inside, std::string& out) {
    while (!inside.empty()) {
        std::size_t run = 0;
        while (run < inside.size() && inside[run] != '\\' && inside[run] != '"' &&
               static_cast<unsigned char>(inside[run]) >= 0x20)
            ++run;
        out.append(inside.substr(0, run));
        inside.remove_prefix(run);
        if (inside.empty()) return true;
        if (inside.size() < 2 || inside[0] != '\\') return false;
        switch (inside[1]) {
            case 'n':
                out += '\n';
                break;
            case 't':
                out += '\t';
                break;
            case 'r':
                out += '\r';
                break;
            case '"':
                out += '"';
                break;
            case '\\':
                out += '\\';
                break;
            case '/':
                out += '/';
                break;
            default:
                return false;  // \u and errors
        }
        inside.remove_prefix(2);
    }
    return true;
}

constexpr std::string_view kContentKey = "\"content\":";
constexpr std::string_view kTextKey = "\"text\":";

// Where the one string after `key` begins and ends in `json`; nullopt when the key occurs not
// exactly once. A key found so is a real one: inside a JSON string its quotes would be escaped.
std::optional<std::pair<std::size_t, std::size_t>> only_string_after(std::string_view json,
                                                                     std::string_view key) {
    const std::size_t at = json.find(key);
    if (at == std::string_view::npos || json.find(key, at + 1) != std::string_view::npos)
        return std::nullopt;
    std::size_t begin = at + key.size();
    while (begin < json.size() && json[begin] == ' ') ++begin;
    if (begin >= json.size() || json[begin] != '"') return std::nullopt;
    std::size_t end = ++begin;
    while (end < json.size() && json[end] != '"') end += json[end] == '\\' ? 2 : 1;
    if (end >= json.size()) return std::nullopt;
    return std::pair(begin, end);
}

}  // namespace

// A chunk that equals the learned one in all but the text between prefix and suffix has the same
// meaning: the prefix ends with the opening quote of the text, the suffix begins with the closing
// one, and the inside is checked to hold no quote.
bool StreamReader::like_the_last(std::string_view json, std::vector<model::Event>& out) {
    if (like_prefix_.empty() || json.size() <= like_prefix_.size() + like_suffix_.size())
        return false;
    if (!json.starts_with(like_prefix_) || !json.ends_with(like_suffix_)) return false;
    const std::string_view inside =
        json.substr(like_prefix_.size(), json.size() - like_prefix_.size() - like_suffix_.size());
    if (like_choice_ >= choices_.size() || choices_[like_choice_].ended || !is_valid_utf8(inside))
        return false;
    model::TextDelta delta{.choice = like_choice_, .text = {}, .logprobs = {}, .tokens = 1};
    if (!append_unescaped(inside, delta.text) || delta.text.empty()) return false;
    out.emplace_back(std::move(delta));
    return true;
}

void StreamReader::learn(std::string_view json, const std::vector<model::Event>& out,
                         std::size_t before) {
    if (out.size() - before != 1) return;
    const auto* delta = std::get_if<model::TextDelta>(&out[before]);
    if (delta == nullptr || delta->refusal || !delta->logprobs.empty()) return;
    auto place = only_string_after(json, kContentKey);
    if (!place) place = only_string_after(json, kTextKey);
    if (!place) return;
    std::string text;
    if (!append_unescaped(json.substr(place->first, place->second - place->first), text) ||
        text != delta->text)
        return;
    // Running usage inside a chunk changes with each; then the ends differ and the parser reads on.
    like_prefix_ = json.substr(0, place->first);
    like_suffix_ = json.substr(place->second);
    like_choice_ = delta->choice;
}

// ---------------------------------------------------------------- chunks

namespace {

// The stop string that cut a choice: vLLM says it (a number there is a token).
std::string_view stop_string(const Json& choice) { return string_of(choice, "stop_reason"); }

}  // namespace

void StreamReader::start(std::vector<model::Event>& out) {
    if (started_) return;
    started_ = true;
    out.emplace_back(model::Start{});
}

StreamReader::Choice* StreamReader::choice_at(std::uint32_t index, std::vector<model::Event>& out) {
    if (index >= kMaxChoices) {
        fail({Code::kCorrupt, "the backend sent an impossible choice index", {}}, out);
        return nullptr;
    }
    if (index >= choices_.size()) choices_.resize(index + 1);
    choices_[index].seen = true;
    return &choices_[index];
}

void StreamReader::choice(const Json& from, std::vector<model::Event>& out) {
    if (!from.is_object()) return;
    const std::uint32_t index = count_of(from, "index");
    const Choice* state = choice_at(index, out);
    if (state == nullptr) return;
    const Json* delta = given(from, "delta");
    if (delta == nullptr) delta = given(from, "message");  // a server that streams whole messages
    if (state->ended) {
        const Json* calls = delta == nullptr ? nullptr : given(*delta, "tool_calls");
        if (calls != nullptr && calls->is_array()) tool_calls(*calls, index, out);
        return;
    }
    say(index, delta != nullptr ? read_pieces(*delta) : text_of_completion(from),
        read_logprobs(from), read_refusal_logprobs(from), out);
    if (delta != nullptr) {
        if (const Json* calls = given(*delta, "tool_calls"); calls != nullptr && calls->is_array())
            tool_calls(*calls, index, out);
    }
    if (ended_) return;
    const std::string_view reason = string_of(from, "finish_reason");
    if (!reason.empty()) end_choice(index, reason, stop_string(from), out);  // "" is none (A25)
}

void StreamReader::tool_calls(const Json& calls, std::uint32_t index,
                              std::vector<model::Event>& out) {
    for (const Json& from : calls.as_array()) {
        if (!from.is_object()) continue;
        Choice& state = choices_[index];
        const std::string_view id = string_of(from, "id");
        const Json* wire = given(from, "index");
        // Without an index (A17) a fragment with an id begins a call, one without goes on with the
        // last.
        const bool fresh = !id.empty() && (state.calls.empty() || state.calls.back().id != id);
        const auto last = static_cast<std::int64_t>(state.calls.size()) - 1;
        std::int64_t wire_index = fresh ? last + 1 : std::max<std::int64_t>(last, 0);
        if (wire != nullptr && wire->is_number()) wire_index = wire->as_int().value_or(0);
        auto call = std::ranges::find(state.calls, wire_index, &Call::wire_index);
        const bool first = call == state.calls.end();
        if (first && state.calls.size() >= kMaxCalls) {
            fail({Code::kCorrupt, "the backend sent too many tool calls", {}}, out);
            return;
        }
        model::ToolCallDelta delta{.choice = index};
        const Json* body = given(from, "function");
        if (body == nullptr) {
            body = given(from, "custom");
            delta.custom = body != nullptr;
        }
        if (first) {
            std::string unique(id);
            for (int copy = 2;
                 std::ranges::find(state.calls, unique, &Call::id) != state.calls.end() &&
                 !unique.empty();
                 ++copy) {
                unique = fmt::format("{}_{}", id, copy);  // A21
            }
            state.calls.push_back({wire_index, unique});
            call = state.calls.end() - 1;
        }
        if (!call->named && body != nullptr) {
            delta.id = call->id;
            delta.name = string_of(*body, "name");
        }
        if (body != nullptr) {
            const Json* arguments = given(*body, delta.custom ? "input" : "arguments");
            if (arguments != nullptr)
                delta.arguments =
                    arguments->is_string() ? arguments->as_string() : arguments->dump();  // A18
        }
        // A call is told of with its name, which may come after its id and even its arguments.
        if (!call->named && delta.name.empty()) {
            call->before_name += delta.arguments;
            continue;
        }
        const bool begins = !std::exchange(call->named, true);
        if (begins) {
            call->index = state.named++;
            delta.arguments.insert(0, std::exchange(call->before_name, {}));
        }
        delta.index = call->index;
        if (begins || !delta.arguments.empty()) out.emplace_back(std::move(delta));
    }
}

void StreamReader::end_choice(std::uint32_t index, std::string_view name, std::string_view stop,
                              std::vector<model::Event>& out) {
    const auto reason = finish_reason(name);
    if (!reason) {
        const bool busy = name == "insufficient_system_resource";  // DeepSeek
        fail({busy ? Code::kOverloaded : Code::kWorkerLost,
              fmt::format("the backend ended the answer with '{}'", limited(name.substr(0, 64))),
              {}},
             out);
        return;
    }
    choices_[index].ended = true;
    choices_[index].end = {index, *reason, std::string(stop)};
}

void StreamReader::done(std::vector<model::Event>& out) {
    start(out);
    for (std::uint32_t i = 0; i < choices_.size(); ++i) {
        Choice& choice = choices_[i];
        // A call of nothing is text.
        for (Call& call : choice.calls) {
            if (!call.before_name.empty())
                out.emplace_back(
                    model::TextDelta{.choice = i, .text = std::move(call.before_name)});
        }
        if (!choice.ended) choice.end = {i, model::FinishReason::kStop, {}};
        choice.ended = true;
        out.emplace_back(std::move(choice.end));
    }
    if (choices_.empty()) {
        fail({Code::kWorkerLost, "the backend's answer is empty", {}}, out);
        return;
    }
    ended_ = true;
    out.emplace_back(model::Done{usage_});
}

void StreamReader::fail(Error error, std::vector<model::Event>& out) {
    ended_ = true;
    out.emplace_back(model::Failed{std::move(error)});
}

void StreamReader::finish(std::vector<model::Event>& out) {
    if (ended_) return;
    if (!buffer_.empty()) {
        const std::string last = std::move(buffer_);
        buffer_.clear();
        line(last, out);
        if (ended_) return;
    }
    const bool whole = !choices_.empty() && std::ranges::all_of(choices_, &Choice::ended);
    if (whole)
        done(out);
    else
        fail({Code::kWorkerLost, "the backend's stream ended early", {}}, out);
}

// ---------------------------------------------------------------- whole answers

namespace {

std::vector<model::Event> failed(Error error) {
    std::vector<model::Event> out;
    out.emplace_back(model::Failed{std::move(error)});
    return out;
}

void read_calls(const Json& calls, std::uint32_t choice, std::vector<model::Event>& out) {
    std::uint32_t index = 0;
    std::vector<std::string> ids;
    for (const Json& from : calls.as_array()) {
        const Json* body = given(from, "function");
        model::ToolCallDelta delta{.choice = choice, .index = index++};
        if (body == nullptr) {
            body = given(from, "custom");
            delta.custom = body != nullptr;
        }
        if (body == nullptr) continue;
        const std::string id(string_of(from, "id"));
        delta.id = id;
        for (int copy = 2; !id.empty() && std::ranges::find(ids, delta.id) != ids.end(); ++copy)
            delta.id = fmt::format("{}_{}", id, copy);
        ids.push_back(delta.id);
        delta.name = string_of(*body, "name");
        if (const Json* arguments = given(*body, delta.custom ? "input" : "arguments")) {
            delta.arguments = arguments->is_string() ? arguments->as_string() : arguments->dump();
        }
        out.emplace_back(std::move(delta));
    }
}

// False when the choice's finish reason is none that we know; `out` then holds Failed alone.
bool read_choice(const Json& from, std::uint32_t index, std::vector<model::Event>& out) {
    const Json* message = given(from, "message");
    say(index, message != nullptr ? read_pieces(*message) : text_of_completion(from),
        read_logprobs(from), read_refusal_logprobs(from), out);
    if (message != nullptr) {
        if (const Json* calls = given(*message, "tool_calls");
            calls != nullptr && calls->is_array())
            read_calls(*calls, index, out);
    }
    const std::string_view name = string_of(from, "finish_reason");
    const auto reason = name.empty() ? model::FinishReason::kStop : finish_reason(name);
    if (!reason) {
        out = failed(
            {Code::kWorkerLost,
             fmt::format("the backend ended the answer with '{}'", limited(name.substr(0, 64))),
             {}});
        return false;
    }
    out.emplace_back(model::ChoiceEnd{index, *reason, std::string(stop_string(from))});
    return true;
}

bool read_embedding(const Json& from, std::uint32_t position, std::vector<model::Event>& out) {
    model::EmbeddingOut embedding{
        .index = given(from, "index") != nullptr ? count_of(from, "index") : position,
        .values = {}};
    const Json* values = given(from, "embedding");
    if (values == nullptr) return false;
    if (values->is_string()) {
        const auto bytes = base64_decode(values->as_string());
        if (!bytes || bytes->size() % sizeof(float) != 0) return false;
        embedding.values.resize(bytes->size() / sizeof(float));
        if (!bytes->empty()) std::memcpy(embedding.values.data(), bytes->data(), bytes->size());
    } else if (values->is_array()) {
        for (const Json& v : values->as_array())
            embedding.values.push_back(v.is_number() ? static_cast<float>(v.as_double()) : 0.0f);
    } else {
        return false;
    }
    if (embedding.index >= kMaxChoices) return false;
    out.emplace_back(std::move(embedding));
    return true;
}

}  // namespace

std::vector<model::Event> read_response(std::string_view body) {
    // Blank lines before the JSON: DeepSeek's keep-alive while the request is queued.
    const std::size_t begin = body.find_first_not_of(" \t\r\n");
    const auto parsed = Json::parse(body.substr(std::min(begin, body.size())));
    if (!parsed.ok() || !parsed->is_object())
        return failed({Code::kCorrupt, "the backend's answer is not a JSON object", {}});
    if (is_error(*parsed)) return failed(error_of_frame(*parsed));
    std::vector<model::Event> out;
    out.emplace_back(model::Start{});
    const Json* choices = given(*parsed, "choices");
    const Json* data = given(*parsed, "data");
    const Json* list = choices != nullptr ? choices : data;
    if (list == nullptr || !list->is_array() || list->size() == 0) {
        return failed({Code::kCorrupt, "the backend's answer has no choices", {}});
    }
    for (std::uint32_t i = 0; i < list->size(); ++i) {
        const Json& entry = list->as_array()[i];
        if (choices == nullptr) {
            if (!read_embedding(entry, i, out))
                return failed({Code::kCorrupt, "the backend's embeddings are malformed", {}});
            continue;
        }
        const std::uint32_t index = given(entry, "index") != nullptr ? count_of(entry, "index") : i;
        if (index >= kMaxChoices)
            return failed({Code::kCorrupt, "the backend sent an impossible choice index", {}});
        if (!read_choice(entry, index, out)) return out;
    }
    model::Usage usage;
    if (const Json* from = given(*parsed, "usage"); from != nullptr && from->is_object())
        usage = read_usage(*from);
    out.emplace_back(model::Done{usage});
    return out;
}

Error read_error(int status, std::string_view body) {
    const std::size_t begin = body.find_first_not_of(" \t\r\n");
    const auto parsed = Json::parse(body.substr(std::min(begin, body.size())));
    BackendError e;
    if (parsed.ok() && parsed->is_object()) e = describe(*parsed);
    const std::string message =
        e.message.empty() ? fmt::format("the backend answered with status {}", status) : e.message;
    return error_of_status(status, e, message);
}

}  // namespace nereid::dialect::chat
