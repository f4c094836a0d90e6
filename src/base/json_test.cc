#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/json_fault.h"
#include "base/prng.h"
#include "base/utf8.h"

namespace nereid {
namespace {

Json parsed(std::string_view text) {
    auto r = Json::parse(text);
    EXPECT_TRUE(r.ok()) << text << ": " << (r.ok() ? "" : r.error().message);
    return r.ok() ? *r : Json();
}

std::string nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonParse, KeepsKindsAndOrder) {
    const Json j = parsed(R"( {"z":1,"a":[true,false,null,-2.5,"x\n\u00e9\ud83d\ude00"],"m":{}} )");
    ASSERT_TRUE(j.is_object());
    EXPECT_EQ(j.as_object()[0].first, "z");
    EXPECT_EQ(j.as_object()[1].first, "a");
    const Json& a = *j.find("a");
    ASSERT_EQ(a.size(), 5u);
    EXPECT_TRUE(a.as_array()[0].as_bool());
    EXPECT_FALSE(a.as_array()[1].as_bool());
    EXPECT_TRUE(a.as_array()[2].is_null());
    EXPECT_EQ(a.as_array()[3].as_double(), -2.5);
    EXPECT_EQ(a.as_array()[4].as_string(), "x\n\xc3\xa9\xf0\x9f\x98\x80");
    EXPECT_TRUE(j.find("m")->is_object());
    EXPECT_EQ(j.find("m")->size(), 0u);
    EXPECT_EQ(j.find("absent"), nullptr);
    EXPECT_EQ(a.find("z"), nullptr);
    EXPECT_EQ(j.dump(), R"({"z":1,"a":[true,false,null,-2.5,"x\né😀"],"m":{}})");
}

TEST(JsonParse, LastDuplicateWins) {
    const Json j = parsed(R"({"a":1,"a":2})");
    EXPECT_EQ(j.find("a")->as_int(), 2);
    EXPECT_EQ(j.size(), 2u);
}

TEST(JsonParse, NumbersKeepTheirKind) {
    EXPECT_TRUE(parsed("1").is_int());
    EXPECT_FALSE(parsed("1.0").is_int());
    EXPECT_EQ(parsed("1.0").as_int(), 1);
    EXPECT_EQ(parsed("1.5").as_int(), std::nullopt);
    EXPECT_EQ(parsed("-9223372036854775808").as_int(), std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(parsed("9223372036854775807").as_int(), std::numeric_limits<std::int64_t>::max());
    EXPECT_TRUE(parsed("18446744073709551615").is_int());
    EXPECT_EQ(parsed("18446744073709551615").as_int(), std::nullopt);
    EXPECT_EQ(parsed("18446744073709551615").dump(), "18446744073709551615");
    EXPECT_EQ(parsed("1e3").as_int(), 1000);
    EXPECT_EQ(parsed("9223372036854775808.0").as_int(), std::nullopt);
    EXPECT_EQ(parsed("-9223372036854775808.0").as_int(), std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(parsed("1e-400").as_double(), 0.0);
}

TEST(JsonParse, IntegersOverSixtyFourBitsBecomeDoubles) {
    const Json j = parsed(
        R"({"s":"18446744073709551616","a":[18446744073709551616,-9223372036854775809],"t":"\"1"})");
    EXPECT_EQ(j.find("s")->as_string(), "18446744073709551616");
    EXPECT_EQ(j.find("a")->as_array()[0], Json(0x1p64));
    EXPECT_EQ(j.find("a")->as_array()[1], Json(-0x1p63));
    EXPECT_EQ(j.find("t")->as_string(), "\"1");
}

TEST(JsonParse, OneNumberHasOneForm) {
    EXPECT_EQ(Json(std::uint64_t{5}), parsed("5"));
    EXPECT_EQ(Json(std::uint32_t{5}), parsed("5"));
    EXPECT_EQ(Json(5), parsed("5"));
    EXPECT_EQ(Json(std::numeric_limits<std::uint64_t>::max()), parsed("18446744073709551615"));
}

TEST(JsonParse, DepthIsBoundedAt128) {
    EXPECT_TRUE(Json::parse(nested(128)).ok());
    EXPECT_EQ(Json::parse(nested(129)).code(), Code::kInvalidArgument);
    const auto deep = Json::parse(std::string(100'000, '['));
    ASSERT_FALSE(deep.ok());
    EXPECT_EQ(deep.error().message,
              "not valid JSON: more than 128 levels of nesting, found '[' at byte 128, line 1");
    std::string objects;
    for (int i = 0; i < 128; ++i) objects += R"({"a":)";
    EXPECT_TRUE(Json::parse(objects + "1" + std::string(128, '}')).ok());
    EXPECT_FALSE(Json::parse(R"({"a":)" + objects + "1" + std::string(129, '}')).ok());
}

struct Refusal {
    std::string_view text;
    std::size_t offset;
    std::string_view what;
};
const Refusal kRefusals[] = {
    {"", 0, "the document is empty, found the end at byte 0, line 1"},
    {" \n ", 3, "the document is empty, found the end at byte 3, line 2"},
    {"nul", 0, "expected a value, found 'n'"},
    {"nullx", 4, "unexpected character inside a value, found 'x'"},
    {"{} {}", 3, "expected the end after the document, found '{'"},
    {"[1,2]]", 5, "expected the end after the document, found ']'"},
    {"1 2", 2, "expected the end after the document"},
    {R"({"a" 1})", 5, "expected ':' after a member's name, found '1'"},
    {R"({"a":1 "b":2})", 7, "expected ',' or '}' after a member, found '\"'"},
    {R"({"a":1,})", 7, "expected a member's name in double quotes, found '}'"},
    {R"({a:1})", 1, "expected a member's name in double quotes, found 'a'"},
    {"{'a':1}", 1, "expected a member's name in double quotes, found '''"},
    {"[1,]", 3, "expected a value, found ']'"},
    {"[1 2]", 3, "expected ',' or ']' after an element, found '2'"},
    {"[1", 2, "expected ',' or ']' after an element, found the end"},
    {"[", 1, "expected a value, found the end"},
    {"{", 1, "expected a member's name in double quotes, found the end"},
    {R"({"a":)", 5, "expected a value, found the end"},
    {R"("abc)", 0, "the string that begins here is not closed"},
    {R"("abc\")", 0, "the string that begins here is not closed"},
    {"\"a\nb\"", 2, "a control character must be escaped at byte 2, line 1"},
    {R"("\x41")", 1, "unknown escape"},
    {R"("\u12g4")", 3, "expected four hex digits after \\u"},
    {R"("\ud800")", 1, "a surrogate without its pair"},
    {R"("\ud800x")", 1, "a surrogate without its pair"},
    {R"("\udc00")", 1, "a surrogate without its pair"},
    {R"("\ud800\ud800")", 1, "a surrogate without its pair"},
    {R"("a\udc00\ud800")", 2, "a surrogate without its pair"},
    {"\"\xff\"", 1, "invalid UTF-8"},
    {"\"ab\xed\xa0\x80\"", 3, "invalid UTF-8"},
    {"\"\xc3\"", 1, "invalid UTF-8"},
    {"\xef\xbb\xbf{}", 0, "expected a value"},
    {"01", 1, "a number must not begin with 0"},
    {"-", 1, "expected a digit"},
    {"+1", 0, "expected a value"},
    {".5", 0, "expected a value"},
    {"1.", 2, "expected a digit after '.'"},
    {"1e", 2, "expected a digit in the exponent"},
    {"1e+", 3, "expected a digit in the exponent"},
    {"NaN", 0, "expected a value"},
    {"-Infinity", 1, "expected a digit"},
    {"[1]\x01", 3, "expected the end after the document"},
    {std::string_view("[1]\0", 4), 3, "expected the end after the document"},
    {"[\n1,\n2,\n x]", 9, "expected a value, found 'x' at byte 9, line 4"},
};

TEST(JsonParse, RefusesWithThePlace) {
    for (const Refusal& r : kRefusals) {
        const auto got = Json::parse(r.text);
        ASSERT_FALSE(got.ok()) << r.text;
        EXPECT_EQ(got.code(), Code::kInvalidArgument);
        EXPECT_NE(got.error().message.find(r.what), std::string::npos)
            << r.text << " -> " << got.error().message;
        EXPECT_NE(got.error().message.find("at byte " + std::to_string(r.offset) + ","),
                  std::string::npos)
            << r.text << " -> " << got.error().message;
        EXPECT_TRUE(is_valid_utf8(got.error().message));
    }
}

TEST(JsonParse, NumberBeyondDoubleIsRefused) {
    EXPECT_EQ(Json::parse("1e400").error().message, "not valid JSON: a number is out of range");
    EXPECT_FALSE(Json::parse(std::string(400, '9')).ok());
}

Json random_tree(Prng& prng, int depth) {
    switch (prng.below(depth > 0 ? 8 : 6)) {
        case 0:
            return nullptr;
        case 1:
            return prng.chance(0.5);
        case 2:
            return static_cast<std::int64_t>(prng.next());
        case 3:
            return prng.next();
        case 4: {
            double d;
            do {
                const std::uint64_t bits = prng.next();
                std::memcpy(&d, &bits, sizeof d);
            } while (!std::isfinite(d));
            return prng.chance(0.5) ? d : std::round(prng.uniform() * 1000);
        }
        case 5: {
            std::string s;
            for (std::uint64_t n = prng.below(40); n > 0; --n) {
                s.push_back(static_cast<char>(prng.chance(0.8) ? 0x20 + prng.below(0x5f)
                                                               : prng.below(0x100)));
            }
            return replace_invalid_utf8(s);
        }
        case 6: {
            Json::Array a;
            for (std::uint64_t n = prng.below(6); n > 0; --n)
                a.push_back(random_tree(prng, depth - 1));
            return a;
        }
        default: {
            Json::Object o;
            for (std::uint64_t n = prng.below(6); n > 0; --n) {
                o.emplace_back("k" + std::to_string(prng.below(4)), random_tree(prng, depth - 1));
            }
            return o;
        }
    }
}

TEST(JsonProperty, DumpParsesToTheSameTree) {
    Prng prng(11);
    for (int i = 0; i < 3000; ++i) {
        const Json tree = random_tree(prng, 5);
        const std::string text = tree.dump();
        const auto back = Json::parse(text);
        ASSERT_TRUE(back.ok()) << text << back.error().message;
        ASSERT_EQ(*back, tree) << text;
        ASSERT_EQ(back->dump(), text);
        ASSERT_FALSE(find_json_fault(text, 128)) << text;
    }
}

// simdjson and our fault finder are two parsers: on random damage they must agree on what JSON is.
TEST(JsonProperty, ParserAndFaultFinderAgree) {
    Prng prng(12);
    constexpr std::string_view kBytes = "{}[],:\"\\ue0198.-+tfn \n\xc3\xa9\xed\x01";
    int refused = 0;
    for (int i = 0; i < 20'000; ++i) {
        std::string text = random_tree(prng, 3).dump();
        for (std::uint64_t n = prng.below(3); n > 0 && !text.empty(); --n) {
            const std::size_t at = prng.below(text.size());
            if (prng.chance(0.4))
                text.erase(at, 1);
            else if (prng.chance(0.5))
                text[at] = kBytes[prng.below(kBytes.size())];
            else
                text.insert(at, 1, kBytes[prng.below(kBytes.size())]);
        }
        const auto parsed_text = Json::parse(text);
        const bool range =
            !parsed_text.ok() && parsed_text.error().message.ends_with("out of range");
        ASSERT_EQ(parsed_text.ok() || range, !find_json_fault(text, 128).has_value()) << text;
        refused += parsed_text.ok() ? 0 : 1;
    }
    EXPECT_GT(refused, 2000);  // the damage is real
}

TEST(JsonSet, MakesReplacesAndAppends) {
    Json j;
    j.set("a", 1).set("b", "x").set("a", 2);
    EXPECT_EQ(j.dump(), R"({"a":2,"b":"x"})");
    EXPECT_EQ(j.size(), 2u);
    EXPECT_EQ(Json(7).size(), 0u);
    EXPECT_EQ(j.kind_name(), "object");
    EXPECT_EQ(Json().kind_name(), "null");
    EXPECT_EQ(Json(true).kind_name(), "boolean");
    EXPECT_EQ(Json(1.5).kind_name(), "number");
    EXPECT_EQ(Json(std::numeric_limits<std::uint64_t>::max()).kind_name(), "number");
    EXPECT_EQ(Json("s").kind_name(), "string");
    EXPECT_EQ(Json(Json::Array{}).kind_name(), "array");
}

std::string written(std::string_view s) {
    std::string out;
    append_json_string(out, s);
    return out;
}

TEST(JsonWriter, EscapesWhatMustBeEscaped) {
    EXPECT_EQ(written("a\"b\\c/\n\r\t\b\f\x01\x1f\x7f"),
              "\"a\\\"b\\\\c/\\n\\r\\t\\b\\f\\u0001\\u001f\x7f\"");
    EXPECT_EQ(written(std::string_view("\0x", 2)), "\"\\u0000x\"");
    EXPECT_EQ(written("caf\xc3\xa9 \xf0\x9f\x98\x80"), "\"caf\xc3\xa9 \xf0\x9f\x98\x80\"");
    EXPECT_EQ(written(""), "\"\"");
}

// A42, A45: a token's bytes may be half a character; the process lives and the output is UTF-8.
TEST(JsonWriter, InvalidUtf8BecomesReplacementCharacters_A42_A45) {
    EXPECT_EQ(written("ok\xff."), "\"ok\xef\xbf\xbd.\"");
    EXPECT_EQ(written("\xe2\x82"), "\"\xef\xbf\xbd\"");
    EXPECT_EQ(written("\xe2\x82\"\xac"), "\"\xef\xbf\xbd\\\"\xef\xbf\xbd\"");
}

// Against a byte-at-a-time model at every alignment of a special byte within the 8-byte steps.
TEST(JsonWriter, RunScannerEqualsTheNaiveEscaper) {
    for (int byte = 0; byte < 128; ++byte) {
        for (std::size_t at = 0; at < 20; ++at) {
            std::string s(20, 'x');
            s[at] = static_cast<char>(byte);
            const auto back = Json::parse(written(s));
            ASSERT_TRUE(back.ok()) << byte << " " << at;
            ASSERT_EQ(back->as_string(), s) << byte << " " << at;
        }
    }
}

TEST(JsonWriter, Numbers) {
    const auto text = [](auto v) {
        std::string out;
        JsonWriter(out).value(v);
        return out;
    };
    EXPECT_EQ(text(0.0), "0.0");
    EXPECT_EQ(text(-0.0), "-0.0");
    EXPECT_EQ(text(1.0), "1.0");
    EXPECT_EQ(text(0.1), "0.1");
    EXPECT_EQ(text(100000.0), "100000.0");
    EXPECT_EQ(text(1e16), "1e+16");
    EXPECT_EQ(text(1.5e-5), "1.5e-05");
    EXPECT_EQ(text(0.0001), "0.0001");
    EXPECT_EQ(text(0.1f), "0.1");
    EXPECT_EQ(text(std::numeric_limits<double>::max()), "1.7976931348623157e+308");
    EXPECT_EQ(text(std::numeric_limits<double>::quiet_NaN()), "null");
    EXPECT_EQ(text(-std::numeric_limits<double>::infinity()), "null");
    EXPECT_EQ(text(std::numeric_limits<std::int64_t>::min()), "-9223372036854775808");
    EXPECT_EQ(text(std::numeric_limits<std::uint64_t>::max()), "18446744073709551615");
    EXPECT_EQ(text(std::uint32_t{7}), "7");
    EXPECT_EQ(text(true), "true");
    EXPECT_EQ(text("s"), "\"s\"");
}

TEST(JsonWriter, RawStaysOnItsLine) {
    std::string out = "a\n";
    JsonWriter(out).begin_array().raw("{\n\"k\":\r\n1.50}").end_array();
    EXPECT_EQ(out, "a\n[{ \"k\":  1.50}]");
}

TEST(JsonWriter, CommasAreItsOwn) {
    std::string out;
    JsonWriter w(out);
    w.begin_object()
        .member("a", 1)
        .key("b")
        .begin_array()
        .value(1)
        .begin_object()
        .end_object()
        .begin_array()
        .end_array();
    w.null()
        .raw("{\"r\":1}")
        .end_array()
        .member("c", Json(Json::Array{Json(1), Json("x")}))
        .end_object();
    EXPECT_EQ(out, R"({"a":1,"b":[1,{},[],null,{"r":1}],"c":[1,"x"]})");
    EXPECT_TRUE(Json::parse(out).ok());
}

}  // namespace
}  // namespace nereid
