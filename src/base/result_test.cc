#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace nereid {
namespace {

constexpr int kCodes = static_cast<int>(Code::kInternal) + 1;

TEST(CodeInfo, EveryCodeHasItsOwnNameAndARow) {
    std::set<std::string_view> names;
    for (int i = 0; i < kCodes; ++i) {
        const auto code = static_cast<Code>(i);
        const CodeInfo& info = code_info(code);
        EXPECT_FALSE(info.name.empty()) << i;
        EXPECT_TRUE(names.insert(info.name).second) << info.name;
        EXPECT_EQ(code_from_name(info.name), code);
        EXPECT_GE(info.http_status, 400);
        EXPECT_LE(info.http_status, 599);
        EXPECT_TRUE(info.who == "caller" || info.who == "operator" || info.who == "nobody");
    }
    EXPECT_EQ(code_from_name("no_such_code"), Code::kInternal);
}

// The table is written in the order of the enum: one row each pins that order.
TEST(CodeInfo, StatusesAreThoseOfTheContract) {
    const struct {
        Code code;
        std::string_view name;
        int status;
        bool retryable;
    } want[] = {
        {Code::kInvalidArgument, "invalid_argument", 400, false},
        {Code::kUnsupported, "unsupported", 400, false},
        {Code::kContextLength, "context_length", 400, false},
        {Code::kUnauthenticated, "unauthenticated", 401, false},
        {Code::kPermissionDenied, "permission_denied", 403, false},
        {Code::kNotFound, "not_found", 404, false},
        {Code::kConflict, "conflict", 409, false},
        {Code::kTooLarge, "too_large", 413, false},
        {Code::kRateLimited, "rate_limited", 429, true},
        {Code::kOverloaded, "overloaded", 503, true},
        {Code::kUnavailable, "unavailable", 503, true},
        {Code::kWorkerLost, "worker_lost", 500, true},
        {Code::kCancelled, "cancelled", 499, false},
        {Code::kDeadlineExceeded, "deadline_exceeded", 504, true},
        {Code::kCorrupt, "corrupt", 500, false},
        {Code::kNoSpace, "no_space", 507, true},
        {Code::kIo, "io", 500, true},
        {Code::kConfig, "config", 500, false},
        {Code::kInternal, "internal", 500, false},
    };
    ASSERT_EQ(static_cast<int>(std::size(want)), kCodes);
    for (const auto& w : want) {
        EXPECT_EQ(code_info(w.code).name, w.name);
        EXPECT_EQ(code_info(w.code).http_status, w.status) << w.name;
        EXPECT_EQ(code_info(w.code).retryable, w.retryable) << w.name;
    }
}

Result<int> half(int v) {
    if (v % 2 != 0) return err(Code::kInvalidArgument, "odd", "v");
    return v / 2;
}
Result<int> quarter(int v) {
    TRY(const int h, half(v));
    TRY(const int q, half(h));
    return q;
}
Result<void> must_be_even(int v) {
    TRY_VOID(half(v));
    return {};
}

TEST(Result, TryPassesValuesAndErrors) {
    EXPECT_EQ(quarter(8).value(), 2);
    const auto failed = quarter(6);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error(), (Error{Code::kInvalidArgument, "odd", "v"}));
    EXPECT_TRUE(must_be_even(4).ok());
    EXPECT_EQ(must_be_even(5).code(), Code::kInvalidArgument);
}

TEST(Result, CombinatorsTakeMoveOnlyValues) {
    const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(8); };
    EXPECT_EQ(make().map([](std::unique_ptr<int> p) { return *p; }).value(), 8);
    EXPECT_EQ(make().and_then([](std::unique_ptr<int> p) { return quarter(*p); }).value(), 2);
    EXPECT_EQ(quarter(6).map([](int v) { return v; }).code(), Code::kInvalidArgument);
}

TEST(Result, TryMovesTheValueOut) {
    const auto outer = []() -> Result<int> {
        TRY(auto p, []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(3); }());
        return *p;
    };
    EXPECT_EQ(outer().value(), 3);
}

}  // namespace
}  // namespace nereid
