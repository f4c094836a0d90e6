// Chat templates of real models, as llama.cpp ships them: a conversation with calls is shown whole,
// and the calls that a template shows are those that our parser reads; where none does, the tools
// are told in our own form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "text/gguf/chat_template.h"
#include "text/gguf/test_model.h"
#include "text/gguf/vocabulary.h"
#include "text/parser.h"

namespace nereid::text {
namespace {

using model::Message;
using model::Role;
using model::TextPart;
using testing::HasSubstr;

// The file's name begins so. Others: kGeneric.
constexpr std::pair<std::string_view, Family> kKnown[] = {
    {"Bielik", Family::kHermes},
    {"ByteDance-Seed", Family::kQwenXml},
    {"MiMo-VL", Family::kHermes},
    {"Mistral-Small-3.2", Family::kMistral},
    {"NVIDIA-Nemotron-3", Family::kQwenXml},
    {"NousResearch-Hermes", Family::kHermes},
    {"Qwen-QwQ", Family::kHermes},
    {"Qwen-Qwen2.5", Family::kHermes},
    {"Qwen-Qwen3", Family::kHermes},
    {"Qwen3-Coder", Family::kQwenXml},
    {"Qwen3.5", Family::kQwenXml},
    {"Reka-Edge", Family::kHermes},
    {"StepFun", Family::kQwenXml},
    {"deepseek-ai-DeepSeek-R1", Family::kDeepSeek3},
    {"deepseek-ai-DeepSeek-V3.1", Family::kDeepSeek3},
    {"deepseek-ai-DeepSeek-V4", Family::kDeepSeek4},
    {"google-gemma-4", Family::kGemma},
    {"ibm-granite-granite-4", Family::kHermes},
    {"llama-cpp-deepseek-r1", Family::kDeepSeek3},
    {"meta-llama-Llama-3", Family::kLlama},
    {"mistralai-", Family::kMistral},
    {"openai-gpt-oss", Family::kHarmony},
    {"unsloth-mistral-Devstral", Family::kMistral},
};

Family known(std::string_view file) {
    for (const auto& [begin, family] : kKnown) {
        if (file.starts_with(begin)) return family;
    }
    return Family::kGeneric;
}

std::map<std::string, std::string> templates() {
    std::map<std::string, std::string> out;
    for (const auto& entry :
         std::filesystem::directory_iterator(llama_source() + "/models/templates")) {
        if (entry.path().extension() != ".jinja") continue;
        std::ifstream file(entry.path());
        out.emplace(entry.path().filename(), std::string{std::istreambuf_iterator<char>(file), {}});
    }
    return out;
}

Message say(Role role, std::string text) {
    return {.role = role, .parts = {TextPart{std::move(text)}}};
}

// As our own answers make them: two calls at once, with our ids, and their results.
model::Request conversation() {
    model::Request request;
    model::Tool tool;
    tool.name = "get_weather";
    tool.description = "The weather of a town.";
    tool.parameters = *Json::parse(
        R"({"type":"object","properties":{"town":{"type":"string","description":"Its name"}},"required":["town"]})");
    request.tools = {tool};
    request.messages = {say(Role::kSystem, "Be-brief."), say(Role::kUser, "First-question")};
    Message calls{.role = Role::kAssistant, .parts = {}};
    for (const char* town : {"Oslo", "Rome"}) {
        calls.tool_calls.push_back({.id = std::string("call_9b1f7c66aa0e4d1b83f2c5a7_0_") + town,
                                    .name = "get_weather",
                                    .arguments = std::string(R"({"town":")") + town + "\"}"});
    }
    request.messages.push_back(calls);
    for (const model::ToolCall& call : calls.tool_calls) {
        Message result = say(Role::kTool, "Result-of-" + call.id.substr(call.id.size() - 4));
        result.tool_call_id = call.id;
        request.messages.push_back(std::move(result));
    }
    request.messages.push_back(say(Role::kAssistant, "First-answer"));
    request.messages.push_back(say(Role::kUser, "Second-question"));
    return request;
}

TEST(Families, RealTemplates) {
    const auto vocabulary = std::dynamic_pointer_cast<const Vocabulary>(test_model().tokenizer);
    const auto all = templates();
    ASSERT_GE(all.size(), 60u) << llama_source();
    std::map<Family, int> seen;
    for (const auto& [file, source] : all) {
        SCOPED_TRACE(file);
        const auto made = make_jinja_template(vocabulary, source);
        ASSERT_TRUE(made.ok()) << made.error().message;
        const Family family = (*made)->family();
        ++seen[family];
        EXPECT_EQ(name_of(family), name_of(known(file)));
        if (family == Family::kDeepSeek4) {  // rendered by its makers' library
            const auto model = open_gguf_text(test_model_path(), source);
            ASSERT_TRUE(model.ok()) << model.error().message;
            EXPECT_EQ(model->family, Family::kDeepSeek4);
            EXPECT_EQ(model->chat_template->family(), Family::kDeepSeek4);
            const auto prompt = model->chat_template->render(conversation());
            ASSERT_TRUE(prompt.ok()) << prompt.error().message;
            EXPECT_THAT(prompt->text, HasSubstr("DSML"));
            continue;
        }
        const auto prompt = (*made)->render(conversation());
        ASSERT_TRUE(prompt.ok()) << prompt.error().message;
        for (const char* text : {"Be-brief.", "First-question", "Oslo", "Rome", "Result-of-Oslo",
                                 "Result-of-Rome", "Second-question", "get_weather"})
            EXPECT_THAT(prompt->text, HasSubstr(text));
        EXPECT_LT(prompt->text.find("Result-of-Oslo"), prompt->text.find("Result-of-Rome"));
        if (family == Family::kGeneric) {
            EXPECT_THAT(prompt->text, HasSubstr("<tool_call>\n{\"name\": \"function\""));
        } else {
            EXPECT_THAT(prompt->text, HasSubstr("The weather of a town."));
        }
    }
    EXPECT_EQ(seen.size(), 9u) << "a family is without a real template";
}

}  // namespace
}  // namespace nereid::text
