// The engine over a pretended tier: what it saves, asks for, waits for, and that answers do not
// depend on it.
#include "engine/llama/block_tier.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "engine/llama/test_engine.h"

namespace nereid::engine::llama {
namespace {

using testing::expect_same;
using testing::Harness;
using testing::request;
using testing::small_options;
using testing::words;

// Outlives engines, as a node does.
struct Shelf {
    std::map<model::BlockKey, BlockBytes> blocks;
    std::vector<BlockTier::Fetch> asked;
    std::deque<BlockTier::Fetched> answers;
    std::vector<RequestId> cancelled;
    bool refuses = false;
    bool answers_at_once = true;
    std::size_t saves = 0;

    void answer(const BlockTier::Fetch& f) {
        BlockTier::Fetched out{.id = f.id, .from = f.from, .blocks = {}};
        for (std::size_t i = f.from; i < f.chain.size() && blocks.contains(f.chain[i]); ++i)
            out.blocks.push_back(blocks.at(f.chain[i]));
        answers.push_back(std::move(out));
    }
};

class FakeTier final : public BlockTier {
  public:
    explicit FakeTier(Shelf& shelf) : shelf_(shelf) {}
    void open(const model::KvLayout& layout) override { EXPECT_EQ(layout.block_tokens, 64u); }
    bool fetch(Fetch fetch) override {
        if (shelf_.refuses) return false;
        if (shelf_.answers_at_once) shelf_.answer(fetch);
        shelf_.asked.push_back(std::move(fetch));
        return true;
    }
    void cancel(RequestId id) override {
        shelf_.cancelled.push_back(id);
        std::erase_if(shelf_.answers, [id](const Fetched& f) { return f.id == id; });
    }
    bool has_fetched() const override { return !shelf_.answers.empty(); }
    std::vector<Fetched> take() override {
        std::vector<Fetched> out(std::make_move_iterator(shelf_.answers.begin()),
                                 std::make_move_iterator(shelf_.answers.end()));
        shelf_.answers.clear();
        return out;
    }
    void save(const model::Namespace&, const model::BlockKey& key, std::uint32_t,
              BlockBytes bytes) override {
        ++shelf_.saves;
        shelf_.blocks[key] = std::move(bytes);
    }
    void set_waker(std::function<void()>) override {}

