#include "dialect/chat/mirror.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "dialect/chat/chat.h"
#include "dialect/chat/random_chat.h"
#include "dialect/chat/transcript.h"

namespace nereid::dialect::chat {
namespace {

using model::Event;

// ---------------------------------------------------------------- requests

// Every field that the wire carries, as text: equal texts are equal requests.
std::string describe(const model::Request& r) {
    std::string out;
    JsonWriter w(out);
    const auto optional = [&w](const auto& value) {
        if (value)
            w.value(*value);
        else
            w.null();
    };
    w.begin_array().value(static_cast<int>(r.endpoint)).value(r.model);
    for (const model::Message& m : r.messages) {
        w.begin_array()
            .value(static_cast<int>(m.role))
            .value(m.reasoning)
            .value(m.tool_call_id)
            .value(m.name);
        for (const model::Part& part : m.parts) {
            w.value(static_cast<int>(part.index()));
            if (const auto* text = std::get_if<model::TextPart>(&part)) w.value(text->text);
            if (const auto* text = std::get_if<model::RefusalPart>(&part)) w.value(text->text);
            if (const auto* i = std::get_if<model::ImagePart>(&part))
                w.value(i->url).value(i->bytes).value(i->media_type).value(i->detail);
        }
        for (const model::ToolCall& c : m.tool_calls) {
            w.begin_array()
                .value(c.id)
                .value(c.name)
                .value(c.arguments)
                .value(c.name_space)
                .value(c.custom)
                .end_array();
        }
        w.end_array();
    }
    for (const auto& prompt : r.prompts) {
        w.begin_array();
        if (const auto* text = std::get_if<std::string>(&prompt))
            w.value(*text);
        else
            for (const TokenId id : std::get<std::vector<TokenId>>(prompt)) w.value(id);
        w.end_array();
    }
    const auto& s = r.sampling;
    w.value(r.suffix);
    optional(s.temperature), optional(s.top_p), optional(s.top_k), optional(s.min_p),
        optional(s.frequency_penalty);
    optional(s.presence_penalty), optional(s.repetition_penalty), optional(s.seed),
        optional(r.max_output_tokens);
    for (const auto& [id, bias] : s.logit_bias) w.value(id).value(bias);
    w.value(r.n);
    for (const auto& stop : r.stop) w.value(stop);
    for (const TokenId id : r.stop_token_ids) w.value(id);
    w.value(r.ignore_eos)
        .value(r.logprobs)
        .value(r.top_logprobs)
        .value(r.echo)
        .value(r.stream)
        .value(r.include_usage);
    for (const model::Tool& t : r.tools) {
        w.begin_array()
            .value(t.name)
            .value(t.description)
            .value(t.parameters)
            .value(t.strict)
            .value(t.custom)
            .value(t.format)
            .end_array();
    }
    w.value(static_cast<int>(r.tool_choice.kind)).value(r.tool_choice.name);
    for (const auto& name : r.tool_choice.allowed) w.value(name);
    w.value(r.parallel_tool_calls)
        .value(static_cast<int>(r.format.kind))
        .value(r.format.name)
        .value(r.format.schema);
    w.value(r.format.strict)
        .value(r.format.source)
        .value(r.format.syntax)
        .value(r.reasoning_effort)
        .value(r.template_args);
    w.value(r.add_generation_prompt)
        .value(r.user)
        .value(r.affinity_key)
        .value(r.metadata)
        .value(r.encoding_format);
    optional(r.dimensions);
    w.end_array();
    return out;
}

Result<model::Request> parse_as(model::Endpoint endpoint, const Json& body) {
    const ParseLimits limits{.suffix = true};
    if (endpoint == model::Endpoint::kCompletions) return parse_completion(body, limits);
    if (endpoint == model::Endpoint::kEmbeddings) return parse_embeddings(body, limits);
    return parse_chat(body, limits);
}

TEST(Mirror, RandomRequestsComeBackTheSame) {
    RandomChat random(1);
    for (int i = 0; i < 1500; ++i) {
        const model::Request request = random.request();
        const auto written = write_request(request, request.model);
        ASSERT_TRUE(written.ok()) << written.error().message;
        const auto json = Json::parse(written->body);
        ASSERT_TRUE(json.ok()) << json.error().message << "\n" << written->body;
        const auto parsed = parse_as(request.endpoint, *json);
        ASSERT_TRUE(parsed.ok()) << parsed.error().message << "\n" << written->body;
        ASSERT_EQ(describe(*parsed), describe(request)) << written->body;
        EXPECT_TRUE(parsed->ignored_fields.empty()) << written->body;
    }
}

TEST(Mirror, A50_StreamsAlwaysAskForUsage) {
    model::Request request;
    request.messages.push_back({.role = model::Role::kUser, .parts = {model::TextPart{"x"}}});
    request.stream = true;
    const auto written = write_request(request, "other");
    EXPECT_EQ(written->path, "/v1/chat/completions");
    EXPECT_EQ(
        written->body,
        R"({"model":"other","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true}})");
}

