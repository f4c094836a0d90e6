#include "dialect/chat/transcript.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "dialect/chat/mirror.h"
#include "dialect/openai_error.h"

namespace nereid::dialect::chat {

// ---------------------------------------------------------------- reading

std::vector<Section> read_sections(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    CHECK_MSG(file.good(), path);
    const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::vector<Section> sections(1);
    for (std::size_t at = 0; at < all.size();) {
        const std::size_t end = std::min(all.find('\n', at), all.size());
        const std::string line = all.substr(at, end - at);
        at = end + 1;
        if (line.starts_with("=== "))
            sections.push_back({line.substr(4), ""});
        else
            sections.back().text += line + "\n";
    }
    return sections;
}

std::vector<std::string> files_in(const std::string& folder, std::string_view suffix) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().string().ends_with(suffix)) files.push_back(entry.path().string());
    }
    std::ranges::sort(files);
    return files;
}

namespace {

std::string text_of(const Json& json, std::string_view name) {
    const Json* value = json.find(name);
    return value == nullptr ? "" : value->as_string();
}
std::uint32_t count_of(const Json& json, std::string_view name) {
    const Json* value = json.find(name);
    return value == nullptr ? 0 : static_cast<std::uint32_t>(value->as_int().value());
}
float number_of(const Json& json, std::string_view name) {
    const Json* value = json.find(name);
    if (value == nullptr || value->is_null()) return std::numeric_limits<float>::quiet_NaN();
    return static_cast<float>(value->as_double());
}
std::string token_of(const Json& json) {
    const Json* bytes = json.find("bytes");
    if (bytes == nullptr) return text_of(json, "token");
    std::string out;
    for (const Json& b : bytes->as_array()) out += static_cast<char>(b.as_int().value());
    return out;
}

std::vector<model::TokenLogprob> logprobs_of(const Json* list) {
    std::vector<model::TokenLogprob> out;
    if (list == nullptr) return out;
    for (const Json& from : list->as_array()) {
        model::TokenLogprob entry{-1, number_of(from, "logprob"), token_of(from), {}};
        if (const Json* top = from.find("top")) {
            for (const Json& t : top->as_array())
                entry.top.push_back({-1, number_of(t, "logprob"), token_of(t)});
        }
        out.push_back(std::move(entry));
    }
    return out;
}

model::FinishReason reason_of(const std::string& name) {
    if (name == "stop") return model::FinishReason::kStop;
    if (name == "length") return model::FinishReason::kLength;
    if (name == "tool_calls") return model::FinishReason::kToolCalls;
    CHECK_MSG(name == "content_filter", name);
    return model::FinishReason::kContentFilter;
}

ResponseMeta meta_of(const Json& json) {
    ResponseMeta meta;
    meta.id = text_of(json, "id");
    meta.model = text_of(json, "model");
    meta.created = count_of(json, "created");
    meta.system_fingerprint = text_of(json, "system_fingerprint");
    const auto flag = [&](std::string_view name) {
        return json.find(name) != nullptr && json.find(name)->as_bool();
    };
    meta.include_usage = flag("include_usage");
    meta.logprobs = flag("logprobs");
    if (json.find("n") != nullptr) meta.n = count_of(json, "n");
    const std::string endpoint = text_of(json, "endpoint");
    if (endpoint == "completions") meta.endpoint = model::Endpoint::kCompletions;
    if (endpoint == "embeddings") meta.endpoint = model::Endpoint::kEmbeddings;
    meta.encoding_format = text_of(json, "encoding_format");
    if (const Json* echo = json.find("echo")) {
        for (const Json& text : echo->as_array()) meta.echo.push_back(text.as_string());
    }
    if (const Json* echo = json.find("echo_logprobs")) {
        for (const Json& list : echo->as_array()) meta.echo_logprobs.push_back(logprobs_of(&list));
    }
    return meta;
}

model::Event event_of(const std::string& name, const Json& json) {
    const std::uint32_t choice = count_of(json, "choice");
    if (name == "start") return model::Start{};
    if (name == "text") {
        return model::TextDelta{choice, text_of(json, "text"), logprobs_of(json.find("logprobs")),
                                count_of(json, "tokens"),
                                json.find("refusal") != nullptr && json.find("refusal")->as_bool()};
    }
    if (name == "reasoning")
        return model::ReasoningDelta{choice, text_of(json, "text"), count_of(json, "tokens")};
    if (name == "call") {
        model::ToolCallDelta call{
            .choice = choice, .index = count_of(json, "index"), .id = text_of(json, "id")};
        call.name = text_of(json, "name");
        call.arguments = text_of(json, "arguments");
        call.custom = json.find("custom") != nullptr && json.find("custom")->as_bool();
        return call;
    }
    if (name == "end")
        return model::ChoiceEnd{choice, reason_of(text_of(json, "reason")),
                                text_of(json, "stop_sequence")};
    if (name == "embedding") {
        model::EmbeddingOut out{.index = count_of(json, "index"), .values = {}};
        for (const Json& v : json.find("values")->as_array())
            out.values.push_back(static_cast<float>(v.as_double()));
        return out;
    }
    if (name == "done") {
        return model::Done{{count_of(json, "prompt_tokens"), count_of(json, "cached_tokens"),
                            count_of(json, "completion_tokens"),
                            count_of(json, "reasoning_tokens")}};
    }
    CHECK_MSG(name == "failed", name);
    return model::Failed{
        {code_from_name(text_of(json, "code")), text_of(json, "message"), text_of(json, "param")}};
}

void write_logprobs(JsonWriter& w, const std::vector<model::TokenLogprob>& list) {
    const auto write_token = [&w](std::string_view bytes, float logprob) {
        w.key("bytes").begin_array();
        for (const char c : bytes) w.value(static_cast<int>(static_cast<unsigned char>(c)));
        w.end_array().member("logprob", logprob);
    };
    w.begin_array();
    for (const auto& entry : list) {
        w.begin_object();
        write_token(entry.bytes, entry.logprob);
        w.key("top").begin_array();
        for (const auto& top : entry.top) {
            w.begin_object();
            write_token(top.bytes, top.logprob);
            w.end_object();
        }
        w.end_array().end_object();
    }
    w.end_array();
}

}  // namespace

