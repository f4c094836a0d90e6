#include "base/check.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace nereid {
namespace {

TEST(CheckDeathTest, PrintsPlaceExpressionAndMessageThenAborts) {
    const int zero = 0;
    EXPECT_DEATH(CHECK(zero == 1), "check_test\\.cc:[0-9]+: CHECK failed: zero == 1");
    EXPECT_DEATH(CHECK_MSG(zero == 1, "the sky fell"), "zero == 1: the sky fell");
    CHECK(zero == 0);
}

TEST(CheckDeathTest, WrongKindOfJsonIsABug) { EXPECT_DEATH((void)Json(1).as_string(), "number"); }

}  // namespace
}  // namespace nereid