TEST(Mirror, SaysWhatTheWireCannotCarry) {
    model::Request request;
    request.format.kind = model::OutputFormat::Kind::kGrammar;
    request.format.syntax = "lark";
    EXPECT_EQ(write_request(request, "m").code(), Code::kUnsupported);
    request.format = {};
    request.tools.push_back(
        {.name = "f", .description = "", .parameters = {}, .format = {}, .name_space = "ns"});
    EXPECT_EQ(write_request(request, "m").error().param, "tools");
}

// ---------------------------------------------------------------- streams

std::vector<Event> read_in_pieces(std::string_view stream, std::size_t first, std::size_t size) {
    StreamReader reader;
    std::vector<Event> events;
    reader.feed(stream.substr(0, first), events);
    stream.remove_prefix(std::min(first, stream.size()));
    while (!stream.empty()) {
        const std::size_t n = std::min(size, stream.size());
        reader.feed(stream.substr(0, n), events);
        stream.remove_prefix(n);
    }
    reader.finish(events);
    EXPECT_TRUE(reader.ended());
    return events;
}

std::vector<Event> read_stream(std::string_view stream) {
    return read_in_pieces(stream, stream.size(), 1);
}

ResponseMeta meta(model::Endpoint endpoint, bool logprobs) {
    ResponseMeta m;
    m.id = "chatcmpl-1";
    m.model = "m";
    m.created = 1700000000;
    m.include_usage = true;
    m.logprobs = logprobs;
    m.endpoint = endpoint;
    return m;
}

TEST(Mirror, RandomAnswersComeBackTheSameThroughTheStream) {
    RandomChat random(2);
    for (int i = 0; i < 300; ++i) {
        const bool logprobs = i % 3 == 0;
        const bool chat = i % 4 != 0;
        const std::vector<Event> events = random.answer(logprobs, chat);
        StreamEncoder encoder(
            meta(chat ? model::Endpoint::kChat : model::Endpoint::kCompletions, logprobs));
        std::string stream;
        for (const Event& event : events) encoder.on(event, stream);
        const std::string expected = to_text(normal_form(events));
        ASSERT_EQ(to_text(normal_form(read_stream(stream))), expected) << stream;
        ASSERT_EQ(to_text(normal_form(read_in_pieces(stream, 0, 1 + random.rng.below(9)))),
                  expected)
            << stream;
    }
}

TEST(Mirror, EverySplitPoint) {
    RandomChat random(3);
    for (int compared = 0; compared < 3;) {
        const bool logprobs = compared == 0;
        const std::vector<Event> events = random.answer(logprobs, true);
        StreamEncoder encoder(meta(model::Endpoint::kChat, logprobs));
        std::string stream;
        for (const Event& event : events) encoder.on(event, stream);
        if (stream.size() < 1200 || stream.size() > 2400) continue;  // the cost is its square
        const std::string expected = to_text(normal_form(events));
        for (std::size_t at = 0; at <= stream.size(); ++at) {
            ASSERT_EQ(to_text(normal_form(read_in_pieces(stream, at, stream.size()))), expected)
                << at;
        }
        ++compared;
    }
}

