#include "gateway/auth.h"

#include <gmock/gmock.h>

#include <vector>

#include "base/hash.h"
#include "gateway/admission.h"

namespace nereid::gateway {
namespace {

using testing::HasSubstr;

std::string hash(std::string_view key) { return to_hex(sha256(as_bytes(key))); }

TEST(KeyTable, FindsByKey) {
    const auto table = KeyTable::parse(
        "# comment\n\n a : " + hash("k1") + " \r\nb:" + hash("k2") + ":3\n", "keys", nullptr);
    ASSERT_TRUE(table.ok()) << table.error().message;
    EXPECT_EQ((*table)->find("k1")->name, "a");
    EXPECT_EQ((*table)->find("k1")->max_concurrency, 0);
    EXPECT_EQ((*table)->find("k2")->max_concurrency, 3);
    for (const std::string& wrong :
         {std::string(), std::string("k"), std::string("k11"), hash("k1")})
        EXPECT_EQ((*table)->find(wrong), nullptr);
}

TEST(KeyTable, FaultsNameTheLineAndNeverQuoteIt) {
    const std::string good = "a:" + hash("x") + "\n";
    const std::pair<std::string, std::string> cases[] = {
        {"", "there are no keys in it"},
        {"# only a comment\n", "there are no keys in it"},
        {good + "sk-my-real-key\n", "keys:2: there is no ':'"},
        {good + "b:sk-my-real-key\n", "keys:2: the digest must be 64 hex digits"},
        {good + "b c:" + hash("y"), "keys:2: the name must be"},
        {good + ":" + hash("y"), "keys:2: the name must be"},
        {good + "b:" + hash("y") + ":", "the limit after the second ':' is empty"},
        {good + "b:" + hash("y") + ":-1", "max_concurrency must be a number"},
        {good + "b:" + hash("y") + ":1x", "max_concurrency must be a number"},
        {good + "b:" + hash("y") + ":99999999999999999999", "max_concurrency must be a number"},
        {good + "a:" + hash("y"), "the name of key \"a\" appears a second time"},
        {good + "b:" + hash("x"), "the digest of key \"a\" appears a second time"},
    };
    for (const auto& [text, message] : cases) {
        const auto table = KeyTable::parse(text, "keys", nullptr);
        ASSERT_FALSE(table.ok()) << text;
        EXPECT_EQ(table.error().code, Code::kConfig);
        EXPECT_THAT(table.error().message, HasSubstr(message));
        EXPECT_THAT(table.error().message, HasSubstr("Mend: "));
        EXPECT_THAT(table.error().message, testing::Not(HasSubstr("sk-my-real-key")));
    }
}

TEST(KeyTable, CountersGoOnThroughAReload) {
    const auto before = *KeyTable::parse("a:" + hash("1"), "keys", nullptr);
    before->find("1")->in_flight->store(5);
    const auto after =
        *KeyTable::parse("b:" + hash("3") + "\na:" + hash("2"), "keys", before.get());
    EXPECT_EQ(after->find("2")->in_flight->load(), 5);
    EXPECT_EQ(after->find("3")->in_flight->load(), 0);
}

TEST(KeyTable, NewKeysWork) {
    std::vector<std::uint8_t> entropy(32);
    for (std::size_t i = 0; i < 32; ++i) entropy[i] = static_cast<std::uint8_t>(i);
    const auto key =
        make_key_line("team-a", 4, std::span<const std::uint8_t, 32>(entropy.data(), 32));
    ASSERT_TRUE(key.ok());
    EXPECT_EQ(key->key,
              "sk-nereid-000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
    const auto table = KeyTable::parse(key->line, "keys", nullptr);
    ASSERT_TRUE(table.ok());
    EXPECT_EQ((*table)->find(key->key)->max_concurrency, 4);
    EXPECT_FALSE(
        make_key_line("a:b", 0, std::span<const std::uint8_t, 32>(entropy.data(), 32)).ok());
    EXPECT_FALSE(
        make_key_line("a", -1, std::span<const std::uint8_t, 32>(entropy.data(), 32)).ok());
}

TEST(PresentedKey, BearerFirstThenHeader) {
    const auto of = [](std::vector<std::pair<std::string, std::string>> list) {
        io::Headers h;
        for (const auto& [n, v] : list) h.add(n, v);
        return std::string(presented_key(h));
    };
    EXPECT_EQ(of({}), "");
    EXPECT_EQ(of({{"Authorization", "Bearer abc"}}), "abc");
    EXPECT_EQ(of({{"authorization", "bEaReR  abc "}}), "abc");
    EXPECT_EQ(of({{"authorization", "Bearer"}}), "");
    EXPECT_EQ(of({{"authorization", "Bearerabc"}}), "");
    EXPECT_EQ(of({{"authorization", "Basic abc"}, {"x-api-key", "k"}}), "k");
    EXPECT_EQ(of({{"authorization", "Bearer abc"}, {"x-api-key", "k"}}), "abc");
}

TEST(Admission, BoundsAreExactAndHoldsAreReturned) {
    Admission admission(2);
    ApiKey key;
    key.max_concurrency = 1;
    key.in_flight = std::make_shared<std::atomic<std::int64_t>>(0);
    auto a = admission.enter(&key);
    ASSERT_TRUE(a.ok());
    EXPECT_EQ(admission.enter(&key).error().code, Code::kRateLimited);
    EXPECT_EQ(admission.in_flight(), 1);  // the refused one holds nothing
    auto b = admission.enter(nullptr);
    ASSERT_TRUE(b.ok());
    EXPECT_EQ(admission.enter(nullptr).error().code, Code::kOverloaded);
    EXPECT_EQ(admission.in_flight(), 2);
    a->release();
    a->release();
    EXPECT_EQ(admission.in_flight(), 1);
    EXPECT_EQ(key.in_flight->load(), 0);
    {
        Admission::Ticket moved = std::move(*b);
    }
    EXPECT_EQ(admission.in_flight(), 0);
    admission.start_drain();
    EXPECT_EQ(admission.enter(nullptr).error().code, Code::kOverloaded);
    EXPECT_EQ(admission.in_flight(), 0);
}

}  // namespace
}  // namespace nereid::gateway