  private:
    Shelf& shelf_;
};

struct WithTier : Harness {
    explicit WithTier(Shelf& shelf, LlamaOptions options = small_options()) : Harness(options) {
        engine->use_tier(std::make_unique<FakeTier>(shelf));
    }
};

TEST(BlockTier, AnswersAreTheSameColdRestoredAndAfterARestart_K48) {
    Shelf shelf;
    const auto prompt = words(300, 1);
    Harness alone(small_options());
    const auto expected = alone.ask(request(1, prompt, 8));
    {
        WithTier h(shelf);
        expect_same(h.ask(request(1, prompt, 8)), expected, "cold");
        EXPECT_EQ(shelf.saves, 4u);  // whole blocks of the prompt, and nothing that decode wrote
    }
    WithTier h(shelf);
    const auto restored = h.ask(request(1, prompt, 8));
    expect_same(restored, expected, "after a restart");
    // As far as a hit may go: three blocks, or all four.
    EXPECT_GE(restored.finished->cached_tokens, 192u);
    EXPECT_EQ(h.engine->counters().fetched_tokens, restored.finished->cached_tokens);
    EXPECT_LE(shelf.saves, 5u);  // what came from there is not saved again
    // The next turn of the conversation: from memory, without asking for what is here.
    auto turn = prompt;
    turn.insert(turn.end(), restored.tokens.begin(), restored.tokens.end());
    const auto more = words(100, 2);
    turn.insert(turn.end(), more.begin(), more.end());
    Harness fresh(small_options());
    expect_same(h.ask(request(2, turn, 8)), fresh.ask(request(2, turn, 8)), "second turn");
    EXPECT_EQ(shelf.asked.back().from, 4u);
}

TEST(BlockTier, NobodyWaitsForAFetchButItsRequest) {
    Shelf shelf;
    {
        WithTier(shelf).ask(request(1, words(300, 1), 1));
    }
    shelf.answers_at_once = false;
    WithTier h(shelf);
    h.submit(request(1, words(300, 1), 4));
    EXPECT_FALSE(h.engine->has_work());  // and nothing to poll
    EXPECT_EQ(h.engine->wake_at(), TimePoint::never());
    const auto other = h.ask(request(2, words(60, 5), 4));  // too short to ask for
    EXPECT_EQ(other.tokens.size(), 4u);
    EXPECT_FALSE(h.answers[1].finished.has_value());
    shelf.answer(shelf.asked.back());
    EXPECT_TRUE(h.engine->has_work());
    h.run();
    EXPECT_GE(h.answers[1].finished->cached_tokens, 192u);
}

TEST(BlockTier, RequestsOfOnePrefixAreServedByOneFetch_K38) {
    Shelf shelf;
    {
        WithTier(shelf).ask(request(1, words(300, 1), 1));
    }
    shelf.answers_at_once = false;
    WithTier h(shelf);
    for (std::uint64_t id = 1; id <= 6; ++id) h.submit(request(id, words(300, 1), 2));
    EXPECT_EQ(shelf.asked.size(), 7u);
    shelf.answer(shelf.asked[2]);
    h.run();
    EXPECT_EQ(shelf.cancelled.size(), 5u);
    for (std::uint64_t id = 1; id <= 6; ++id) {
        ASSERT_TRUE(h.answers[id].finished.has_value()) << id;
        EXPECT_GE(h.answers[id].finished->cached_tokens, 192u) << id;
    }
}

TEST(BlockTier, AMissARefusalAndAnAbortEndInAPrefillOrNothing_K5_K7) {
    Shelf shelf;
    WithTier h(shelf);
    EXPECT_EQ(h.ask(request(1, words(300, 1), 2)).finished->cached_tokens, 0u);  // nothing there
    shelf.refuses = true;
    EXPECT_EQ(h.ask(request(2, words(300, 2), 2)).finished->cached_tokens, 0u);
    shelf.refuses = false;
    shelf.answers_at_once = false;
    h.submit(request(3, words(300, 3), 2));
    h.submit(model::AbortRequest{{3}});
    h.run();
    EXPECT_EQ(h.answers[3].finished->reason, model::EndReason::kAborted);
    EXPECT_EQ(shelf.cancelled.back(), RequestId{3});
    EXPECT_FALSE(h.engine->has_work());
}

TEST(BlockTier, WrongBytesAreAMiss_K2_K12) {
    Shelf shelf;
    const auto prompt = words(300, 1);
    const auto expected = Harness(small_options()).ask(request(1, prompt, 6));
    {
        WithTier(shelf).ask(request(1, prompt, 1));
    }
    const auto chain = model::block_chain(testing::name_space("tenant"), prompt, kBlockTokens);
    const BlockBytes good = shelf.blocks.at(chain[1]);
    const auto with_second = [&](BlockBytes bytes, TokenCount cached) {
        shelf.blocks[chain[1]] = std::move(bytes);
        WithTier h(shelf);
        const auto got = h.ask(request(1, prompt, 6));
        expect_same(got, expected, "damaged");
        EXPECT_EQ(got.finished->cached_tokens, cached);
    };
    auto flipped = std::make_shared<std::string>(*good);
    (*flipped)[5000] = static_cast<char>((*flipped)[5000] ^ 1);
    with_second(flipped, 64);
    with_second(shelf.blocks.at(chain[2]), 64);                       // another block's
    with_second(std::make_shared<std::string>(good->substr(1)), 64);  // cut
    shelf.blocks[chain[1]] = good;
    EXPECT_GE(WithTier(shelf).ask(request(1, prompt, 6)).finished->cached_tokens, 192u);
}

TEST(BlockTier, AStoreWithoutRoomTakesWhatFits) {
    Shelf shelf;
    const auto prompt = words(450, 1);
    {
        WithTier(shelf).ask(request(1, prompt, 1));
    }
    LlamaOptions o = small_options();
    o.prefix_store_bytes = 3 * 1'474'624;
    WithTier h(shelf, o);
    EXPECT_EQ(h.ask(request(1, prompt, 2)).finished->cached_tokens, 192u);
    EXPECT_EQ(h.ask(request(2, words(450, 2), 2)).finished->cached_tokens, 0u);  // pins are gone
    EXPECT_EQ(h.engine->prefix_store().match(
                  model::block_chain(testing::name_space("tenant"), words(450, 2), kBlockTokens)),
              3u);
    o.prefix_store_bytes = 0;
    WithTier none(shelf, o);
    EXPECT_EQ(none.ask(request(1, prompt, 2)).finished->cached_tokens, 0u);
}

}  // namespace
}  // namespace nereid::engine::llama