// Order across choices is free in a whole answer, and neighbouring texts of a choice are one:
// compare choice by choice.
std::string by_choice(const std::vector<Event>& events) {
    std::vector<Event> out;
    const auto choice_of = [](const Event& event) {
        return std::visit(
            [](const auto& e) -> std::int64_t {
                if constexpr (requires { e.choice; })
                    return e.choice;
                else
                    return 1 << 20;
            },
            event);
    };
    // Reasoning, then text, a refusal, calls, the end.
    const auto kind_of = [](const Event& event) {
        const auto* text = std::get_if<model::TextDelta>(&event);
        return std::holds_alternative<model::ReasoningDelta>(event)  ? 0
               : text != nullptr                                     ? (text->refusal ? 2 : 1)
               : std::holds_alternative<model::ToolCallDelta>(event) ? 3
                                                                     : 4;
    };
    for (std::int64_t c : {0, 1, 2, 1 << 20}) {
        for (int kind = 0; kind < 5; ++kind) {
            for (const Event& event : events) {
                if (choice_of(event) == c && kind_of(event) == kind) out.push_back(event);
            }
        }
    }
    return to_text(normal_form(out));
}

TEST(Mirror, A35_RandomAnswersComeBackTheSameThroughTheBody) {
    RandomChat random(4);
    for (int i = 0; i < 300; ++i) {
        const bool logprobs = i % 3 == 0;
        const bool chat = i % 4 != 0;
        const std::vector<Event> events = random.answer(logprobs, chat);
        Collector collector(
            meta(chat ? model::Endpoint::kChat : model::Endpoint::kCompletions, logprobs));
        for (const Event& event : events) collector.on(event);
        const auto body = collector.body();
        if (std::holds_alternative<model::Failed>(events.back())) {
            EXPECT_EQ(body.error(), std::get<model::Failed>(events.back()).error);
            continue;
        }
        ASSERT_TRUE(body.ok()) << body.error().message;
        ASSERT_EQ(by_choice(read_response("\n \n" + *body)), by_choice(events)) << *body;
    }
}

TEST(Mirror, EmbeddingsComeBackTheSame) {
    for (const char* format : {"float", "base64"}) {
        ResponseMeta m = meta(model::Endpoint::kEmbeddings, false);
        m.encoding_format = format;
        Collector collector(m);
        const std::vector<Event> events = {
            model::Start{}, model::EmbeddingOut{0, {0.1f, -3e-8f, 1e20f}},
            model::EmbeddingOut{1, {}}, model::Done{{.prompt_tokens = 9}}};
        for (const Event& event : events) collector.on(event);
        EXPECT_EQ(to_text(normal_form(read_response(*collector.body()))),
                  to_text(normal_form(events)));
    }
}

std::string chunk(const std::string& choices, const std::string& more = "") {
    return "data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"choices\":" + choices +
           more + "}\n\n";
}
const std::string kText = chunk(R"([{"index":0,"delta":{"content":"Hi"},"finish_reason":null}])");
const std::string kEnd = chunk(R"([{"index":0,"delta":{},"finish_reason":"stop"}])");
const std::string kDone = "data: [DONE]\n\n";

std::string seen(const std::string& stream) { return to_text(normal_form(read_stream(stream))); }
Error failure(const std::string& stream) {
    const auto events = read_stream(stream);
    const auto* failed = events.empty() ? nullptr : std::get_if<model::Failed>(&events.back());
    return failed == nullptr ? Error{Code::kCancelled, "it did not fail", {}} : failed->error;
}
const std::string kPlain = seen(kText + kEnd + kDone);

