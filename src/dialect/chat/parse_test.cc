#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/base64.h"
#include "base/prng.h"
#include "dialect/chat/chat.h"
#include "dialect/chat/endpoint_fields.h"
#include "dialect/openai_error.h"

namespace nereid::dialect::chat {
namespace {

Result<model::Request> parse(const std::string& more, const ParseLimits& limits = {}) {
    const auto json =
        Json::parse(R"({"model":"m","messages":[{"role":"user","content":"x"}])" + more + "}");
    CHECK_MSG(json.ok(), json.error().message);
    return parse_chat(*json, limits);
}

TEST(ParseChat, SeedIsKeptModulo2To64) {
    EXPECT_EQ(parse(R"(,"seed":-1)")->sampling.seed, ~std::uint64_t{0});
    EXPECT_EQ(parse(R"(,"seed":9223372036854775807)")->sampling.seed, 9223372036854775807u);
    EXPECT_EQ(parse(R"(,"seed":7.0)")->sampling.seed, 7u);
    EXPECT_EQ(parse(R"(,"seed":7.5)").error().param, "seed");
    EXPECT_EQ(parse(R"(,"seed":18446744073709551615)").error().param, "seed");
    EXPECT_EQ(parse("")->sampling.seed, std::nullopt);
}

TEST(ParseChat, BoundsAreInclusive) {
    for (const char* ok : {R"("temperature":0)", R"("temperature":2)", R"("top_p":1)",
                           R"("frequency_penalty":-2)", R"("presence_penalty":2.0)", R"("n":16)",
                           R"("top_logprobs":20,"logprobs":true)", R"("top_logprobs":0)",
                           R"("min_p":1)", R"("top_k":-1)", R"("logit_bias":{"1":100,"2":-100})",
                           R"("max_tokens":1)", R"("max_completion_tokens":1)"}) {
        EXPECT_TRUE(parse(std::string(",") + ok).ok()) << ok;
    }
    for (const char* bad : {R"("temperature":-0.1)",
                            R"("temperature":2.01)",
                            R"("top_p":0)",
                            R"("top_p":1.1)",
                            R"("frequency_penalty":-2.1)",
                            R"("presence_penalty":2.1)",
                            R"("n":0)",
                            R"("n":1.5)",
                            R"("n":"1")",
                            R"("top_logprobs":21,"logprobs":true)",
                            R"("top_logprobs":1,"logprobs":false)",
                            R"("min_p":-0.1)",
                            R"("top_k":-2)",
                            R"("logit_bias":{"1":101})",
                            R"("logit_bias":{"-1":1})",
                            R"("logit_bias":{"1x":1})",
                            R"("logit_bias":[])",
                            R"("max_tokens":0)",
                            R"("max_completion_tokens":0)",
                            R"("repetition_penalty":0)",
                            R"("stop":[1])",
                            R"("stop":{})",
                            R"("stream":1)",
                            R"("stream_options":true)",
                            R"("tools":{})",
                            R"("metadata":[])",
                            R"("user":1)",
                            R"("tool_choice":"required")",
                            R"("tool_choice":7)",
                            R"("reasoning_effort":1)",
                            R"("chat_template_kwargs":[])",
                            R"("stop_token_ids":[-1])",
                            R"("stop_token_ids":[2147483648])"}) {
        const auto request = parse(std::string(",") + bad);
        ASSERT_FALSE(request.ok()) << bad;
        EXPECT_EQ(code_info(request.code()).http_status, 400) << bad;
        EXPECT_FALSE(request.error().param.empty()) << bad;
    }
}

TEST(ParseChat, StopIsOneOrUpToTheLimit) {
    EXPECT_EQ(parse(R"(,"stop":"a")")->stop, std::vector<std::string>{"a"});
    EXPECT_EQ(parse(R"(,"stop":["a","","b"])")->stop, (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(parse(R"(,"stop":"")")->stop.empty());
    EXPECT_EQ(parse(R"(,"stop":["a","b","c"])", {.max_stop = 2}).error().param, "stop");
}

TEST(ParseChat, TheLastOfEqualKeysWins) {
    EXPECT_EQ(parse(R"(,"n":1,"n":3)")->n, 3u);
    EXPECT_EQ(parse(R"(,"stop":["a"],"stop":["b"])")->stop, std::vector<std::string>{"b"});
}

TEST(ParseChat, OrderInTheBodyDoesNotMatter) {
    EXPECT_EQ(parse(R"(,"max_completion_tokens":5,"max_tokens":9)")->max_output_tokens, 5u);
    EXPECT_EQ(parse(R"(,"top_logprobs":2,"logprobs":true)")->top_logprobs, 2u);
    EXPECT_TRUE(parse(R"(,"stream_options":{"include_usage":true},"stream":true)")->include_usage);
    EXPECT_FALSE(parse(R"(,"stream_options":{"include_usage":true})")->include_usage);
}

TEST(ParseChat, UnknownFieldsAreListedOrRefused) {
    EXPECT_EQ(parse(R"(,"made_up":1)")->ignored_fields, std::vector<std::string>{"made_up"});
    const auto strict = parse(R"(,"made_up":1)", {.strict_unknown_fields = true});
    EXPECT_EQ(strict.error().param, "made_up");
    EXPECT_TRUE(parse(R"(,"store":true)", {.strict_unknown_fields = true}).ok());
    std::string many;
    for (int i = 0; i < 1000; ++i)
        many += ",\"f" + std::to_string(i) + std::string(200, 'x') + "\":1";
    EXPECT_LE(parse(many)->ignored_fields.size(), 64u);
    EXPECT_LE(parse(many)->ignored_fields[0].size(), 64u);
}

TEST(ParseChat, MessageFieldsWithoutMeaningAreListedOnce) {
    const auto json = Json::parse(
        R"({"model":"m","messages":[{"role":"user","content":"x","cache":1},{"role":"user","content":"y","cache":2,"id":null}]})");
    EXPECT_EQ(parse_chat(*json)->ignored_fields, std::vector<std::string>{"messages[].cache"});
}

TEST(ParseChat, A93_A94_LargeDataUrl) {
    Prng rng(1);
    std::string bytes(5'000'000, '\0');
    for (char& c : bytes) c = static_cast<char>(rng.next());
    const auto json = Json::parse(
        R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/webp;base64,)" +
        base64_encode(bytes) + R"("}}]}]})");
    ASSERT_TRUE(json.ok());
    const auto request = parse_chat(*json);
    ASSERT_TRUE(request.ok()) << request.error().message;
    const auto& image = std::get<model::ImagePart>(request->messages[0].parts[0]);
    EXPECT_EQ(image.media_type, "image/webp");
    EXPECT_TRUE(image.bytes == bytes);
}

