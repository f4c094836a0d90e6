#include "ops/trace.h"

#include <gtest/gtest.h>

namespace nereid::ops {
namespace {

constexpr std::string_view kTrace = "0af7651916cd43dd8448eb211c80319c";
constexpr std::string_view kSpan = "b7ad6b7169203331";
constexpr std::string_view kHeader = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

std::string header_with(std::size_t at, std::string_view text) {
    std::string h(kHeader);
    h.replace(at, text.size(), text);
    return h;
}

TEST(Traceparent, ReadsAndWrites) {
    const auto context = parse_traceparent(kHeader);
    ASSERT_TRUE(context);
    EXPECT_EQ(context->trace_id_hex(), kTrace);
    EXPECT_EQ(context->span_id_hex(), kSpan);
    EXPECT_TRUE(context->sampled());
    EXPECT_EQ(format_traceparent(*context), kHeader);
    EXPECT_FALSE(parse_traceparent(header_with(53, "00"))->sampled());
    EXPECT_EQ(format_traceparent(*parse_traceparent(header_with(53, "ff"))), header_with(53, "03"));
}

TEST(Traceparent, LaterVersionsGiveTheirFirstFourMembers) {
    const std::string later = header_with(0, "cc");
    EXPECT_EQ(parse_traceparent(later), parse_traceparent(kHeader));
    EXPECT_EQ(parse_traceparent(later + "-what-the-future-will-be-like"),
              parse_traceparent(kHeader));
    EXPECT_EQ(parse_traceparent(later + "-"), parse_traceparent(kHeader));
    EXPECT_FALSE(parse_traceparent(later + ".what"));
    EXPECT_FALSE(parse_traceparent(later + "0"));
}

TEST(Traceparent, InvalidHeadersAreIgnored) {
    EXPECT_FALSE(parse_traceparent(""));
    EXPECT_FALSE(parse_traceparent(header_with(0, "ff")));
    EXPECT_FALSE(parse_traceparent(header_with(0, "0x")));
    EXPECT_FALSE(parse_traceparent(std::string(kHeader) + "-"));
    EXPECT_FALSE(parse_traceparent(std::string(kHeader) + "x"));
    EXPECT_FALSE(parse_traceparent(" " + std::string(kHeader)));
    EXPECT_FALSE(parse_traceparent(header_with(3, std::string(32, '0'))));
    EXPECT_FALSE(parse_traceparent(header_with(36, std::string(16, '0'))));
    EXPECT_FALSE(parse_traceparent(header_with(3, "0AF7")));
    EXPECT_FALSE(parse_traceparent(header_with(36, "B7")));
    EXPECT_FALSE(parse_traceparent(header_with(53, "0A")));
    EXPECT_FALSE(parse_traceparent(header_with(10, "g")));
    for (const std::size_t separator : {2u, 35u, 52u})
        EXPECT_FALSE(parse_traceparent(header_with(separator, "_")));
    for (std::size_t n = 0; n < kHeader.size(); ++n)
        EXPECT_FALSE(parse_traceparent(kHeader.substr(0, n)));
}

TEST(Tracestate, PassesThrough) {
    EXPECT_EQ(parse_tracestate("congo=t61rcWkgMzE"), "congo=t61rcWkgMzE");
    EXPECT_EQ(
        parse_tracestate("rojo=00f067aa0ba902b7 , congo=t61,\t, fw529a3039@dt=FfffffffFfff:="),
        std::nullopt);
    EXPECT_EQ(parse_tracestate("rojo=00f067aa0ba902b7 , congo=t61,\t, tenant@vendor=a b:c"),
              "rojo=00f067aa0ba902b7,congo=t61,tenant@vendor=a b:c");
    EXPECT_EQ(parse_tracestate(""), "");
    EXPECT_EQ(parse_tracestate(",, ,"), "");
    EXPECT_EQ(parse_tracestate("0a=1"), "0a=1");
}

TEST(Tracestate, BoundsAndGrammar) {
    std::string members;
    for (int i = 0; i < 32; ++i) members += (i == 0 ? "k" : ",k") + std::to_string(i) + "=v";
    EXPECT_EQ(parse_tracestate(members), members);
    EXPECT_FALSE(parse_tracestate(members + ",one=more"));
    EXPECT_FALSE(parse_tracestate("a=1,a=2"));
    for (const std::string_view bad :
         {"a", "=1", "A=1", "a=", "a b=1", "a=b=c", "a=\x7f", "a=\xc3\xa9", "_a=1", "a=1\n,b=2"}) {
        EXPECT_FALSE(parse_tracestate(bad)) << bad;
    }
    EXPECT_TRUE(parse_tracestate(std::string(256, 'k') + "=" + std::string(256, 'v')));
    EXPECT_FALSE(parse_tracestate(std::string(257, 'k') + "=v"));
    EXPECT_FALSE(parse_tracestate("k=" + std::string(257, 'v')));
}

// O54: what we send on is a child of our span, not a sibling.
TEST(TraceContext, ChildrenHaveASpanOfTheirOwn_O54) {
    Prng prng(1);
    TraceContext parent = *parse_traceparent(kHeader);
    parent.state = "a=1";
    const TraceContext child = child_of(parent, prng);
    EXPECT_EQ(child.trace_id, parent.trace_id);
    EXPECT_EQ(child.flags, parent.flags);
    EXPECT_EQ(child.state, "a=1");
    EXPECT_NE(child.span_id, parent.span_id);
    EXPECT_NE(child_of(parent, prng).span_id, child.span_id);
}

TEST(TraceContext, NewTracesAreValidAndRepeatable) {
    Prng a(2);
    Prng b(2);
    for (int i = 0; i < 100; ++i) {
        const TraceContext t = new_trace(a, i % 2 == 0);
        EXPECT_EQ(t, new_trace(b, i % 2 == 0));
        EXPECT_EQ(parse_traceparent(format_traceparent(t)), t);
        EXPECT_EQ(t.sampled(), i % 2 == 0);
    }
}

}  // namespace
}  // namespace nereid::ops
