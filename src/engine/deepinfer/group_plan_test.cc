#include "engine/deepinfer/group_plan.h"

#include <gtest/gtest.h>

#include <set>

#include "base/prng.h"

namespace nereid::engine::deepinfer {
namespace {

TEST(GroupPlan, LaunchesAreRead) {
    const auto launches = parse_launches(
        "rank 0 2 /opt/di/bin/python\nMASTER_PORT=23333\nEMPTY=\nrank 1 2 /opt/di/bin/python "
        "3\nA=b=c\n");
    ASSERT_TRUE(launches.ok()) << launches.error().message;
    ASSERT_EQ(launches->size(), 2u);
    EXPECT_EQ((*launches)[0].of, 2u);
    EXPECT_EQ((*launches)[0].environment, (std::vector<std::pair<std::string, std::string>>{
                                              {"MASTER_PORT", "23333"}, {"EMPTY", ""}}));
    EXPECT_EQ((*launches)[1].rank, 1u);
    EXPECT_EQ((*launches)[1].python, "/opt/di/bin/python 3");  // a path may hold spaces
    EXPECT_EQ((*launches)[1].environment[0].second, "b=c");
}

TEST(GroupPlan, OtherTextIsAConfigurationError) {
    for (const char* text : {"", "\n", "A=b\n", "rank 0 1\n", "rank 1 1 p\n", "rank x 1 p\n",
                             "rank 0 1 p\nno equals\n", "rank 0 1 p\n=v\n", "rank 0 1 \n"}) {
        const auto launches = parse_launches(text);
        ASSERT_FALSE(launches.ok()) << text;
        EXPECT_EQ(launches.code(), Code::kConfig) << text;
    }
}

model::EngineInfo info_of(std::uint32_t rank) {
    model::EngineInfo info;
    info.engine = "deepinfer";
    info.engine_version = "0.1.0";
    info.max_running = 256;
    info.max_queued = 512;
    info.context_tokens = 1000 + rank;
    info.kv_capacity_tokens = 4096;
    info.layout.family = "deepinfer/v4.1";
    info.data_parallel_rank = rank;
    info.data_parallel_size = 2;
    return info;
}

TEST(GroupPlan, GreetingsBecomeOne) {
    const std::vector<model::EngineInfo> infos{info_of(0), info_of(1)};
    const auto merged = merge_infos(infos);
    ASSERT_TRUE(merged.ok());
    EXPECT_EQ(merged->max_running, 512u);
    EXPECT_EQ(merged->max_queued, 1024u);
    EXPECT_EQ(merged->kv_capacity_tokens, 8192u);
    EXPECT_EQ(merged->context_tokens, 1000u);
}

TEST(GroupPlan, RanksThatDifferAreNoGroup) {
    const auto differs = [](auto change, const char* what) {
        std::vector<model::EngineInfo> infos{info_of(0), info_of(1)};
        change(infos[1]);
        const auto merged = merge_infos(infos);
        ASSERT_FALSE(merged.ok());
        EXPECT_EQ(merged.code(), Code::kConfig);
        EXPECT_NE(merged.error().message.find(what), std::string::npos) << merged.error().message;
    };
    differs([](auto& i) { i.engine_version = "0.2.0"; }, "version");
    differs([](auto& i) { i.model_digest[0] = 1; }, "model");
    differs([](auto& i) { i.layout.detail = "nextn=0"; }, "layout");
    differs([](auto& i) { i.roles = 2; }, "role");
}

model::AddRequest request(std::uint64_t id, std::size_t tokens) {
    model::AddRequest add;
    add.id = {id};
    add.prompt.assign(tokens, 5);
    return add;
}

TEST(GroupRouter, TheRankWithTheLeastToDoGetsIt) {
    GroupRouter router(2);
    EXPECT_EQ(router.place(request(1, 1000)), 0u);
    EXPECT_EQ(router.place(request(2, 100)), 1u);
    EXPECT_EQ(router.place(request(3, 100)), 1u);  // 200 tokens and two rows against 1000 and one
    model::StepFrame frame;
    frame.started = {{{1}, 0}};
    router.on_frame(0, frame);
    EXPECT_EQ(router.place(request(4, 100)), 0u);  // its prompt is computed: one row is left
    EXPECT_EQ(router.place(request(1, 9)), 0u) << "an id added twice goes where the first is";
    EXPECT_EQ(router.in_flight(), 4u);
}

TEST(GroupRouter, PrefilledRequestsAreKnownUntilReleased) {
    GroupRouter router(2);
    router.place(request(1, 10));
    const std::size_t rank = router.place(request(2, 10));
    model::StepFrame frame;
    model::Finished done;
    done.id = {2};
    done.reason = model::EndReason::kPrefilled;
    frame.finished = {done};
    router.on_frame(rank, frame);
    EXPECT_EQ(router.in_flight(), 1u);
    EXPECT_EQ(router.rank_of({2}), rank);
    EXPECT_EQ(router.release({2}), rank);
    EXPECT_EQ(router.rank_of({2}), std::nullopt);
    EXPECT_EQ(router.release({2}), std::nullopt);
}

// Random lives against a plain model: every request is on one rank until it ends there, counts
// never drift, whatever frames claim about requests of others.
TEST(GroupRouter, RandomLivesLeaveNothing) {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
        Prng prng(seed);
        const std::size_t ranks = 1 + prng.below(4);
        GroupRouter router(ranks);
        std::map<std::uint64_t, std::size_t> naive;
        std::uint64_t next = 0;
        for (int i = 0; i < 2000; ++i) {
            if (prng.chance(0.5)) {
                naive[next] = router.place(request(next, prng.below(500)));
                ++next;
                continue;
            }
            model::StepFrame frame;
            const std::size_t rank = prng.below(ranks);
            for (int n = 0; n < 3 && next > 0; ++n) {
                const std::uint64_t id = prng.below(next);
                if (prng.chance(0.5)) {
                    frame.started.push_back({{id}, 0});
                } else {
                    model::Finished done;
                    done.id = {id};
                    frame.finished.push_back(done);
                }
            }
            router.on_frame(rank, frame);
            for (const auto& f : frame.finished) {
                const auto it = naive.find(f.id.value);
                if (it != naive.end() && it->second == rank) naive.erase(it);
            }
            ASSERT_EQ(router.in_flight(), naive.size());
            std::size_t rows = 0;
            for (std::size_t r = 0; r < ranks; ++r) rows += router.in_flight(r);
            ASSERT_EQ(rows, naive.size());
            for (const auto& [id, at] : naive) ASSERT_EQ(router.rank_of({id}), at);
        }
    }
}

TEST(GroupPlan, LoadsAddUpAndTheSlowestRankCounts) {
    model::Load a, b;
    a.running = 3;
    b.running = 4;
    a.last_step = Duration(10);
    b.last_step = Duration(30);
    b.preempted = 2;
    const std::vector<model::Load> loads{a, b};
    const model::Load sum = merge_loads(loads);
    EXPECT_EQ(sum.running, 7u);
    EXPECT_EQ(sum.last_step, Duration(30));
    EXPECT_EQ(sum.preempted, 2u);
}

}  // namespace
}  // namespace nereid::engine::deepinfer
