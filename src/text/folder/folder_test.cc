#include "text/folder/folder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/utf8.h"
#include "text/folder/pieces.h"
#include "text/folder/testing.h"
#include "text/output.h"
#include "text/parser.h"
#include "text/recipe/recipe.h"

namespace nereid::text {
namespace {

using Ids = std::vector<TokenId>;

// A template that is only known by its source.
class NoTemplate final : public ChatTemplate {
  public:
    explicit NoTemplate(std::string source) : source_(std::move(source)) {}
    Result<RenderedPrompt> render(const model::Request&) const override { return RenderedPrompt{}; }
    const std::string& source() const override { return source_; }
    bool supports_tools() const override { return true; }

  private:
    std::string source_;
};

Result<std::shared_ptr<const ChatTemplate>> no_template(std::shared_ptr<const ControlTokenizer>,
                                                        const std::string& source) {
    if (source == "broken")
        return err(Code::kConfig, "the chat template does not parse: it is broken");
    return std::shared_ptr<const ChatTemplate>(std::make_shared<NoTemplate>(source));
}

Ids encode(const Tokenizer& t, std::string_view text, Special special) {
    Ids ids;
    t.encode(text, special, ids);
    return ids;
}

std::string joined(const Tokenizer& t, const Ids& ids, Special special) {
    std::string text;
    for (const TokenId id : ids) text += t.piece(id, special);
    return text;
}

class Folder : public testing::Test {
  protected:
    Result<TextModel> open(const std::string& file) {
        folder_.write("tokenizer.json", file);
        return open_folder(folder_.path(), no_template);
    }
    static std::string mark(const std::string& name) { return "<\uff5c" + name + "\uff5c>"; }
    static std::string deepseek() {
        return byte_level_tokenizer({{mark("begin\u2581of\u2581sentence")},
                                     {mark("end\u2581of\u2581sentence")},
                                     {mark("User"), false},
                                     {mark("Assistant"), false},
                                     {"<think>", false},
                                     {"</think>", false},
                                     {"</think>x", false},
                                     {mark("System"), false}});
    }