Script read_script(const std::string& text) {
    Script script;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        at = end + 1;
        if (line.empty() || line[0] == '#') continue;
        const std::size_t space = line.find(' ');
        CHECK_MSG(space != std::string::npos, line);
        const auto json = Json::parse(line.substr(space + 1));
        CHECK_MSG(json.ok(), line);
        if (line.starts_with("meta "))
            script.meta = meta_of(*json);
        else
            script.events.push_back(event_of(line.substr(0, space), *json));
    }
    return script;
}

std::string to_line(const model::Event& event) {
    std::string out;
    std::string name;
    JsonWriter w(out);
    w.begin_object();
    std::visit(
        [&](const auto& e) {
            using T = std::decay_t<decltype(e)>;
            if constexpr (std::is_same_v<T, model::Start>) name = "start";
            if constexpr (std::is_same_v<T, model::TextDelta>) {
                name = "text";
                w.member("choice", e.choice).member("text", e.text).key("logprobs");
                write_logprobs(w, e.logprobs);
                w.member("tokens", e.tokens);
                if (e.refusal) w.member("refusal", true);
            }
            if constexpr (std::is_same_v<T, model::ReasoningDelta>) {
                name = "reasoning";
                w.member("choice", e.choice).member("text", e.text).member("tokens", e.tokens);
            }
            if constexpr (std::is_same_v<T, model::ToolCallDelta>) {
                name = "call";
                w.member("choice", e.choice)
                    .member("index", e.index)
                    .member("id", e.id)
                    .member("name", e.name);
                w.member("arguments", e.arguments).member("custom", e.custom);
            }
            if constexpr (std::is_same_v<T, model::ChoiceEnd>) {
                name = "end";
                w.member("choice", e.choice)
                    .member("reason", static_cast<int>(e.reason))
                    .member("stop_sequence", e.stop_sequence);
            }
            if constexpr (std::is_same_v<T, model::EmbeddingOut>) {
                name = "embedding";
                w.member("index", e.index).key("values").begin_array();
                for (const float v : e.values) w.value(v);
                w.end_array();
            }
            if constexpr (std::is_same_v<T, model::Done>) {
                name = "done";
                w.member("prompt_tokens", e.usage.prompt_tokens)
                    .member("cached_tokens", e.usage.cached_tokens);
                w.member("completion_tokens", e.usage.completion_tokens)
                    .member("reasoning_tokens", e.usage.reasoning_tokens);
            }
            if constexpr (std::is_same_v<T, model::Failed>) {
                name = "failed";
                w.member("code", code_info(e.error.code).name)
                    .member("message", e.error.message)
                    .member("param", e.error.param);
            }
        },
        event);
    w.end_object();
    return name + " " + out;
}

