#include "gateway/image_decode.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace nereid::gateway {
namespace {

std::string file(const std::string& name) {
    std::ifstream in("tests/corpus/image/" + name, std::ios::binary);
    EXPECT_TRUE(in) << name;
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string big_endian(std::uint32_t value) {
    std::string out;
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
    return out;
}

// A PNG's header with another size; its checksum is not right, which is looked at later than its
// size or earlier, as the decoder likes: both refuse.
std::string png_of(std::uint32_t width, std::uint32_t height) {
    std::string png = file("six_by_four.png");
    png.replace(16, 8, big_endian(width) + big_endian(height));
    return png;
}

// GIF's size is in its header without a checksum.
std::string gif_of(std::uint16_t width, std::uint16_t height) {
    std::string gif = file("three_frames.gif");
    for (const auto& [at, value] : {std::pair{6u, width}, std::pair{8u, height}}) {
        gif[at] = static_cast<char>(value & 0xff);
        gif[at + 1] = static_cast<char>(value >> 8);
    }
    return gif;
}

void expect_refused(const std::string& bytes, std::string_view why,
                    const ImageLimits& limits = {}) {
    const auto facts = decode_image(bytes, limits);
    ASSERT_FALSE(facts.ok());
    EXPECT_EQ(facts.error().code, Code::kInvalidArgument);
    EXPECT_NE(facts.error().message.find(why), std::string::npos) << facts.error().message;
}

TEST(DecodeImage, KnowsEachFormatAndItsSize) {
    for (const auto& [name, type, width, height, frames] :
         {std::tuple{"six_by_four.png", "image/png", 6u, 4u, 1u},
          std::tuple{"six_by_four.jpg", "image/jpeg", 6u, 4u, 1u},
          std::tuple{"six_by_four.webp", "image/webp", 6u, 4u, 1u},
          std::tuple{"three_frames.gif", "image/gif", 5u, 3u, 3u},
          std::tuple{"sixteen_bits.png", "image/png", 2u, 2u, 1u}}) {
        const auto facts = decode_image(file(name), {});
        ASSERT_TRUE(facts.ok()) << name << facts.error().message;
        EXPECT_EQ(facts->media_type, type);
        EXPECT_EQ(facts->width, width) << name;
        EXPECT_EQ(facts->height, height) << name;
        EXPECT_EQ(facts->frames, frames) << name;
    }
}

TEST(DecodeImage, A95_WhatIsNoImageSaysSo) {
    expect_refused("", "unsupported image media type");
    expect_refused("ABC", "unsupported image media type");
    expect_refused("BM" + std::string(100, '\0'), "unsupported image media type");
    expect_refused("<svg/>", "unsupported image media type");
}

TEST(DecodeImage, EveryCutIsRefusedOrWhole) {
    for (const std::string name : {"six_by_four.png", "six_by_four.webp", "three_frames.gif"}) {
        const std::string whole = file(name);
        for (std::size_t size = 0; size < whole.size(); ++size) {
            const auto facts = decode_image(whole.substr(0, size), {});
            if (facts.ok()) {
                EXPECT_GT(size, whole.size() / 2) << name;
            } else {
                EXPECT_EQ(facts.error().code, Code::kInvalidArgument) << facts.error().message;
            }
        }
    }
    expect_refused(file("six_by_four.png").substr(0, 40), "damaged");
}

TEST(DecodeImage, LimitsHoldBeforePixelsAreAllocated) {
    expect_refused(gif_of(65'535, 65'535), "too large");
    expect_refused(gif_of(16'000, 16'000), "too large");
    EXPECT_FALSE(decode_image(png_of(0x7fffffff, 0x7fffffff), {}).ok());
    EXPECT_FALSE(decode_image(png_of(0, 1), {}).ok());
    expect_refused(file("six_by_four.png"), "too large", {.max_side = 5});
    expect_refused(file("six_by_four.webp"), "too large", {.max_pixels = 23});
    expect_refused(file("three_frames.gif"), "too large", {.max_frames = 2});
    expect_refused(file("three_frames.gif"), "too large", {.max_pixels = 44});
    EXPECT_TRUE(decode_image(file("three_frames.gif"), {.max_frames = 3, .max_pixels = 45}).ok());
}

}  // namespace
}  // namespace nereid::gateway