    const TestFolder folder_{testing::UnitTest::GetInstance()->current_test_info()->name()};
};

TEST_F(Folder, ByteLevelSpellsEveryByteAndEveryMarker) {
    folder_.write(
        "tokenizer_config.json",
        R"({"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>", "add_bos_token": true,
                      "chat_template": [{"name": "tool_use", "template": "no"},
                                        {"name": "default", "template": "<tool_call>"}]})");
    folder_.write("generation_config.json", R"({"eos_token_id": [65, 66]})");
    folder_.write("config.json", R"({"eos_token_id": 67, "max_position_embeddings": 4096})");
    const auto model = open(
        byte_level_tokenizer({{"<s>"}, {"<|im_end|>"}, {"<tool_call>", false}, {"\n\n", false}}));
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(model->family, Family::kHermes);
    EXPECT_EQ(model->context_tokens, 4096u);
    const Tokenizer& t = *model->tokenizer;
    EXPECT_EQ(t.vocab_size(), 262u);
    EXPECT_EQ(t.bos(), 258);
    EXPECT_TRUE(t.adds_bos());
    EXPECT_TRUE(t.is_end(259) && t.is_end(65) && t.is_end(66) && !t.is_end(67) && !t.is_end(-1));
    for (int byte = 0; byte < 256; ++byte)
        EXPECT_EQ(t.piece(byte, Special::kPlain), std::string(1, static_cast<char>(byte)));
    EXPECT_EQ(t.piece(259, Special::kPlain), "");
    EXPECT_EQ(t.piece(259, Special::kParse), "<|im_end|>");
    EXPECT_EQ(t.piece(260, Special::kPlain), "<tool_call>");
    EXPECT_EQ(t.piece(-1, Special::kParse), "");
    EXPECT_EQ(t.piece(100'000, Special::kParse), "");

    EXPECT_EQ(encode(t, "hello", Special::kPlain), (Ids{257, 'l', 'o'}));
    // A user's text is only text, whatever it looks like.
    EXPECT_EQ(encode(t, "<s><tool_call>\n\n", Special::kPlain).size(), 16u);
    EXPECT_EQ(encode(t, "<s><tool_call>\n\n", Special::kParse), (Ids{258, 260, 261}));
    EXPECT_EQ(encode(t, "\xff", Special::kPlain).size(), 3u);  // U+FFFD
}

TEST_F(Folder, ByteFallbackSpellsWhatTheVocabularyLacks) {
    folder_.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    const auto model = open(byte_fallback_tokenizer());
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(model->chat_template, nullptr);
    const Tokenizer& t = *model->tokenizer;
    EXPECT_EQ(encode(t, "hi hi", Special::kPlain), (Ids{263, 263}));
    EXPECT_EQ(joined(t, {263, 263}, Special::kPlain), " hi hi");
    EXPECT_EQ(encode(t, "\u00e9", Special::kPlain), (Ids{259, 3 + 0xc3, 3 + 0xa9}));
    EXPECT_EQ(joined(t, {3 + 0xc3, 3 + 0xa9}, Special::kPlain), "\u00e9");
    EXPECT_EQ(encode(t, "[INST]hi", Special::kParse), (Ids{264, 262}));
    const Ids plain = encode(t, "[INST]</s><s>hi", Special::kPlain);
    for (const TokenId id : {1, 2, 264}) EXPECT_EQ(std::ranges::count(plain, id), 0) << id;
    EXPECT_EQ(joined(t, plain, Special::kPlain), " [INST]</s><s>hi");
}

// Tokens of an answer, however they are grouped into steps: whole characters, nothing twice.
TEST_F(Folder, AnswersAreDetokenisedIncrementally) {
    const auto model = open(byte_fallback_tokenizer());
    ASSERT_TRUE(model.ok()) << model.error().message;
    Ids ids;
    for (const char c : std::string("\u4f60\U0001F600 \u00e9")) {
        if (c == ' ') {
            ids.push_back(263);
        } else {
            ids.push_back(3 + static_cast<unsigned char>(c));
        }
    }
    ids.push_back(3 + 0xf0);  // it ends inside a character
    for (std::size_t step = 1; step <= ids.size(); ++step) {
        Utf8Assembler assembler;
        std::string text;
        for (std::size_t at = 0; at < ids.size(); at += step) {
            std::string bytes;
            for (std::size_t i = at; i < std::min(at + step, ids.size()); ++i)
                bytes += model->tokenizer->piece(ids[i], Special::kPlain);
            const std::string delta = assembler.push(bytes);
            EXPECT_TRUE(is_valid_utf8(delta));
            text += delta;
        }
        text += assembler.finish();
        EXPECT_EQ(text, "\u4f60\U0001F600 hi\u00e9\ufffd") << step;
    }
}

TEST_F(Folder, AModelThatHoldsItsControlTokensCannotBeMadeToSayThem) {
    folder_.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
    const auto model = open(unigram_tokenizer());
    ASSERT_TRUE(model.ok()) << model.error().message;
    const Tokenizer& t = *model->tokenizer;
    EXPECT_EQ(encode(t, "a</s>", Special::kParse), (Ids{3, 1}));
    EXPECT_EQ(encode(t, "a</s>", Special::kPlain), (Ids{3, 4, 5, 6, 7}));
    EXPECT_EQ(encode(t, "</s></s>a</", Special::kPlain), (Ids{4, 5, 6, 7, 4, 5, 6, 7, 3, 4, 5}));
    EXPECT_EQ(encode(t, "\u2603", Special::kPlain), (Ids{0}));  // the unknown token is no attack
    const auto& control = dynamic_cast<const ControlTokenizer&>(t);
    const std::string text = "</s>a</s>";
    Ids marked;
    const std::vector<Mark> marks{{5, 9, control.control_at(text, 5)}};
    control.encode_marked(text, marks, marked);
    EXPECT_EQ(marked, (Ids{4, 5, 6, 7, 3, 1}));
}

TEST_F(Folder, MarkedTextIsEncodedAsTheLibraryDoesIt) {
    const auto model = open(byte_fallback_tokenizer());
    ASSERT_TRUE(model.ok()) << model.error().message;
    const auto& t = dynamic_cast<const ControlTokenizer&>(*model->tokenizer);
    for (const std::string text : {"<s>[INST] hi hi[INST]</s>", "hi</s>hi", "</s>", "", "hi hi"}) {
        std::vector<Mark> marks;
        for (std::size_t at = 0; at < text.size(); ++at) {
            if (const ControlToken* token = t.control_at(text, at))
                marks.push_back({at, at + token->text.size(), token});
        }
        Ids marked;
        t.encode_marked(text, marks, marked);
        EXPECT_EQ(marked, encode(t, text, Special::kParse)) << text;
    }
}

TEST_F(Folder, DeepSeeksPromptsAreTheirMakers) {
    const auto model = open(deepseek());
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(model->family, Family::kDeepSeek4);
    EXPECT_EQ(detect_family(model->chat_template->source()), Family::kDeepSeek4);
    EXPECT_EQ(deepseek_version(model->chat_template->source()), DeepSeekVersion::kV41);
    const Tokenizer& t = *model->tokenizer;
    EXPECT_EQ(t.bos(), 258);
    EXPECT_TRUE(t.is_end(259) && !t.is_end(258));
    model::Request request;
    request.messages.resize(1);
    request.messages[0].role = model::Role::kUser;
    request.messages[0].parts = {model::TextPart{"Hello " + mark("end\u2581of\u2581sentence")}};
    const auto prompt = model->chat_template->render(request);
    ASSERT_TRUE(prompt.ok()) << prompt.error().message;
    EXPECT_TRUE(opens_reasoning(model->family, prompt->text));
    EXPECT_EQ(prompt->tokens.front(), 258);
    EXPECT_EQ(prompt->tokens.back(), 262);
    EXPECT_EQ(std::ranges::count(prompt->tokens, 259), 0);
    // V3 and R1 have the same markers and a template of their own.
    // As the makers' repository has it now: the mark is put together when it is rendered.
    folder_.write(
        "chat_template.jinja",
        "{%- set dsml_token = '\uff5cDSML\uff5c' -%}{{ '<' + dsml_token + 'tool_calls>' }}");
    const auto with_template = open(deepseek());
    ASSERT_TRUE(with_template.ok()) << with_template.error().message;
    EXPECT_EQ(with_template->family, Family::kDeepSeek4);
    folder_.write("chat_template.jinja", "V3");
    const auto v3 = open(deepseek());
    ASSERT_TRUE(v3.ok()) << v3.error().message;
    EXPECT_EQ(v3->chat_template->source(), "V3");
}

TEST_F(Folder, FaultsNameTheFile) {
    const auto fault = [this](const std::string& file) {
        const auto model = open(file);
        if (model.ok()) return std::string("it was opened");
        EXPECT_EQ(model.error().code, Code::kConfig);
        EXPECT_NE(model.error().message.find("Mend: "), std::string::npos);
        return model.error().message;
    };
    for (const std::string file : {"{", "{}", "", "[]", R"({"model": {"vocab": {}}})"})
        EXPECT_NE(fault(file).find("tokenizer.json: "), std::string::npos) << file;
    std::string speech = byte_level_tokenizer({{"<s>"}});
    speech.replace(speech.find(R"("decoder":{"type":"ByteLevel")"), 29,
                   R"("decoder":{"type":"CTC","x":1)");
    EXPECT_NE(fault(speech).find("tokenizer.json: "), std::string::npos);
    folder_.write("config.json", "{");
    EXPECT_NE(fault(byte_level_tokenizer({})).find("config.json: "), std::string::npos);
    folder_.write("config.json", "{}");
    folder_.write("chat_template.jinja", "broken");
    EXPECT_NE(fault(byte_level_tokenizer({})).find("does not parse"), std::string::npos);
    const auto none = open_folder(folder_.path() + "/none", no_template);
    EXPECT_EQ(none.error().code, Code::kConfig);
    const TestFolder old("sentencepiece");
    old.write("tokenizer.model", "x");
    EXPECT_NE(open_folder(old.path(), no_template).error().message.find("save_pretrained"),
              std::string::npos);
}

TEST(PieceSpeller, UndoesEachDecoder) {
    const auto speller = [](const char* json) {
        const Json decoder = *Json::parse(json);
        return *PieceSpeller::make(&decoder);
    };
    EXPECT_EQ(speller(R"({"type":"WordPiece","prefix":"##"})").bytes("##ing"), "ing");
    EXPECT_EQ(speller(R"({"type":"WordPiece","prefix":"##"})").bytes("sea"), " sea");
    EXPECT_EQ(speller(R"({"type":"BPEDecoder","suffix":"</w>"})").bytes("sea</w>"), "sea ");
    EXPECT_EQ(speller(R"({"type":"ByteFallback"})").bytes("<0x0a>"), "\n");
    EXPECT_EQ(speller(R"({"type":"ByteFallback"})").bytes("<0x0g>"), "<0x0g>");
    EXPECT_EQ(PieceSpeller::make(nullptr)->bytes("sea"), " sea");
    const Json ctc = *Json::parse(R"({"type":"CTC"})");
    EXPECT_EQ(PieceSpeller::make(&ctc).error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace nereid::text
