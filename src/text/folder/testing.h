// Small tokenizer.json files of each kind, and a folder to put them in. Tests only.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace nereid::text {

// The character that stands for a byte in byte-level BPE.
inline std::string byte_character(int byte) {
    int next = 0x100;
    int character = byte;
    for (int b = 0; b <= byte; ++b) {
        const bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        character = itself ? b : next++;
    }
    if (character < 0x80) return std::string(1, static_cast<char>(character));
    return {static_cast<char>(0xc0 | character >> 6), static_cast<char>(0x80 | (character & 0x3f))};
}

struct AddedForTest {
    std::string content;
    bool special = true;
    bool rstrip = false;
};

inline Json added_tokens(const std::vector<AddedForTest>& added, std::int64_t first) {
    Json::Array out;
    for (const AddedForTest& one : added) {
        out.push_back(Json(Json::Object{{"id", first++},
                                        {"content", one.content},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", one.rstrip},
                                        {"normalized", false},
                                        {"special", one.special}}));
    }
    return Json(std::move(out));
}

inline std::string tokenizer_file(Json added, Json pre_tokenizer, Json decoder, Json model) {
    return Json(Json::Object{{"version", "1.0"},
                             {"truncation", nullptr},
                             {"padding", nullptr},
                             {"added_tokens", std::move(added)},
                             {"normalizer", nullptr},
                             {"pre_tokenizer", std::move(pre_tokenizer)},
                             {"post_processor", nullptr},
                             {"decoder", std::move(decoder)},
                             {"model", std::move(model)}})
        .dump();
}

inline Json bpe(Json vocabulary, Json merges, bool byte_fallback, Json unknown) {
    return Json(Json::Object{{"type", "BPE"},
                             {"dropout", nullptr},
                             {"unk_token", std::move(unknown)},
                             {"continuing_subword_prefix", nullptr},
                             {"end_of_word_suffix", nullptr},
                             {"fuse_unk", false},
                             {"byte_fallback", byte_fallback},
                             {"vocab", std::move(vocabulary)},
                             {"merges", std::move(merges)}});
}

// Byte-level BPE: ids 0..255 are the bytes, 256 is "he", 257 "hel"; the added ones begin at 258.
inline std::string byte_level_tokenizer(const std::vector<AddedForTest>& added) {
    Json vocabulary(Json::Object{});
    for (int byte = 0; byte < 256; ++byte) vocabulary.set(byte_character(byte), Json(byte));
    vocabulary.set("he", Json(256));
    vocabulary.set("hel", Json(257));
    const Json level(Json::Object{{"type", "ByteLevel"},
                                  {"add_prefix_space", false},
                                  {"trim_offsets", true},
                                  {"use_regex", false}});
    Json merges(Json::Array{Json(Json::Array{"h", "e"}), Json(Json::Array{"he", "l"})});
    return tokenizer_file(added_tokens(added, 258), level, level,
                          bpe(std::move(vocabulary), std::move(merges), false, Json()));
}

// SentencePiece's kind, as Llama 2 and Mistral have it: 0 <unk>, 1 <s>, 2 </s>, 3 + byte for the
// bytes, 259 the blank, 260 "h", 261 "i", 262 "hi", 263 blank + "hi", 264 [INST].
inline std::string byte_fallback_tokenizer() {
    const std::string blank = "\u2581";
    Json vocabulary(Json::Object{{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}});
    constexpr std::string_view kHex = "0123456789ABCDEF";
    for (std::size_t byte = 0; byte < 256; ++byte) {
        const std::string name = std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">";
        vocabulary.set(name, Json(static_cast<std::int64_t>(3 + byte)));
    }
    std::int64_t next = 259;
    for (const std::string& entry :
         {blank, std::string("h"), std::string("i"), std::string("hi"), blank + "hi"})
        vocabulary.set(entry, Json(next++));
    Json merges(Json::Array{Json(Json::Array{"h", "i"}), Json(Json::Array{blank, "hi"})});
    Json::Array added = added_tokens({{"<unk>"}, {"<s>"}, {"</s>"}}, 0).as_array();
    added.push_back(added_tokens({{"[INST]"}}, 264).as_array()[0]);
    const Json metaspace(Json::Object{{"type", "Metaspace"},
                                      {"replacement", blank},
                                      {"prepend_scheme", "first"},
                                      {"split", false}});
    const Json decoder(Json::Object{
        {"type", "Sequence"},
        {"decoders",
         Json::Array{
             Json(Json::Object{{"type", "Replace"},
                               {"pattern", Json::Object{{"String", blank}}},
                               {"content", " "}}),
             Json(Json::Object{{"type", "ByteFallback"}}), Json(Json::Object{{"type", "Fuse"}}),
             Json(Json::Object{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}})}}});
    return tokenizer_file(Json(std::move(added)), metaspace, decoder,
                          bpe(std::move(vocabulary), std::move(merges), true, Json("<unk>")));
}

// Unigram, which holds its control token </s> (1) among its pieces, best of all: the model itself
// would find it in a text. 2 the blank, 3 "a", 4 "<", 5 "/", 6 "s", 7 ">".
inline std::string unigram_tokenizer() {
    Json::Array pieces;
    const std::vector<std::pair<std::string, double>> all = {
        {"<unk>", 0}, {"</s>", 0}, {"\u2581", -2}, {"a", -3},
        {"<", -4},    {"/", -4},   {"s", -4},      {">", -4}};
    for (const auto& [piece, score] : all) pieces.push_back(Json(Json::Array{piece, score}));
    const Json metaspace(Json::Object{{"type", "Metaspace"},
                                      {"replacement", "\u2581"},
                                      {"prepend_scheme", "never"},
                                      {"split", false}});
    Json::Object model{
        {"type", "Unigram"}, {"unk_id", 0}, {"vocab", std::move(pieces)}, {"byte_fallback", false}};
    return tokenizer_file(added_tokens({{"<unk>"}, {"</s>"}}, 0), metaspace, metaspace,
                          Json(std::move(model)));
}

// Removed with its files at the end.
class TestFolder {
  public:
    explicit TestFolder(const std::string& name)
        : path_((std::filesystem::temp_directory_path() / ("nereid-" + name)).string()) {
        std::filesystem::remove_all(path_);
        std::filesystem::create_directories(path_);
    }
    ~TestFolder() { std::filesystem::remove_all(path_); }
    TestFolder(const TestFolder&) = delete;
    TestFolder& operator=(const TestFolder&) = delete;
    void write(const std::string& file, const std::string& text) const {
        std::ofstream(path_ + "/" + file, std::ios::binary) << text;
    }
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

}  // namespace nereid::text
