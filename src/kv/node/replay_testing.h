// Replays the block references of a request trace through a node, for its hit ratio by capacity.
// Payloads are pretended: slots are of 4 KiB and never touched.
//
// A request looks up its blocks, gets the contiguous ones, releases them, and puts the others: what
// an engine does. Its hits are the contiguous blocks (facts/kv.md §4.1).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/prng.h"
#include "io/memory_region.h"
#include "kv/node/node.h"

namespace nereid::kv {

using BlockTrace = std::vector<std::vector<std::uint64_t>>;  // ids of each request, head first

// Mooncake's JSON lines, in order of time.
inline Result<BlockTrace> parse_mooncake(std::string_view text) {
    std::vector<std::pair<std::int64_t, std::vector<std::uint64_t>>> rows;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.empty()) continue;
        TRY(const Json json, Json::parse(line));
        const Json* time = json.find("timestamp");
        const Json* ids = json.find("hash_ids");
        if (time == nullptr || ids == nullptr) return err(Code::kCorrupt, "not a Mooncake trace");
        std::vector<std::uint64_t> blocks;
        for (const Json& id : ids->as_array()) {
            blocks.push_back(static_cast<std::uint64_t>(id.as_int().value_or(0)));
        }
        rows.emplace_back(time->as_int().value_or(0), std::move(blocks));
    }
    std::vector<std::pair<std::int64_t, std::size_t>> order;
    for (std::size_t i = 0; i < rows.size(); ++i) order.emplace_back(rows[i].first, i);
    std::sort(order.begin(), order.end());
    BlockTrace trace;
    for (const auto& [time, i] : order) trace.push_back(std::move(rows[i].second));
    return trace;
}

struct Replayed {
    double hit_ratio = 0;
    NodeCounters counters;
    std::vector<HitCurve::Point> curve;
};

class Replay {
  public:
    explicit Replay(std::uint64_t capacity_blocks) {
        constexpr ByteCount kSlot = kArenaGrain;
        constexpr ByteCount kPage = 16 * kSlot;
        // A capacity of whole pages, the nearest; with room for superblock and slot headers.
        const ByteCount pages = std::max<ByteCount>(1, (capacity_blocks + 8) / 16);
        const ByteCount table = (pages * 16 * 64 + 4095) / 4096 * 4096;
        memory_ = std::move(*io::MemoryRegion::anonymous(4096 + table + pages * kPage, false));
        arena_ = std::move(
            *Arena::create(memory_.bytes(), {.page_bytes = kPage, .min_slot_bytes = kSlot}));
        CHECK(arena_->slot_count() == pages * 16);
        index_ = std::move(*Index::create(
            {.entries = arena_->slot_count() + 1024ULL, .seed = 1, .huge_pages = false}));
        NodeOptions options;
        options.ssd = false;
        options.event_ring = 16;
        options.max_client_reservations = 1 << 30;
        node_ = std::make_unique<Node>(options, *arena_, *index_);
        Geometry g{.block_tokens = 512, .history_bytes = kSlot};
        send(OpenNamespace{{}, g, 1});
    }

    Replayed run(const BlockTrace& trace) {
        std::uint64_t hits = 0;
        std::uint64_t references = 0;
        for (const auto& request : trace) {
            references += request.size();
            hits += one(request);
            now_.mono = now_.mono + 1ms;
        }
        node_->check_invariants();
        return {static_cast<double>(hits) / static_cast<double>(references), node_->counters(),
                node_->hit_curve()};
    }

  private:
    std::uint32_t one(const std::vector<std::uint64_t>& ids) {
        Lookup lookup{0, 0, {}, 0, false};
        std::vector<ObjectName> objects;
        for (const std::uint64_t id : ids) {
            model::BlockKey key;
            const std::uint64_t a = keyed_u64(1, id);
            const std::uint64_t b = keyed_u64(2, id);
            std::memcpy(key.bytes.data(), &a, 8);
            std::memcpy(key.bytes.data() + 8, &b, 8);
            lookup.keys.push_back(key);
            objects.push_back(
                {key, ObjectKind::kHistory, static_cast<std::uint32_t>(objects.size())});
        }
        send(std::move(lookup));
        const Got got = std::get<Got>(send(Get{0, objects, 1s}));
        if (got.lease.value != 0) send(Release{got.lease});
        objects.erase(objects.begin(), objects.begin() + got.contiguous);
        const Reserved reserved = std::get<Reserved>(send(Reserve{0, objects, 1s}));
        Commit commit;
        for (const ReservationId id : reserved.ids) {
            if (id.value != 0) commit.items.push_back({id, 0, 0, kArenaGrain, 7});
        }
        send(std::move(commit));
        return got.contiguous;
    }

    Answer send(Command command) {
        std::vector<Action> actions;
        node_->step(Request{ClientId{1}, 1, std::move(command)}, now_, actions);
        Answer answer;
        for (std::size_t i = 0; i < actions.size(); ++i) {
            if (auto* reply = std::get_if<Reply>(&actions[i])) {
                answer = std::move(reply->answer);
            } else if (const auto* copy = std::get_if<CopyIn>(&actions[i])) {
                node_->step(CopyDone{copy->job, 7U}, now_, actions);
            }
        }
        CHECK(!std::holds_alternative<Error>(answer));
        return answer;
    }

    io::MemoryRegion memory_;
    std::unique_ptr<Arena> arena_;
    std::unique_ptr<Index> index_;
    std::unique_ptr<Node> node_;
    Now now_{{1h}, {std::chrono::hours(490'000)}};
};

}  // namespace nereid::kv
