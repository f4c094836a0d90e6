#include "workload/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/prng.h"

namespace nereid::workload {
namespace {

std::string slurp(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in.good()) << path;
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

constexpr std::string_view kMooncakeLines =
    R"({"timestamp": 27000, "input_length": 1300, "output_length": 52, "hash_ids": [46, 47, 2366]})"
    "\n"
    R"({"timestamp": 26000, "input_length": 1025, "output_length": 0, "hash_ids": [46, 47, 5]})"
    "\r\n\n"
    R"({"hash_ids": [], "timestamp": 26000.5, "input_length": 7, "output_length": 3, "more": {}})";

TEST(TraceReader, ReadsMooncake) {
    const auto trace = parse_trace(TraceFormat::kMooncake, kMooncakeLines);
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    ASSERT_EQ(trace->size(), 3U);
    EXPECT_EQ(trace->block_tokens(), 512U);
    const auto& e = trace->entries();
    EXPECT_EQ(e[0].arrival, Duration{0});  // sorted, moved to 0
    EXPECT_EQ(e[0].input_tokens, 1025U);
    EXPECT_EQ(e[0].output_tokens, 1U);  // at least one token comes
    EXPECT_EQ(e[1].arrival, 500us);
    EXPECT_EQ(e[2].arrival, 1s);
    EXPECT_EQ(std::vector(trace->blocks(e[2]).begin(), trace->blocks(e[2]).end()),
              (std::vector<std::uint64_t>{46, 47, 2366}));
}

TEST(TraceReader, DoesNotDependOnHowTheFileWasCut) {
    const auto whole = parse_trace(TraceFormat::kMooncake, kMooncakeLines);
    ASSERT_TRUE(whole.ok());
    for (std::size_t cut = 0; cut <= kMooncakeLines.size(); ++cut) {
        TraceReader reader(TraceFormat::kMooncake);
        ASSERT_TRUE(reader.feed(kMooncakeLines.substr(0, cut)).ok());
        ASSERT_TRUE(reader.feed(kMooncakeLines.substr(cut)).ok());
        const auto trace = reader.finish();
        ASSERT_TRUE(trace.ok());
        EXPECT_EQ(*trace, *whole) << cut;
    }
}

struct Refusal {
    TraceFormat format;
    const char* text;
    const char* message;  // is contained
};

TEST(TraceReader, RefusesWithTheLine) {
    const TraceFormat m = TraceFormat::kMooncake, a = TraceFormat::kAzure;
    const Refusal rows[] = {
        {m, "", "holds no request"},
        {m, "\n \n", "holds no request"},
        {m, "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n\n{]", "line 3: "},
        {m, "[1]", "line 1: line: expected an object, found array"},
        {m, "{\"input_length\": 1, \"output_length\": 1}", "line 1: timestamp: missing"},
        {m, "{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}",
         "timestamp: negative"},
        {m, "{\"timestamp\": 1e300, \"input_length\": 1, \"output_length\": 1}", "too large"},
        {m, "{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1}",
         "input_length: expected an integer"},
        {m, "{\"timestamp\": 0, \"input_length\": 1.5, \"output_length\": 1}", "found 1.5"},
        {m, "{\"timestamp\": 0, \"input_length\": \"9\", \"output_length\": 1}", "found string"},
        {m, "{\"timestamp\": 0, \"input_length\": 9}", "output_length: missing"},
        {m, "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": 3}",
         "hash_ids: expected an array"},
        {m, "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [-3]}",
         "hash_ids: expected integers"},
        {m, "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 1, \"hash_ids\": [1,2,3]}",
         "3 ids for 9 tokens"},
        {a, "", "holds no request"},
        {a, "TIMESTAMP,ContextTokens\n", "line 1: GeneratedTokens: no such column"},
        {a, "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"},
        {a, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4",
         "line 2: GeneratedTokens: missing"},
        {a, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4,x",
         "line 2: GeneratedTokens: expected an integer"},
        {a, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:17:03,4,4",
         "line 2: TIMESTAMP: expected"},
        {a, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-02-29 18:17:03,4,4",
         "line 2: TIMESTAMP: expected"},
        {a, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.,4,4",
         "line 2: TIMESTAMP: expected"},
        {a, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,4,4",
         "line 2: TIMESTAMP: expected"},
        {TraceFormat::kBailian,
         "{\"chat_id\": \"a\", \"timestamp\": 0, \"input_length\": 9, \"output_length\": 1}",
         "chat_id: expected an integer"},
    };
    for (const Refusal& row : rows) {
        const auto trace = parse_trace(row.format, row.text);
        ASSERT_FALSE(trace.ok()) << row.text;
        EXPECT_EQ(trace.code(), Code::kInvalidArgument);
        EXPECT_NE(trace.error().message.find(row.message), std::string::npos)
            << row.text << "\n  " << trace.error().message;
    }
}

TEST(TraceReader, AnErrorStays) {
    TraceReader reader(TraceFormat::kMooncake);
    ASSERT_FALSE(reader.feed("nonsense\n").ok());
    EXPECT_FALSE(
        reader.feed("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n").ok());
    EXPECT_FALSE(reader.finish().ok());
}

TEST(TraceReader, ALineWithoutEndIsRefusedBeforeItFillsMemory) {
    TraceReader reader(TraceFormat::kMooncake);
    const std::string piece(1 << 20, ' ');
    Result<void> fed;
    int pieces = 0;
    while (fed.ok() && pieces < 100) {
        fed = reader.feed(piece);
        ++pieces;
    }
    ASSERT_FALSE(fed.ok());
    EXPECT_EQ(fed.code(), Code::kTooLarge);
    EXPECT_LE(pieces, 5);
}

TEST(TraceReader, ReadsAzure2023And2024) {
    const auto trace = parse_trace(TraceFormat::kAzure,
                                   "\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\n"
                                   "2023-11-16 18:17:03.9799600,4808,10\n"
                                   "2024-05-10 00:00:00.009930+00:00,12,0\n"
                                   "2024-05-10T01:00:00+02:00,13,1");
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    EXPECT_EQ(trace->block_tokens(), 0U);
    ASSERT_EQ(trace->size(), 3U);
    EXPECT_EQ(trace->entries()[1].input_tokens, 13U);  // an hour earlier than it looks
    EXPECT_EQ(trace->entries()[2].arrival - trace->entries()[1].arrival, 1h + 9930us);
    EXPECT_EQ(trace->entries()[0].output_tokens, 10U);
    EXPECT_EQ(trace->entries()[2].output_tokens, 1U);
}

TEST(TraceReader, ReadsSessionsOfBailian) {
    const auto trace = parse_trace(
        TraceFormat::kBailian,
        R"({"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 5, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]})"
        "\n"
        R"({"chat_id": 9, "parent_chat_id": 7, "timestamp": 3.25, "input_length": 70, "output_length": 5, "turn": 2, "hash_ids": [1, 2, 4, 5, 6]})"
        "\n"
        R"({"chat_id": 8, "parent_chat_id": 1234, "timestamp": 4, "input_length": 16, "output_length": 5, "turn": 3, "hash_ids": [9]})");
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    EXPECT_EQ(trace->block_tokens(), 16U);
    const auto& e = trace->entries();
    EXPECT_EQ(e[0].session, e[1].session);
    EXPECT_NE(e[0].session, e[2].session);
    EXPECT_EQ(e[1].turn, 1U);
    EXPECT_EQ(e[2].turn, 0U);  // its parent is not in the file
    EXPECT_EQ(e[1].arrival, 2750ms);
}