TEST(StreamReader, A13_EmptyChoicesAreLegal) {
    EXPECT_EQ(
        seen(chunk("[]", R"(,"prompt_filter_results":[])") + kText + kEnd + chunk("[]") + kDone),
        kPlain);
    const auto events = read_stream(
        kText + kEnd +
        chunk(
            "[]",
            R"(,"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}})") +
        kDone);
    EXPECT_EQ(std::get<model::Done>(events.back()).usage.prompt_tokens, 5u);
    EXPECT_EQ(std::get<model::Done>(events.back()).usage.cached_tokens, 3u);
    EXPECT_EQ(seen(kText + kEnd + chunk("null") + "data: {}\n\n" + kDone), kPlain);
}

TEST(StreamReader, A25_EmptyOrMissingFinishReasonIsNone) {
    EXPECT_EQ(
        seen(chunk(R"([{"index":0,"delta":{"content":"Hi"},"finish_reason":""}])") + kEnd + kDone),
        kPlain);
    EXPECT_EQ(seen(chunk(R"([{"index":0,"delta":{"content":"Hi"}}])") + kEnd + kDone), kPlain);
    EXPECT_EQ(seen(kText + kDone), kPlain);  // [DONE] is the server's word that it is through
}

TEST(StreamReader, A30_UnknownFinishReasonsAreErrors) {
    for (const char* reason : {"error", "abort", "made_up"}) {
        const Error error = failure(
            kText +
            chunk(R"([{"index":0,"delta":{},"finish_reason":")" + std::string(reason) + "\"}]") +
            kDone);
        EXPECT_EQ(error.code, Code::kWorkerLost);
        EXPECT_NE(error.message.find(reason), std::string::npos);
    }
    EXPECT_EQ(
        failure(chunk(R"([{"index":0,"finish_reason":"insufficient_system_resource"}])")).code,
        Code::kOverloaded);
}

TEST(StreamReader, A103_StreamThatBreaksOffIsAFailure) {
    EXPECT_EQ(failure(kText).code, Code::kWorkerLost);
    EXPECT_EQ(failure("").code, Code::kWorkerLost);
    EXPECT_EQ(failure(kText + "data: {\"cho").code, Code::kCorrupt);
    EXPECT_EQ(seen(kText + kEnd), kPlain);                   // some leave [DONE] out
    EXPECT_EQ(seen(kText + kEnd + "data: [DONE]"), kPlain);  // or its line end
}

TEST(StreamReader, ErrorFrames) {
    const auto error = [](const std::string& body) {
        return failure(kText + "data: " + body + "\n\n" + kDone);
    };
    EXPECT_EQ(error(R"({"error":{"message":"boom","type":"server_error","code":null}})"),
              (Error{Code::kWorkerLost, "boom", {}}));
    EXPECT_EQ(error(R"({"error":{"message":"x","code":429}})").code, Code::kRateLimited);
    EXPECT_EQ(error(R"({"error":"text"})"), (Error{Code::kWorkerLost, "text", {}}));
    EXPECT_EQ(error(R"({"object":"error","message":"m","code":400})").code, Code::kInvalidArgument);
    EXPECT_EQ(error(R"({"error":{"message":"too long","code":"context_length_exceeded"}})").code,
              Code::kContextLength);
    EXPECT_EQ(error(R"({"error":null})").code, Code::kCancelled) << "a null error is none";
    // 200 with an error as plain JSON instead of a stream.
    EXPECT_EQ(failure("{\"error\":{\"message\":\"m\"}}\n").message, "m");
}

TEST(StreamReader, WhatServersDoToSse) {
    EXPECT_EQ(seen(": keep-alive\n\n" + kText + ":\n\nevent: x\nid: 3\nretry: 5\n" + kEnd + kDone),
              kPlain);
    std::string crlf;
    for (const char c : kText + kEnd + kDone)
        crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
    EXPECT_EQ(seen(crlf), kPlain);
    std::string tight = kText + kEnd + kDone;
    for (std::size_t at = 0; (at = tight.find("data: ", at)) != std::string::npos;)
        tight.erase(at + 5, 1);
    EXPECT_EQ(seen(tight), kPlain);
    EXPECT_EQ(seen(kText + kEnd + kDone + kText), kPlain);  // nothing after the end
}

