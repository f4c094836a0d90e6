#include "kv/ssd/segment.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/hash.h"
#include "base/prng.h"

namespace nereid::kv::ssd {
namespace {

template <std::size_t N>
std::array<std::uint8_t, N> seq(std::uint8_t from) {
    std::array<std::uint8_t, N> out;
    std::iota(out.begin(), out.end(), from);
    return out;
}

RecordHeader example() {
    return {.ns = {seq<32>(1)},
            .key = {seq<16>(64)},
            .kind = 0,
            .paged = false,
            .ttl_s = 259200,
            .depth = 7,
            .payload_bytes = 114048,
            .payload_crc = 0xdeadbeef,
            .generation = 0x1122334455667788,
            .segment = 42,
            .page = 9,
            .expires_s = 1'800'000'000};
}
const std::vector<RecordSlice> kMap{{.layer = 2, .role = {'m', 'a'}, .length = 100000},
                                    {.layer = 20, .role = {'k', '\0'}, .length = 14048}};
const SegmentHead kHead{.folder = seq<16>(200),
                        .segment = 42,
                        .capacity = std::uint64_t{256} << 20,
                        .created_s = 1'799'000'000,
                        .expires_s = 1'800'003'600,
                        .ttl_s = 259200};

std::string encoded_record() {
    std::string out(header_bytes(kMap.size()), 'x');
    encode_record_header(example(), kMap, out);
    return out;
}

// Pinned, and made by another implementation (Python's struct and a CRC of its own): a change here
// is a new version of the format.
TEST(SegmentFormat, RecordHeaderBytes) {
    EXPECT_EQ(to_hex(as_bytes(encoded_record())),
              "4e4b53527be9d6630100c0000000020080f403000700000080bd0100efbeadde"
              "88776655443322112a000000000000000900000000d2496b0102030405060708"
              "090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f204041424344454647"
              "48494a4b4c4d4e4f000000000000000000000000000000000000000000000000"
              "02006d61a086010014006b00e036000000000000000000000000000000000000"
              "0000000000000000000000000000000000000000000000000000000000000000");
}
TEST(SegmentFormat, HeadAndTrailerAndSuperblockBytes) {
    std::array<char, kPage> head;
    encode_head(kHead, head);
    EXPECT_EQ(to_hex(as_bytes(std::string_view(head.data(), 80))),
              "4e4b534831d269310100000000100000c8c9cacbcccdcecfd0d1d2d3d4d5d6d7"
              "2a000000000000000000001000000000c08f3a6b10e0496b80f4030000000000"
              "00000000000000000000000000000000");
    FooterBuilder footer;
    ASSERT_TRUE(footer.add(example()));
    std::string bytes;
    footer.encode(kHead, 37, bytes);
    EXPECT_EQ(bytes.size(), footer.bytes());
    EXPECT_EQ(bytes.size(), 2 * kPage);
    EXPECT_EQ(to_hex(as_bytes(bytes.substr(32, 48))),
              "404142434445464748494a4b4c4d4e4f88776655443322110900000080bd0100"
              "0700000080f4030000d2496b00000000");
    EXPECT_EQ(to_hex(as_bytes(bytes.substr(kPage, 80))),
              "4e4b5346b55717ae0100010001000000c8c9cacbcccdcecfd0d1d2d3d4d5d6d7"
              "2a00000000000000250000000771f4cac08f3a6b10e0496b80bd010000000000"
              "80f40300000000000000000000000000");
    const std::string super = encode_superblock({.folder = seq<16>(5), .created_s = 7});
    EXPECT_EQ(super.size(), kPage);
    EXPECT_EQ(to_hex(as_bytes(super.substr(0, 64))),
              "4e4b5342c70a66ce010000000010000005060708090a0b0c0d0e0f1011121314"
              "0700000000000000000000000000000000000000000000000000000000000000");
}

TEST(Segment, RecordRoundTrip) {
    const std::string bytes = encoded_record();
    const auto r = decode_record_header(bytes);
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->header, example());
    EXPECT_EQ(r->payload_offset, header_bytes(2));
    EXPECT_EQ(record_slices(bytes, *r), kMap);
    EXPECT_EQ(record_bytes(false, 2, 114048), 28 * kPage);
}

// K2, K16: nothing of a header can change unseen.
TEST(Segment, EveryBitOfARecordHeaderIsChecked_K2_K16) {
    const std::string good = encoded_record();
    for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
        std::string bad = good;
        bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
        EXPECT_EQ(decode_record_header(bad).code(), Code::kCorrupt) << bit;
    }
    for (std::size_t n = 0; n < good.size(); ++n)
        EXPECT_FALSE(decode_record_header(std::string_view(good).substr(0, n)).ok()) << n;
}

TEST(Segment, EveryBitOfHeadTrailerFooterAndSuperblockIsChecked) {
    std::array<char, kPage> head;
    encode_head(kHead, head);
    std::string good(head.data(), kPage);
    ASSERT_EQ(*decode_head(good), kHead);
    FooterBuilder footer;
    for (std::uint32_t i = 0; i < 20; ++i) {
        auto h = example();
        h.page = 1 + 28 * i;
        h.ns.digest[0] = static_cast<std::uint8_t>(i % 3);
        ASSERT_TRUE(footer.add(h));
    }
    std::string foot;
    footer.encode(kHead, 600, foot);
    const std::uint64_t file = 600 * kPage + foot.size();
    const auto opens = [&](const std::string& bytes) {
        const auto t = decode_trailer(std::string_view(bytes).substr(bytes.size() - kPage), file);
        return t.ok() && FooterView::open(*t, bytes).ok();
    };
    ASSERT_TRUE(opens(foot));
    const std::string super = encode_superblock({.folder = seq<16>(5), .created_s = 7});
    ASSERT_TRUE(decode_superblock(super).ok());
    Prng rng(1);
    const auto flip = [&](std::string text, std::size_t bit) {
        text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
        return text;
    };
    for (std::size_t bit = 0; bit < good.size() * 8; ++bit)
        ASSERT_FALSE(decode_head(flip(good, bit)).ok()) << bit;
    for (std::size_t bit = 0; bit < super.size() * 8; ++bit)
        ASSERT_FALSE(decode_superblock(flip(super, bit)).ok()) << bit;
    const std::size_t body = 3 * 32 + 20 * kFooterEntryBytes;
    for (std::size_t bit = 0; bit < body * 8; ++bit) ASSERT_FALSE(opens(flip(foot, bit))) << bit;
    for (std::size_t bit = 0; bit < kPage * 8; ++bit)
        ASSERT_FALSE(opens(flip(foot, (foot.size() - kPage) * 8 + bit))) << bit;
}

TEST(Segment, FooterRoundTrip) {
    FooterBuilder footer;
    std::vector<RecordHeader> headers;
    Prng rng(3);
    std::uint32_t page = 1;
    for (std::uint32_t i = 0; i < 5000; ++i) {
        auto h = example();
        h.ns.digest[3] = static_cast<std::uint8_t>(rng.below(7));
        h.key.bytes[5] = static_cast<std::uint8_t>(i);
        h.payload_bytes = static_cast<std::uint32_t>(1 + rng.below(30000));
        h.kind = static_cast<std::uint8_t>(rng.below(2));
        h.paged = rng.chance(0.5);
        h.page = page;
        page += static_cast<std::uint32_t>(record_bytes(h.paged, 0, h.payload_bytes) / kPage);
        headers.push_back(h);
        ASSERT_TRUE(footer.add(h));
    }
    std::string bytes;
    footer.encode(kHead, page, bytes);
    const auto t = decode_trailer(std::string_view(bytes).substr(bytes.size() - kPage),
                                  page * kPage + bytes.size());
    ASSERT_TRUE(t.ok());
    const auto view = FooterView::open(*t, bytes);
    ASSERT_TRUE(view.ok());
    ASSERT_EQ(view->size(), headers.size());
    for (std::size_t i = 0; i < headers.size(); ++i) {
        const FooterEntry e = view->entry(i);
        ASSERT_EQ(e, footer.list()[i]);
        ASSERT_EQ(view->ns(e.ns), headers[i].ns);
        ASSERT_EQ(e.key, headers[i].key);
    }
    // A file of another length has no trailer at its end.
    EXPECT_FALSE(decode_trailer(std::string_view(bytes).substr(bytes.size() - kPage),
                                (page + 1) * kPage + bytes.size())
                     .ok());
}

TEST(Segment, FooterIsBounded) {
    FooterBuilder footer;
    for (std::uint32_t i = 0; i < 65536; ++i) ASSERT_TRUE(footer.add(example()));
    EXPECT_FALSE(footer.add(example()));
}

TEST(Segment, Names) {
    EXPECT_EQ(segment_name(0xa1), "seg-00000000000000a1.nks");
    for (const std::uint64_t id : {std::uint64_t{1}, std::uint64_t{0xabc}, ~std::uint64_t{0}})
        EXPECT_EQ(segment_of_name(segment_name(id)), id);
    for (const char* name : {"", "seg-.nks", "superblock", "seg-00000000000000A1.nks",
                             "seg-00000000000000a1.nksx", "seg-0000000000000000.nks"})
        EXPECT_EQ(segment_of_name(name), 0U) << name;
}

TEST(SegmentDeathTest, ALayerMapThatDoesNotAddUpIsOurBug) {
    std::string out(kPage, '\0');
    auto map = kMap;
    map[0].length += 1;
    EXPECT_DEATH(encode_record_header(example(), map, out), "sum == h.payload_bytes");
}

}  // namespace
}  // namespace nereid::kv::ssd