TEST(TraceFormatOf, GoesByTheName) {
    EXPECT_EQ(*trace_format_of("/a.csv/conversation_trace.jsonl"), TraceFormat::kMooncake);
    EXPECT_EQ(*trace_format_of("qwen_traceA_blksz_16.jsonl"), TraceFormat::kBailian);
    EXPECT_EQ(*trace_format_of("AzureLLMInferenceTrace_conv.csv"), TraceFormat::kAzure);
    EXPECT_EQ(*trace_format_of("x.ntrace"), TraceFormat::kCompact);
    EXPECT_NE(trace_format_of("x.parquet").error().message.find(".ntrace"), std::string::npos);
}

TEST(InferSessions, ContinuesTheLatestWhoseWholeBlocksBeginTheChain) {
    Trace trace(512);
    const auto add = [&trace](int second, TokenCount input, std::vector<std::uint64_t> ids) {
        trace.add(std::chrono::seconds(second), input, 10, ids);
    };
    add(0, 1300, {0, 1, 2});        // whole blocks 0, 1
    add(1, 1400, {0, 1, 3});        // the same whole blocks: continues
    add(2, 2100, {0, 1, 3, 4, 5});  // continues the latest of the two
    add(3, 1100, {0, 9, 10});       // shares one block: a new session
    add(4, 400, {77});              // nothing whole
    add(5, 400, {78});
    infer_sessions(trace);
    const auto& e = trace.entries();
    EXPECT_EQ(e[1].session, e[0].session);
    EXPECT_EQ(e[2].session, e[0].session);
    EXPECT_EQ(e[2].turn, 2U);
    EXPECT_NE(e[3].session, e[0].session);
    EXPECT_NE(e[4].session, e[5].session);
    EXPECT_NE(e[4].session, 0U);
}