TEST(StreamReader, ReasoningHasTwoNames) {
    for (const char* name : {"reasoning", "reasoning_content"}) {
        const auto events = read_stream(
            chunk(R"([{"index":0,"delta":{")" + std::string(name) + R"(":"hm"}}])") + kEnd + kDone);
        EXPECT_EQ(std::get<model::ReasoningDelta>(events.at(1)).text, "hm");
    }
}

std::string calls(const std::string& list) {
    return chunk(R"([{"index":0,"delta":{"tool_calls":)" + list + "}}]");
}

TEST(StreamReader, RefusalsAndContentInParts) {
    const std::string refusal =
        R"(data: {"choices":[{"index":0,"delta":{"content":null,"refusal":"I can"}}]})"
        "\n\n"
        R"(data: {"choices":[{"index":0,"delta":{"refusal":"not"},"logprobs":{"content":null,)"
        R"("refusal":[{"token":"not","logprob":-1}]},"finish_reason":"stop"}]})"
        "\n\n";
    const auto events = read_stream(refusal);
    ASSERT_EQ(events.size(), 5u) << to_text(events);
    EXPECT_TRUE(std::get<model::TextDelta>(events[1]).refusal);
    EXPECT_EQ(std::get<model::TextDelta>(events[1]).text, "I can");
    EXPECT_TRUE(std::get<model::TextDelta>(events[2]).refusal);
    ASSERT_EQ(std::get<model::TextDelta>(events[2]).logprobs.size(), 1u);

    // Mistral's servers: thoughts and text as parts.
    constexpr std::string_view kParts =
        R"([{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"Yes"}])";
    const auto streamed = read_stream(fmt::format(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":{}}},\"finish_reason\":\"stop\"}}]}}\n\n",
        kParts));
    const auto whole = read_response(fmt::format(
        R"({{"choices":[{{"message":{{"content":{}}},"finish_reason":"stop"}}]}})", kParts));
    ASSERT_EQ(streamed.size(), 5u) << to_text(streamed);
    EXPECT_EQ(std::get<model::ReasoningDelta>(streamed[1]).text, "hm");
    EXPECT_EQ(std::get<model::TextDelta>(streamed[2]).text, "Yes");
    EXPECT_EQ(to_text(normal_form(whole)), to_text(normal_form(streamed)));
}

// The events between Start and the end.
std::vector<Event> said_in(std::string_view delta) {
    auto events = read_stream(fmt::format(
        "data: {{\"choices\":[{{\"index\":0,{},\"finish_reason\":\"stop\"}}]}}\n\n", delta));
    EXPECT_GE(events.size(), 3u) << delta;
    return {events.begin() + 1, events.end() - 2};
}