std::vector<model::Event> normal_form(const std::vector<model::Event>& events) {
    std::vector<model::Event> out;
    // Neighbouring deltas of the same kind and place become one.
    const auto merge = [&out]<class T>(const T& e, auto same, auto append) {
        if (!out.empty()) {
            if (T* last = std::get_if<T>(&out.back()); last != nullptr && same(*last))
                return append(*last);
        }
        out.emplace_back(e);
    };
    for (const model::Event& event : events) {
        if (const auto* t = std::get_if<model::TextDelta>(&event)) {
            model::TextDelta plain = *t;
            plain.tokens = 0;
            merge(
                plain,
                [&](const auto& last) {
                    return last.choice == t->choice && last.refusal == t->refusal;
                },
                [&](auto& last) {
                    last.text += t->text;
                    last.logprobs.insert(last.logprobs.end(), t->logprobs.begin(),
                                         t->logprobs.end());
                });
        } else if (const auto* r = std::get_if<model::ReasoningDelta>(&event)) {
            merge(
                model::ReasoningDelta{r->choice, r->text, 0},
                [&](const auto& last) { return last.choice == r->choice; },
                [&](auto& last) { last.text += r->text; });
        } else if (const auto* c = std::get_if<model::ToolCallDelta>(&event)) {
            merge(
                *c,
                [&](const auto& last) {
                    return last.choice == c->choice && last.index == c->index;
                },
                [&](auto& last) { last.arguments += c->arguments; });
        } else if (!std::holds_alternative<model::Start>(event)) {
            out.push_back(event);
        }
    }
    return out;
}

std::string to_text(const std::vector<model::Event>& events) {
    std::string out;
    for (const model::Event& event : events) out += to_line(event) + "\n";
    return out;
}

// ---------------------------------------------------------------- golden cases

namespace {

constexpr const char* kFolder = "tests/golden/chat";

std::string trimmed(std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
    return text;
}

std::string stream_of(const Script& script) {
    StreamEncoder encoder(script.meta);
    std::string out;
    for (const model::Event& event : script.events) encoder.on(event, out);
    return out;
}

std::string body_of(const Script& script) {
    Collector collector(script.meta);
    for (const model::Event& event : script.events) collector.on(event);
    const auto body = collector.body();
    if (body.ok()) return *body;
    return "error " + std::string(code_info(body.code()).name) + " " + body.error().message;
}

TEST(Golden, Events) {
    const auto files = files_in(kFolder, ".events");
    ASSERT_GE(files.size(), 12u) << "run from the root of the repository";
    for (const std::string& file : files) {
        SCOPED_TRACE(file);
        const auto sections = read_sections(file);
        const Script script = read_script(sections[0].text);
        ASSERT_GE(sections.size(), 2u);
        for (const Section& section : sections) {
            if (section.name == "stream")
                EXPECT_EQ(stream_of(script), trimmed(section.text) + "\n\n");
            if (section.name == "body") EXPECT_EQ(body_of(script), trimmed(section.text));
        }
    }
}

std::string error_text(const Error& error) { return openai_error_body(error); }

TEST(Golden, Requests) {
    const auto files = files_in(kFolder, ".request");
    ASSERT_GE(files.size(), 20u) << "run from the root of the repository";
    for (const std::string& file : files) {
        SCOPED_TRACE(file);
        const auto sections = read_sections(file);
        ASSERT_GE(sections.size(), 3u);
        const auto body = Json::parse(trimmed(sections[1].text));
        ASSERT_TRUE(body.ok()) << body.error().message;
        const auto request = sections[1].name == "chat"         ? parse_chat(*body)
                             : sections[1].name == "completion" ? parse_completion(*body)
                                                                : parse_embeddings(*body);
        if (sections[2].name == "error") {
            ASSERT_FALSE(request.ok()) << "it was accepted";
            EXPECT_EQ(error_text(request.error()), trimmed(sections[2].text));
            continue;
        }
        ASSERT_TRUE(request.ok()) << request.error().message;
        const auto written = write_request(*request, request->model);
        ASSERT_TRUE(written.ok()) << written.error().message;
        const auto expected = Json::parse(trimmed(sections[2].text));
        ASSERT_TRUE(expected.ok()) << expected.error().message << "\nwritten: " << written->body;
        EXPECT_EQ(written->body, expected->dump());
        if (sections.size() > 3) {
            std::string ignored;
            for (const std::string& field : request->ignored_fields) ignored += field + "\n";
            EXPECT_EQ(trimmed(ignored), trimmed(sections[3].text));
        }
    }
}

}  // namespace
}  // namespace nereid::dialect::chat
