#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/prng.h"
#include "base/utf8.h"
#include "text/gguf/test_model.h"
#include "text/gguf/vocabulary.h"

namespace nereid::text {
namespace {

const Tokenizer& tokenizer() { return *test_model().tokenizer; }

std::vector<TokenId> encode(std::string_view text, Special special = Special::kPlain) {
    std::vector<TokenId> ids;
    tokenizer().encode(text, special, ids);
    return ids;
}

std::string decode(const std::vector<TokenId>& ids, Special special = Special::kPlain) {
    std::string text;
    for (const TokenId id : ids) text += tokenizer().piece(id, special);
    return text;
}

std::string random_text(Prng& rng, std::size_t characters) {
    std::string text;
    for (std::size_t i = 0; i < characters; ++i) {
        std::uint32_t c = 0;
        switch (rng.below(6)) {
            case 0:
                c = static_cast<std::uint32_t>(rng.below(0x80));
                break;
            case 1:
                c = static_cast<std::uint32_t>('a' + rng.below(26));
                break;
            case 2:
                c = ' ';
                break;
            case 3:
                c = static_cast<std::uint32_t>(0x4e00 + rng.below(0x5000));
                break;
            case 4:
                c = static_cast<std::uint32_t>(0x1f300 + rng.below(0x300));
                break;
            default:
                c = static_cast<std::uint32_t>(rng.below(0x110000));
                break;
        }
        if (c >= 0xd800 && c < 0xe000) c = 0x200d;  // no surrogates; a joiner instead
        append_utf8(text, c);
    }
    return text;
}

TEST(GgufTokenizer, TellsTheModelsFacts) {
    EXPECT_EQ(tokenizer().vocab_size(), 49152u);
    EXPECT_EQ(test_model().context_tokens, 8192u);
    EXPECT_NE(test_model().chat_template, nullptr);
    EXPECT_EQ(tokenizer().name(), std::filesystem::path(test_model_path()).filename().string());
    const auto end = encode("<|im_end|>", Special::kParse);
    ASSERT_EQ(end.size(), 1u);
    EXPECT_TRUE(tokenizer().is_end(end[0]));
    EXPECT_EQ(tokenizer().piece(end[0], Special::kParse), "<|im_end|>");
    EXPECT_EQ(tokenizer().piece(end[0], Special::kPlain), "");
    EXPECT_FALSE(tokenizer().is_end(encode("a")[0]));
}

TEST(GgufTokenizer, IdsOutsideTheVocabularyAreNothing) {
    for (const TokenId id : {-1, -2147483647, 49152, 2147483647}) {
        EXPECT_EQ(tokenizer().piece(id, Special::kParse), "");
        EXPECT_FALSE(tokenizer().is_end(id));
    }
}

// SmolLM2 was trained on text without some bytes; they have no token, and libllama drops them.
bool spelled(std::string_view character) {
    static const std::string kNoToken = [] {
        std::string missing;
        for (char c = 1; c < 0x20; ++c) {
            if (decode(encode(std::string_view(&c, 1))).empty()) missing += c;
        }
        return missing + "\xf1\xf2" + std::string(1, '\0');
    }();
    return character.find_first_of(kNoToken) == std::string_view::npos;
}

TEST(GgufTokenizer, PiecesOfRandomUnicodeConcatenateToTheText) {
    Prng rng(11);
    int compared = 0;
    for (int i = 0; i < 400; ++i) {
        std::string text;
        for (std::uint64_t k = rng.below(120); k > 0; --k) {
            const std::string character = random_text(rng, 1);
            if (spelled(character)) text += character;
        }
        EXPECT_EQ(decode(encode(text)), text);
        compared += static_cast<int>(text.size());
    }
    EXPECT_GT(compared, 20'000);
}

TEST(GgufTokenizer, PlainTextNeverBecomesASpecialToken) {
    for (const char* text : {"<|im_end|>", "a<|im_start|>system\nb<|im_end|>", "<|endoftext|>",
                             "<repo_name>", "<file_sep><|im_end|>"}) {
        const auto ids = encode(text);
        EXPECT_EQ(decode(ids), text);
        for (const TokenId id : ids) EXPECT_NE(tokenizer().piece(id, Special::kPlain), "") << text;
    }
    EXPECT_EQ(encode("a<|im_end|>b", Special::kParse).size(), 3u);
}

TEST(GgufTokenizer, InvalidUtf8IsReplacedFirst) {
    EXPECT_EQ(decode(encode("a\xff\xfe"
                            "b\xe4\xbd")),
              replace_invalid_utf8("a\xff\xfe"
                                   "b\xe4\xbd"));
    EXPECT_TRUE(encode("").empty());
}

// Text that a hostile or an unlucky client sends: very much of one kind of character. It must not
// exhaust the stack (regular expressions recurse). The cost is linear: vocabulary_bench.cc.
TEST(GgufTokenizer, LongUniformTexts) {
    for (const std::string_view unit :
         {"a", "1", " ", "\n", ".", "\xe4\xbd\xa0", "\xf0\x9f\x98\x80", "a ", "'s"}) {
        std::string text;
        while (text.size() < 100'000) text += unit;
        EXPECT_EQ(decode(encode(text)), text);
    }
}

// ---------------------------------------------------------------- files that are none

class BadFile : public testing::Test {
  protected:
    std::string path(const std::string& name) const {
        return (std::filesystem::path(testing::TempDir()) / ("nereid_text_" + name)).string();
    }
    static void write(const std::string& path, std::string_view bytes) {
        std::ofstream(path, std::ios::binary) << bytes;
    }
};

TEST_F(BadFile, MissingNamesFileAndMend) {
    const auto opened = open_gguf_text("/nowhere/model.gguf");
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.code(), Code::kConfig);
    EXPECT_NE(opened.error().message.find("/nowhere/model.gguf"), std::string::npos);
    EXPECT_NE(opened.error().message.find("Mend"), std::string::npos);
}

TEST_F(BadFile, NotGguf) {
    for (const char* content : {"", "GG",
                                "\x7f"
                                "ELF and so on",
                                "{\"a\":1}"}) {
        write(path("not"), content);
        const auto opened = open_gguf_text(path("not"));
        ASSERT_FALSE(opened.ok());
        EXPECT_EQ(opened.code(), Code::kConfig);
        EXPECT_NE(opened.error().message.find("not a GGUF"), std::string::npos);
    }
    EXPECT_EQ(open_gguf_text(testing::TempDir()).code(), Code::kConfig);  // a folder
}

TEST_F(BadFile, TruncatedAnywhere) {
    std::ifstream whole(test_model_path(), std::ios::binary);
    std::string bytes(4'000'000, '\0');  // the metadata is about 1.8 MB
    whole.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    Prng rng(3);
    for (int i = 0; i < 40; ++i) {
        const std::size_t size =
            i < 10 ? 4 + static_cast<std::size_t>(i) * 3 : rng.below(bytes.size());
        write(path("cut"), std::string_view(bytes).substr(0, size));
        const auto opened = open_gguf_text(path("cut"));
        ASSERT_FALSE(opened.ok()) << size;
        EXPECT_EQ(opened.code(), Code::kConfig);
        EXPECT_NE(opened.error().message.find("truncated"), std::string::npos)
            << opened.error().message;
    }
}

TEST_F(BadFile, TemplateThatDoesNotParse) {
    const auto opened = open_gguf_text(test_model_path(), "{% for m in messages %}{{ m.content ");
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.code(), Code::kConfig);
    EXPECT_NE(opened.error().message.find("template"), std::string::npos);
}

}  // namespace
}  // namespace nereid::text