TEST(StreamReader, WhateverFormAServerGivesItsWords) {
    const auto refusal = [](const Event& e) { return std::get<model::TextDelta>(e).refusal; };
    for (const char* delta : {R"("delta":{"content":[{"type":"refusal","refusal":"NO"}]})",
                              R"("delta":{"refusal":["NO"]})",
                              R"("delta":{"refusal":[{"type":"refusal","refusal":"NO"}]})"}) {
        const auto said = said_in(delta);
        ASSERT_EQ(said.size(), 1u) << delta;
        EXPECT_TRUE(refusal(said[0]));
        EXPECT_EQ(std::get<model::TextDelta>(said[0]).text, "NO");
    }
    EXPECT_EQ(to_text(normal_form(said_in(R"("delta":{"content":["a","b"]})"))),
              to_text(normal_form(said_in(R"("delta":{"content":"ab"})"))));
    // In their order.
    const auto said = said_in(
        R"("delta":{"content":[{"type":"text","text":"A"},{"type":"thinking","thinking":"B"},)"
        R"({"type":"text","text":"C"}]})");
    ASSERT_EQ(said.size(), 3u);
    EXPECT_EQ(std::get<model::TextDelta>(said[0]).text, "A");
    EXPECT_EQ(std::get<model::ReasoningDelta>(said[1]).text, "B");
    EXPECT_EQ(std::get<model::TextDelta>(said[2]).text, "C");
    // Logprobs of a refusal in the place of the content's.
    const auto misplaced =
        said_in(R"("delta":{"refusal":"NO"},"logprobs":{"content":[{"token":"NO","logprob":-1}]})");
    ASSERT_EQ(misplaced.size(), 1u);
    EXPECT_TRUE(refusal(misplaced[0]));
    EXPECT_EQ(std::get<model::TextDelta>(misplaced[0]).logprobs.size(), 1u);
    for (const char* odd : {R"("delta":{"content":5})", R"("delta":{"content":{},"refusal":[]})",
                            R"("delta":{"content":[null,[],{"thinking":7}]})"})
        EXPECT_TRUE(said_in(odd).empty()) << odd;
}

TEST(StreamReader, HalfACallBesideTextIsNotTakenForText) {
    std::string stream;
    for (const char* piece : {"A", "A", "A"}) {
        stream += fmt::format(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"x\",\"tool_calls\":[{{"
            "\"index\":0,\"id\":\"c\",\"function\":{{\"arguments\":\"{}\"}}}}]}}}}]}}\n\n",
            piece);
    }
    stream +=
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{"
        "\"name\":\"f\",\"arguments\":\"B\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\n";
    std::string arguments;
    for (const Event& event : read_stream(stream)) {
        if (const auto* call = std::get_if<model::ToolCallDelta>(&event))
            arguments += call->arguments;
    }
    EXPECT_EQ(arguments, "AAAB");
}

TEST(StreamReader, A17_A18_A21_A22_ToolCallsOfCarelessServers) {
    const std::string expected = seen(
        calls(
            R"([{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\""}}])") +
        calls(R"([{"index":0,"function":{"arguments":":1}"}}])") +
        calls(R"([{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}])") + kEnd + kDone);
    // No index at all.
    EXPECT_EQ(
        seen(calls(R"([{"id":"a","function":{"name":"f","arguments":"{\"x\""}}])") +
             calls(R"([{"function":{"arguments":":1}"}}])") +
             calls(R"([{"id":"b","function":{"name":"g","arguments":"{}"}}])") + kEnd + kDone),
        expected);
    // Id and name on each fragment; indexes that begin at 5.
    EXPECT_EQ(seen(calls(R"([{"index":5,"id":"a","function":{"name":"f","arguments":"{\"x\""}}])") +
                   calls(R"([{"index":5,"id":"a","function":{"name":"f","arguments":":1}"}}])") +
                   calls(R"([{"index":7,"id":"b","function":{"name":"g","arguments":{}}}])") +
                   kEnd + kDone),
              expected);
    // One id for both calls.
    const auto events = read_stream(
        calls(
            R"([{"index":0,"id":"a","function":{"name":"f"}},{"index":1,"id":"a","function":{"name":"g"}}])") +
        kEnd + kDone);
    EXPECT_EQ(std::get<model::ToolCallDelta>(events.at(1)).id, "a");
    EXPECT_EQ(std::get<model::ToolCallDelta>(events.at(2)).id, "a_2");
}

TEST(StreamReader, A10_ArgumentsAfterTheFinishReasonAreNotLost) {
    const std::string open =
        calls(R"([{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\""}}])");
    const std::string rest = calls(R"([{"index":0,"function":{"arguments":":1}"}}])");
    const std::string end = chunk(R"([{"index":0,"delta":{},"finish_reason":"tool_calls"}])");
    const std::string whole = seen(open + rest + end + kDone);
    EXPECT_EQ(seen(open + end + rest + kDone), whole);
    EXPECT_EQ(seen(open + end + rest), whole);  // the stream just ends
}