Trace random_trace(Prng& prng) {
    Trace trace(64);
    std::vector<std::vector<std::uint64_t>> chains;
    for (int i = 0; i < 300; ++i) {
        std::vector<std::uint64_t> chain;
        if (!chains.empty() && prng.chance(0.7)) {
            chain = chains[static_cast<std::size_t>(prng.below(chains.size()))];
            chain.resize(static_cast<std::size_t>(prng.below(chain.size() + 1)));
        }
        const auto more = prng.below(6);
        for (std::uint64_t k = 0; k < more; ++k) chain.push_back(prng.next());
        chains.push_back(chain);
        const auto input = static_cast<TokenCount>(chain.size() * 64 + prng.below(64) + 1);
        trace.add(Duration(static_cast<std::int64_t>(prng.below(1'000'000'000)) * 1000), input,
                  static_cast<TokenCount>(1 + prng.below(500)), chain, prng.below(4),
                  static_cast<std::uint32_t>(prng.below(9)));
    }
    trace.sort();
    return trace;
}

// Equal up to the names of ids: a one-to-one renaming exists.
void expect_same_but_for_names(const Trace& a, const Trace& b) {
    ASSERT_EQ(a.size(), b.size());
    ASSERT_EQ(a.block_tokens(), b.block_tokens());
    std::map<std::uint64_t, std::uint64_t> to, from;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const auto &x = a.entries()[i], &y = b.entries()[i];
        ASSERT_EQ(x.arrival, y.arrival);
        ASSERT_EQ(x.input_tokens, y.input_tokens);
        ASSERT_EQ(x.output_tokens, y.output_tokens);
        ASSERT_EQ(x.session, y.session);
        if (x.session != 0) {
            ASSERT_EQ(x.turn, y.turn);
        }
        const auto p = a.blocks(x), q = b.blocks(y);
        ASSERT_EQ(p.size(), q.size());
        for (std::size_t n = 0; n < p.size(); ++n) {
            ASSERT_EQ(to.try_emplace(p[n], q[n]).first->second, q[n]);
            ASSERT_EQ(from.try_emplace(q[n], p[n]).first->second, p[n]);
        }
    }
}

TEST(CompactTrace, KeepsEverythingButTheNamesOfIds) {
    Prng prng(11);
    for (int round = 0; round < 20; ++round) {
        const Trace trace = random_trace(prng);
        const std::string bytes = write_compact(trace);
        const auto back = parse_trace(TraceFormat::kCompact, bytes);
        ASSERT_TRUE(back.ok()) << back.error().message;
        expect_same_but_for_names(trace, *back);
        EXPECT_EQ(write_compact(*back), bytes);
    }
}

TEST(CompactTrace, EveryTruncationAndEveryFlippedByteIsNoticed) {
    Prng prng(12);
    const std::string bytes = write_compact(random_trace(prng));
    for (std::size_t n = 0; n < bytes.size(); n += 7)
        EXPECT_FALSE(parse_trace(TraceFormat::kCompact, bytes.substr(0, n)).ok());
    for (std::size_t n = 0; n < bytes.size(); n += 7) {
        std::string broken = bytes;
        broken[n] = static_cast<char>(broken[n] ^ 0x10);
        EXPECT_FALSE(parse_trace(TraceFormat::kCompact, broken).ok()) << n;
    }
}

TEST(Replay, OneCopyIsTheTrace) {
    Prng prng(13);
    const Trace trace = random_trace(prng);
    const auto source = replay(trace, {});
    Request r;
    for (std::size_t i = 0; i < trace.size(); ++i) {
        ASSERT_FALSE(source->exhausted());
        ASSERT_EQ(source->next_arrival(), trace.entries()[i].arrival);
        source->take(r);
        EXPECT_EQ(r.id, i);
        EXPECT_EQ(r.input_tokens, trace.entries()[i].input_tokens);
        EXPECT_TRUE(std::ranges::equal(r.blocks, trace.blocks(trace.entries()[i])));
    }
    EXPECT_TRUE(source->exhausted());
    EXPECT_EQ(source->next_arrival(), Source::kNever);
}

TEST(Replay, CopiesAndRepeatsShareNothingAndKeepTheirOwnSharing) {
    Prng prng(14);
    const Trace trace = random_trace(prng);
    const double hit_of_one = summarize(trace).hit_share;
    const auto source = replay(trace, {.copies = 3, .speed = 2, .repeats = 2, .jitter = 1ms});
    Trace all(64);
    Request r;
    Duration before{0};
    std::set<std::uint64_t> sessions;
    while (!source->exhausted()) {
        source->take(r);
        ASSERT_GE(r.arrival, before);
        before = r.arrival;
        all.add(r.arrival, r.input_tokens, r.output_tokens, r.blocks, r.session, r.turn);
        if (r.session != 0) sessions.insert(r.session);
    }
    EXPECT_EQ(all.size(), 6 * trace.size());
    EXPECT_EQ(sessions.size(), 6U * 3U);
    EXPECT_NEAR(summarize(all).hit_share, hit_of_one, 0.01);  // jitter may swap neighbours
    // Two repeats at twice the speed: as long as one, and the copies' offset.
    EXPECT_NEAR(to_seconds(all.span()), to_seconds(trace.span()), 20);
}

TEST(Replay, EndsAndRepeatsItself) {
    Prng prng(15);
    const Trace trace = random_trace(prng);
    const ReplayOptions options{.copies = 2, .copy_offset = 5s, .end = 400s, .seed = 9};
    const auto a = replay(trace, options);
    const auto b = replay(trace, options);
    Request x, y;
    std::size_t n = 0;
    while (!a->exhausted()) {
        a->take(x);
        b->take(y);
        ASSERT_EQ(x.arrival, y.arrival);
        ASSERT_EQ(x.blocks, y.blocks);
        ASSERT_LT(x.arrival, 400s);
        ++n;
    }
    EXPECT_TRUE(b->exhausted());
    EXPECT_GT(n, 100U);
    EXPECT_LT(n, 600U);
}

TEST(Replay, KnowsTheLastTurn) {
    Trace trace(16);
    for (int i = 0; i < 4; ++i)
        trace.add(std::chrono::seconds(i), 10, 1, {}, 1 + static_cast<unsigned>(i % 2),
                  static_cast<unsigned>(i / 2));
    trace.sort();
    const auto source = replay(trace, {});
    Request r;
    std::vector<bool> last;
    while (!source->exhausted()) {
        source->take(r);
        last.push_back(r.last_turn);
    }
    EXPECT_EQ(last, (std::vector<bool>{false, false, true, true}));
}

// Extracts of the public traces (tests/data/traces/README.md).
TEST(TraceFiles, ExtractsOfPublicTracesAreRead) {
    const auto mooncake = parse_trace(TraceFormat::kMooncake,
                                      slurp("tests/data/traces/mooncake_conversation_head.jsonl"));
    ASSERT_TRUE(mooncake.ok()) << mooncake.error().message;
    EXPECT_EQ(mooncake->size(), 200U);
    const auto azure =
        parse_trace(TraceFormat::kAzure, slurp("tests/data/traces/azure_conv_head.csv"));
    ASSERT_TRUE(azure.ok()) << azure.error().message;
    EXPECT_EQ(azure->size(), 200U);
    EXPECT_EQ(azure->entries()[0].input_tokens, 374U);
}

// 12,031 requests in 3,537 s. The often quoted 36.6 % of hits counts block ids, partial ones
// included; of the tokens, in whole blocks, it is 37.3 %.
TEST(TraceFiles, CompactMooncakeConversationIsTheWholeTrace) {
    auto trace =
        parse_trace(TraceFormat::kCompact, slurp("bench/data/mooncake_conversation.ntrace"));
    ASSERT_TRUE(trace.ok()) << trace.error().message;
    const TraceSummary s = summarize(*trace);
    EXPECT_EQ(s.requests, 12'031U);
    EXPECT_NEAR(to_seconds(s.span), 3537, 1);
    EXPECT_NEAR(s.input_mean, 12'035, 1);
    EXPECT_EQ(s.input_p50, 6909);
    EXPECT_EQ(s.input_max, 126'195);
    EXPECT_NEAR(s.output_mean, 343, 1);
    EXPECT_EQ(s.output_p50, 350);
    EXPECT_NEAR(s.hit_share, 0.3734, 0.0001);
    infer_sessions(*trace);
    const TraceSummary named = summarize(*trace);
    EXPECT_GT(named.sessions, 4000U);
    EXPECT_LT(named.sessions, 12'000U);
}

}  // namespace
}  // namespace nereid::workload