TEST(ParseChat, MessageCountIsBounded) {
    std::string messages = R"({"role":"user","content":"x"})";
    for (int i = 0; i < 4; ++i) messages += R"(,{"role":"user","content":"x"})";
    const auto json = Json::parse(R"({"model":"m","messages":[)" + messages + "]}");
    EXPECT_TRUE(parse_chat(*json, {.max_messages = 5}).ok());
    EXPECT_EQ(parse_chat(*json, {.max_messages = 4}).error().param, "messages");
}

// Random JSON in every field: an answer, never a crash; a refusal names a field.
TEST(ParseChat, RandomValuesInRandomFields) {
    Prng rng(9);
    const char* values[] = {"null",
                            "true",
                            "0",
                            "-1",
                            "1e300",
                            "\"\"",
                            "\"x\"",
                            "[]",
                            "[[]]",
                            "[null]",
                            "[{}]",
                            "{}",
                            "{\"type\":\"function\"}",
                            "{\"type\":7}",
                            "[{\"role\":\"user\"}]",
                            "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"};
    const auto value = [&] { return std::string(values[rng.below(std::size(values))]); };
    for (int i = 0; i < 4000; ++i) {
        std::string body =
            R"({"model":"m","messages":[{"role":"user","content":"x"}],"prompt":"p","input":"i")";
        for (std::uint64_t k = 1 + rng.below(3); k > 0; --k) {
            const auto fields = chat_fields();
            body += ",\"" + std::string(fields[rng.below(fields.size())].name) + "\":" + value();
        }
        const auto json = Json::parse(body + "}");
        ASSERT_TRUE(json.ok());
        for (const auto& parsed :
             {parse_chat(*json), parse_completion(*json), parse_embeddings(*json)}) {
            if (!parsed.ok()) EXPECT_FALSE(parsed.error().param.empty()) << body;
        }
    }
}