TEST(StreamReader, ANameMayComeLate) {
    const std::string whole =
        seen(calls(R"([{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":1}"}}])") +
             kEnd + kDone);
    EXPECT_EQ(
        seen(calls(R"([{"index":0,"id":"a","function":{"arguments":"{\"x\""}}])") +
             calls(R"([{"index":0,"function":{"name":"f","arguments":":1}"}}])") + kEnd + kDone),
        whole);
    // Or never: then what it says is text.
    EXPECT_EQ(seen(kText + calls(R"([{"index":0,"id":"a","function":{"arguments":"Hi"}}])") + kEnd +
                   kDone),
              seen(kText + kText + kEnd + kDone));
}

TEST(StreamReader, TheStopStringOfVllm) {
    const auto stop = [](const std::string& reason) {
        const auto events =
            read_stream(kText +
                        chunk(R"([{"index":0,"delta":{},"finish_reason":"stop","stop_reason":)" +
                              reason + "}]") +
                        kDone);
        return std::get<model::ChoiceEnd>(events.at(events.size() - 2)).stop_sequence;
    };
    EXPECT_EQ(stop("\"END\""), "END");
    EXPECT_EQ(stop("128001"), "");
    EXPECT_EQ(stop("null"), "");
}

TEST(StreamReader, BoundsWhatItKeeps) {
    EXPECT_EQ(failure(chunk(R"([{"index":99999999,"delta":{"content":"x"}}])")).code,
              Code::kCorrupt);
    StreamReader reader;
    std::vector<Event> events;
    const std::string part(1 << 20, 'x');
    for (int i = 0; i < 20 && !reader.ended(); ++i) reader.feed(part, events);
    EXPECT_TRUE(reader.ended());
    EXPECT_EQ(std::get<model::Failed>(events.back()).error.code, Code::kCorrupt);
}

// The quick way (a chunk like the last one) must mean the same as the parser's, also where it must
// not be taken.
TEST(StreamReader, ChunksLikeTheLastOne) {
    const auto text = [](const std::string& raw, const std::string& more = "") {
        return chunk(R"([{"index":0,"delta":{"content":")" + raw + R"("},"finish_reason":null}])",
                     more);
    };
    const auto joined = [&](std::initializer_list<std::string> raws) {
        std::string stream;
        for (const std::string& raw : raws) stream += text(raw);
        std::string out;
        for (const Event& event : read_stream(stream + kEnd + kDone)) {
            if (const auto* delta = std::get_if<model::TextDelta>(&event)) out += delta->text + "|";
            if (const auto* failed = std::get_if<model::Failed>(&event))
                out += std::string(code_info(failed->error.code).name);
        }
        return out;
    };
    EXPECT_EQ(joined({"a", "b", "\\n\\\"\\\\\\/\\t\\r", "\xe4\xbd\xa0", "\\u4f60", "c"}),
              "a|b|\n\"\\/\t\r|\xe4\xbd\xa0|\xe4\xbd\xa0|c|");
    EXPECT_EQ(joined({"a", "", "b"}), "a|b|");
    EXPECT_EQ(joined({"a", "\\ud800"}), "a|corrupt");
    EXPECT_EQ(joined({"a", "\xff"}), "a|corrupt");
    EXPECT_EQ(joined({"a", "\x01"}), "a|corrupt");
    EXPECT_EQ(joined({"a", "x\\"}), "a|corrupt");
    // Text that would close the string and say something else: not the same chunk.
    EXPECT_EQ(joined({"a", R"(x"},"finish_reason":"length"},{"index":1,"delta":{"content":"y)"}),
              "a|x|y|");
    // A choice that has ended stays ended.
    EXPECT_EQ(seen(text("Hi") + kEnd + text("no") + kDone), kPlain);
}

