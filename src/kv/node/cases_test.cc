// Cases of other systems (cases/kv.md) that have no home elsewhere, by number.
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "kv/node/node_testing.h"

namespace nereid::kv {
namespace {

// K33: a state that has left memory is not forgotten: it is on SSD before its slot goes, and a hit
// that needs it still has it.
TEST(Cases, AStateThatLeftMemoryIsStillAState_K33) {
    NodeWorld::Setup setup;
    setup.geometry = NodeWorld::with_states();
    NodeWorld w(setup);
    const ClientId c = w.connect();
    w.put(c, 0, 4);
    const std::vector<ObjectName> state{{test_key(3), ObjectKind::kState, 3}};
    w.put_state(c, state[0]);
    w.run_effects();
    const auto all = static_cast<std::uint32_t>(w.arena->payload_capacity() / 4096);
    for (std::uint64_t k = 0; k < 2; ++k) {  // pushes everything out
        w.put(c, 10'000 + 10'000 * k, all);
        w.run_effects();
    }
    const auto hit = w.expect<Found>(c, Lookup{w.ns, 0, w.keys(0, 4), 84}).hit;
    EXPECT_EQ(hit.blocks, 4U);
    EXPECT_TRUE(hit.state);
    EXPECT_EQ(w.node->counters().append_lost, 0U);
    // Its slot is of another size than all that are there: a run has to go for it, and not the one
    // that the blocks before it are just being read into.
    std::vector<ObjectName> all_of_it = w.objects(0, 4);
    all_of_it.push_back(state[0]);
    w.send(c, Get{w.ns, all_of_it, 10s, 5s});
    const std::uint64_t tag = w.last_tag;
    w.run_effects();
    const Got got = w.as<Got>(w.take(c, tag));
    EXPECT_EQ(got.contiguous, 5U);
    w.expect_content(got);
    EXPECT_GT(w.node->counters().ssd_hits, 0U);
    w.node->check_invariants();
}

// K42: what is there and where, and a lease on it, is one command and one answer.
TEST(Cases, OneRoundTripForAPrefix_K42) {
    NodeWorld w;
    const ClientId c = w.connect();
    w.put(c, 0, 30);
    w.run_effects();
    const std::size_t before = w.replies.size();
    const auto found = w.expect<Found>(c, Lookup{w.ns, 0, w.keys(0, 40), 0, true});
    EXPECT_EQ(found.blocks, 30U);
    EXPECT_EQ(found.tiers.size(), 30U);
    const auto got = w.expect<Got>(c, Get{w.ns, w.objects(0, 40), 10s});  // without a look-up, too
    EXPECT_EQ(got.contiguous, 30U);
    EXPECT_NE(got.lease.value, 0U);
    EXPECT_EQ(w.replies.size(), before);
}

model::Namespace golden_namespace() {
    model::NamespaceParts parts;
    parts.model_digest.fill(1);
    parts.layout_fingerprint.fill(2);
    parts.salt = "tenant";
    return model::make_namespace(parts);
}

// K46: names are a hash of bytes that are written down; these were made by another program.
TEST(Cases, NamesAreTheSameInEveryProcess_K46) {
    const model::Namespace ns = golden_namespace();
    EXPECT_EQ(to_hex(ns.digest),
              "c62cd6871e3bcf69504c412ad2f146e2eb0a57a77e756b3b3d1a427f02ce0ac3");
    std::vector<TokenId> tokens(64);
    for (TokenId t = 0; t < 64; ++t) tokens[static_cast<std::size_t>(t)] = t;
    const auto key = model::block_chain(ns, tokens, 64).at(0);
    EXPECT_EQ(to_hex(key.bytes), "12ef199727cf4a169e28cbe7a7f23ab5");
    const auto hex = [](ObjectKey k) {
        std::array<std::uint8_t, 16> bytes;
        std::memcpy(bytes.data(), &k.hi, 8);
        std::memcpy(bytes.data() + 8, &k.lo, 8);
        return to_hex(bytes);
    };
    EXPECT_EQ(hex(object_key(ns, key, ObjectKind::kHistory)), "d4c3cf1039f4857fce648acd75037c57");
    EXPECT_EQ(hex(object_key(ns, key, ObjectKind::kState)), "7bc3a87b322082a7250c6ed1ae0ebb30");
}

// K44: fields have their lengths with them: what moves from one into the next is another name.
TEST(Cases, FieldsDoNotRunIntoOneAnother_K44) {
    const std::vector<TokenId> tokens(64, 7);
    const model::Namespace ns = golden_namespace();
    const auto name = [&](std::string_view adapter, std::vector<model::ImageRef> images = {}) {
        return model::block_chain(ns, tokens, 64, images, adapter).at(0);
    };
    Digest256 image{};
    std::memcpy(image.data(), "adapter", 7);
    EXPECT_NE(name("adapter"), name(""));
    EXPECT_NE(name("adapter"), name("", {{0, image}}));
    EXPECT_NE(name("r", {{0, image}}), name("", {{0, image}}));
    model::NamespaceParts a;
    a.salt = "tenant";
    model::NamespaceParts b = a;
    b.salt = std::string("tenant\x01", 7);
    b.determinism = false;
    EXPECT_NE(model::make_namespace(a), model::make_namespace(b));
}

}  // namespace
}  // namespace nereid::kv