// ---------------------------------------------------------------- errors

TEST(ErrorBody, UsesOpenAiWords) {
    const auto code = [](const Error& error) {
        const auto json = Json::parse(openai_error_body(error));
        const Json* inner = json->find("error");
        return inner->find("type")->as_string() + "/" + inner->find("code")->as_string() + "/" +
               std::to_string(code_info(error.code).http_status);
    };
    EXPECT_EQ(code({Code::kContextLength, "m", {}}),
              "invalid_request_error/context_length_exceeded/400");  // A61
    EXPECT_EQ(code({Code::kUnauthenticated, "m", {}}), "invalid_request_error/invalid_api_key/401");
    EXPECT_EQ(code({Code::kNotFound, "m", "model"}), "invalid_request_error/model_not_found/404");
    EXPECT_EQ(code({Code::kRateLimited, "m", {}}), "rate_limit_error/rate_limit_exceeded/429");
    EXPECT_EQ(code({Code::kTooLarge, "m", {}}),
              "invalid_request_error/request_too_large/413");  // A93
    EXPECT_EQ(code({Code::kInternal, "m", {}}), "server_error/internal/500");
    EXPECT_EQ(code({Code::kOverloaded, "m", {}}), "server_error/overloaded/503");
    EXPECT_EQ(openai_error_body({Code::kInternal,
                                 "bad \xff byte",
                                 {}}),  // A42: the serialiser replaces, the process lives
              "{\"error\":{\"message\":\"bad \xEF\xBF\xBD "
              "byte\",\"type\":\"server_error\",\"param\":null,\"code\":\"internal\"}}");
}

TEST(Models, SatisfyBothSdks) {
    const std::vector<ModelCard> one{{"m", 1700000000, "nereid", 8192}};
    EXPECT_EQ(
        models_body(one, false),
        R"({"object":"list","data":[{"id":"m","object":"model","created":1700000000,"owned_by":"nereid","type":"model","display_name":"m","created_at":"2023-11-14T22:13:20Z","lifecycle":"active","max_model_len":8192,"max_input_tokens":8192,"max_tokens":8192}],"has_more":false,"first_id":"m","last_id":"m"})");
    EXPECT_NE(models_body(one, true).find(R"("has_more":true)"), std::string::npos);
    EXPECT_EQ(models_body({}, false),
              R"({"object":"list","data":[],"has_more":false,"first_id":null,"last_id":null})");
    EXPECT_NE(model_body({"m", 951782399, "x"}).find("2000-02-28T23:59:59Z"), std::string::npos);
    EXPECT_NE(model_body({"m", 951782400, "x"}).find("2000-02-29T00:00:00Z"), std::string::npos);
}

// ---------------------------------------------------------------- documentation

// docs/formats/dialect-chat.md has one row per field, with the policy's word.
TEST(Documentation, ListsEveryFieldWithItsPolicy) {
    std::ifstream file("docs/formats/dialect-chat.md");
    ASSERT_TRUE(file.good()) << "run from the root of the repository";
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    const auto word = [](Policy policy) {
        return policy == Policy::kImplement ? "implement"
               : policy == Policy::kExtra   ? "extra"
               : policy == Policy::kAccept  ? "accept"
                                            : "refuse";
    };
    const auto check = [&](std::string_view heading, const std::vector<FieldPolicy>& fields) {
        const std::size_t begin = text.find(heading);
        ASSERT_NE(begin, std::string::npos) << heading;
        const std::string section = text.substr(begin, text.find("\n## ", begin + 1) - begin);
        for (const FieldPolicy& field : fields) {
            EXPECT_NE(
                section.find("| `" + std::string(field.name) + "` | " + word(field.policy) + " |"),
                std::string::npos)
                << heading << ": " << field.name << " is not listed as " << word(field.policy);
        }
    };
    check("\n## Chat Completions", chat_fields());
    check("\n## Completions", completion_fields());
    check("\n## Embeddings", embedding_fields());
}

}  // namespace
}  // namespace nereid::dialect::chat