// ---------------------------------------------------------------- whole answers and errors

TEST(ReadResponse, Tolerates) {
    EXPECT_EQ(std::get<model::Failed>(read_response("<html>").at(0)).error.code, Code::kCorrupt);
    EXPECT_EQ(std::get<model::Failed>(read_response("{}").at(0)).error.code, Code::kCorrupt);
    EXPECT_EQ(std::get<model::Failed>(read_response(R"({"choices":[]})").at(0)).error.code,
              Code::kCorrupt);
    EXPECT_EQ(
        std::get<model::Failed>(read_response(R"({"error":{"message":"m"}})").at(0)).error.message,
        "m");
    EXPECT_EQ(
        std::get<model::Failed>(
            read_response(R"({"choices":[{"message":{"content":"x"},"finish_reason":"abort"}]})")
                .at(0))
            .error.code,
        Code::kWorkerLost);
    const auto events =
        read_response(R"({"choices":[{"message":{"content":null},"finish_reason":"stop"}]})");
    EXPECT_EQ(events.size(), 3u);  // Start, ChoiceEnd, Done
}

TEST(ReadResponse, AnErrorWithStatus200) {
    for (const char* body : {R"({"object":"error","message":"too busy","code":503})",
                             R"({"error":{"message":"too busy","code":503}})"}) {
        const auto events = read_response(body);
        ASSERT_EQ(events.size(), 1u) << body;
        EXPECT_EQ(std::get<model::Failed>(events[0]).error.message, "too busy");
        EXPECT_EQ(std::get<model::Failed>(events[0]).error.code, Code::kOverloaded);
    }
    for (const auto& [code, means] : {std::pair{401, Code::kConfig},
                                      {404, Code::kNotFound},
                                      {422, Code::kInvalidArgument},
                                      {500, Code::kWorkerLost}}) {
        const auto events =
            read_response(fmt::format(R"({{"object":"error","message":"no","code":{}}})", code));
        EXPECT_EQ(std::get<model::Failed>(events[0]).error.code, means) << code;
    }
    for (const char* none : {"null", "false", "\"\"", "{}", "[]", "0"}) {
        const auto events = read_response(
            fmt::format(R"({{"error":{},"choices":[{{"message":{{"content":"hi"}}}}]}})", none));
        EXPECT_EQ(events.size(), 4u) << none;
    }
}

TEST(ReadError, KeepsTheMeaning) {
    EXPECT_EQ(read_error(400, R"({"error":{"message":"m","param":"p"}})"),
              (Error{Code::kInvalidArgument, "m", "p"}));
    EXPECT_EQ(
        read_error(
            400,
            R"({"object":"error","message":"This model's maximum context length is 10 tokens","code":400})")
            .code,
        Code::kContextLength);
    EXPECT_EQ(read_error(404, R"({"error":{"message":"m","code":"model_not_found"}})"),
              (Error{Code::kNotFound, "m", "model"}));
    EXPECT_EQ(read_error(429, "").code, Code::kRateLimited);
    EXPECT_EQ(read_error(401, R"({"error":{"message":"Bad key sk-123"}})"),
              (Error{Code::kConfig, "the backend refused our credential", {}}));
    EXPECT_EQ(read_error(413, "").code, Code::kTooLarge);
    EXPECT_EQ(read_error(500, "<html>").code, Code::kUnavailable);
    EXPECT_EQ(read_error(503, R"({"detail":"busy"})"), (Error{Code::kOverloaded, "busy", {}}));
    EXPECT_EQ(read_error(408, "").code, Code::kOverloaded);
    EXPECT_EQ(read_error(418, "").code, Code::kInvalidArgument);
    EXPECT_LE(read_error(400, "{\"error\":{\"message\":\"" + std::string(100'000, 'x') + "\"}}")
                  .message.size(),
              2000u);
}

}  // namespace
}  // namespace nereid::dialect::chat
