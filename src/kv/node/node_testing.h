// For tests: a node over real memory with a pretended SSD and pretended clients. Effects are run
// when the test says so, in any order, with any outcome.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/prng.h"
#include "io/memory_region.h"
#include "kv/node/node.h"
#include "kv/tier/copy_crc.h"

namespace nereid::kv {

// The bytes that belong under a key; what any reader must find there.
inline std::vector<std::uint8_t> content_of(ObjectKey key, std::size_t length) {
    std::vector<std::uint8_t> out(length);
    for (std::size_t i = 0; i < length; i += 8) {
        const std::uint64_t word = keyed_u64(key.lo, key.hi + i);
        std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, length - i));
    }
    return out;
}

inline model::BlockKey test_key(std::uint64_t i) {
    model::BlockKey k;
    const std::uint64_t a = keyed_u64(77, i);
    const std::uint64_t b = keyed_u64(78, i);
    std::memcpy(k.bytes.data(), &a, 8);
    std::memcpy(k.bytes.data() + 8, &b, 8);
    return k;
}

struct NodeWorld {
    struct Setup {
        ByteCount arena_bytes = 1 << 20;
        ByteCount history_bytes = 4000;
        NodeOptions options = {};
        Geometry geometry = {};
        std::uint64_t index_entries = 4096;
    };
    static Setup without_ssd() {
        Setup setup;
        setup.options.ssd = false;
        return setup;
    }
    // History and a state at every fourth block.
    static Geometry with_states() {
        return {.block_tokens = 16,
                .history_bytes = 4000,
                .state_bytes = 9000,
                .keep_tokens = 20,
                .replay = ReplayPolicy::kStoredState,
                .checkpoint_blocks = 4};
    }
    struct Record {
        RecordInfo info;
        std::vector<std::uint8_t> bytes;
    };

    explicit NodeWorld(Setup setup) : geometry(setup.geometry) {
        if (geometry.block_tokens == 0) geometry = {.block_tokens = 16, .history_bytes = 4000};
        geometry.history_bytes = setup.history_bytes;
        memory = std::move(*io::MemoryRegion::anonymous(setup.arena_bytes, false));
        arena = std::move(
            *Arena::create(memory.bytes(), {.page_bytes = 64 << 10, .min_slot_bytes = 4096}));
        reader.emplace(std::move(*ArenaReader::open(memory.bytes())));
        index = std::move(
            *Index::create({.entries = setup.index_entries, .seed = 3, .huge_pages = false}));
        options = setup.options;
        restart();
    }
    NodeWorld() : NodeWorld(Setup{}) {}

    // A new process: DRAM and its index are gone, the SSD stays.
    void restart() {
        node.reset();
        memory = std::move(*io::MemoryRegion::anonymous(memory.size(), false));
        arena = std::move(
            *Arena::create(memory.bytes(), {.page_bytes = 64 << 10, .min_slot_bytes = 4096}));
        reader.emplace(std::move(*ArenaReader::open(memory.bytes())));
        index = std::move(*Index::create(
            {.entries = index->stats().capacity * 3 / 4, .seed = 4, .huge_pages = false}));
        copies.clear();
        appends.clear();
        reads.clear();
        node = std::make_unique<Node>(options, *arena, *index);
    }

    static model::Namespace namespace_of(std::string salt) {
        model::NamespaceParts parts;
        parts.salt = std::move(salt);
        return model::make_namespace(parts);
    }

    void step(Event event) {
        std::vector<Action> actions;
        node->step(std::move(event), now, actions);
        for (Action& a : actions) {
            if (auto* r = std::get_if<Reply>(&a)) replies.push_back(std::move(*r));
            if (auto* r = std::get_if<RememberClear>(&a)) replies.push_back(std::move(r->reply));
            if (auto* c = std::get_if<CopyIn>(&a)) copies.push_back(*c);
            if (auto* s = std::get_if<AppendSsd>(&a)) appends.push_back(*s);
            if (auto* s = std::get_if<ReadSsd>(&a)) reads.push_back(*s);
            if (auto* t = std::get_if<TouchSsd>(&a)) touched.push_back(t->location);
        }
    }
    void advance(Duration d) {
        now.mono = now.mono + d;
        now.wall.since_epoch += d;
        step(Tick{});
    }

    // Sends a command; its first answer if there is one already.
    std::optional<Answer> send(ClientId client, Command command) {
        const std::uint64_t tag = next_tag++;
        last_tag = tag;
        step(Request{client, tag, std::move(command)});
        return take(client, tag);
    }
    std::optional<Answer> take(ClientId client, std::uint64_t tag) {
        for (auto it = replies.begin(); it != replies.end(); ++it) {
            if (it->client == client && it->tag == tag) {
                Answer answer = std::move(it->answer);
                replies.erase(it);
                return answer;
            }
        }
        return std::nullopt;
    }
    template <class T>
    T expect(ClientId client, Command command) {
        auto answer = send(client, std::move(command));
        return as<T>(answer);
    }
    template <class T>
    static T as(const std::optional<Answer>& answer) {
        if (!answer || !std::holds_alternative<T>(*answer)) {
            ADD_FAILURE() << (answer && std::holds_alternative<Error>(*answer)
                                  ? std::get<Error>(*answer).message
                                  : "another answer, or none");
            return T{};
        }
        return std::get<T>(*answer);
    }
    Code code(ClientId client, Command command) {
        return as<Error>(send(client, std::move(command))).code;
    }

    ClientId connect(std::string salt = "a", std::uint64_t tenant = 1) {
        const ClientId client{next_client++};
        ns = open(client, std::move(salt), tenant);
        return client;
    }
    NsId open(ClientId client, std::string salt, std::uint64_t tenant = 1) {
        return expect<NamespaceOpened>(
                   client, OpenNamespace{namespace_of(std::move(salt)), geometry, tenant})
            .ns;
    }

    static std::vector<ObjectName> objects(std::uint64_t first, std::uint32_t count) {
        std::vector<ObjectName> out;
        for (std::uint32_t i = 0; i < count; ++i) {
            out.push_back({test_key(first + i), ObjectKind::kHistory, i});
        }
        return out;
    }
    static std::vector<model::BlockKey> keys(std::uint64_t first, std::uint32_t count) {
        std::vector<model::BlockKey> out;
        for (std::uint32_t i = 0; i < count; ++i) out.push_back(test_key(first + i));
        return out;
    }

    // Where a client puts the bytes of a key in its region; region 9 does not exist.
    CommitItem item(ReservationId id, std::uint64_t key, std::string salt = "a") {
        const auto bytes = content_of(
            object_key(namespace_of(std::move(salt)), test_key(key), ObjectKind::kHistory),
            geometry.history_bytes);
        staging[key] = bytes;
        return {id, 0, key, static_cast<std::uint32_t>(bytes.size()), crc32c(bytes)};
    }

    void finish_copy(std::size_t i = 0) {
        const CopyIn c = copies.at(i);
        copies.erase(copies.begin() + static_cast<long>(i));
        const auto from = staging.find(c.offset);
        if (c.region != 0 || from == staging.end()) {
            return step(CopyDone{c.job, err(Code::kInvalidArgument, "no such staging")});
        }
        step(CopyDone{c.job, copy_crc32c(c.into, from->second)});
    }
    void finish_append(std::size_t i = 0, std::optional<Error> failure = {}) {
        const AppendSsd a = appends.at(i);
        appends.erase(appends.begin() + static_cast<long>(i));
        if (failure) return step(AppendDone{a.job, *failure});
        // What is written is what is in the slot when the device reads it.
        EXPECT_EQ(crc32c(a.payload), a.info.payload_crc);
        const Location at{Tier::kSsd, next_location++};
        ssd[at.value] = {a.info, {a.payload.begin(), a.payload.end()}};
        step(AppendDone{a.job, at});
    }
    void finish_read(std::size_t i = 0, std::optional<Error> failure = {}) {
        const ReadSsd r = reads.at(i);
        reads.erase(reads.begin() + static_cast<long>(i));
        if (failure) return step(ReadDone{r.job, *failure});
        const auto it = ssd.find(r.location.value);
        if (it == ssd.end() || it->second.info.object() != r.key) {
            return step(ReadDone{r.job, err(Code::kNotFound, "another record is there")});
        }
        if (crc32c(it->second.bytes) != it->second.info.payload_crc) {
            return step(ReadDone{r.job, err(Code::kCorrupt, "crc")});
        }
        std::copy(it->second.bytes.begin(), it->second.bytes.end(), r.into.begin());
        step(ReadDone{r.job, it->second.info});
    }
    void run_effects() {
        while (!copies.empty() || !appends.empty() || !reads.empty()) {
            if (!copies.empty()) finish_copy();
            if (!reads.empty()) finish_read();
            if (!appends.empty()) finish_append();
        }
    }

    // Reserve, commit and copy of blocks [first, first + count). Asserts success.
    void put(ClientId client, std::uint64_t first, std::uint32_t count, std::string salt = "a") {
        const auto reserved = expect<Reserved>(client, Reserve{ns, objects(first, count), 10s});
        std::vector<CommitItem> items;
        for (std::uint32_t i = 0; i < reserved.ids.size(); ++i) {
            if (reserved.ids[i].value != 0) items.push_back(item(reserved.ids[i], first + i, salt));
        }
        send(client, Commit{items});
        const std::uint64_t tag = last_tag;
        while (!copies.empty()) finish_copy(copies.size() - 1);
        auto answer = take(client, tag);
        for (const auto s :
             items.empty() ? std::vector<ObjectStatus>{} : as<Committed>(answer).status) {
            EXPECT_EQ(s, ObjectStatus::kOk);
        }
    }
    void put_state(ClientId client, const ObjectName& state) {
        const auto r = expect<Reserved>(client, Reserve{ns, {state}, 10s});
        const auto bytes = content_of(object_key(namespace_of("a"), state.key, ObjectKind::kState),
                                      geometry.state_bytes);
        const auto length = static_cast<std::uint32_t>(bytes.size());
        staging[500] = bytes;
        send(client, Commit{{{r.ids.at(0), 0, 500, length, crc32c(bytes)}}});
    }
    // What a restart would find on SSD.
    std::vector<ScanEntry> scan() const {
        std::vector<ScanEntry> out;
        for (const auto& [at, record] : ssd) {
            out.push_back({record.info.object(), {Tier::kSsd, at}, record.info.expiry, 0});
        }
        return out;
    }
    Got get(ClientId client, std::uint64_t first, std::uint32_t count, Duration wait = 0s) {
        auto answer = send(client, Get{ns, objects(first, count), 10s, wait});
        const std::uint64_t tag = last_tag;
        while (!reads.empty()) finish_read();
        if (!answer) answer = take(client, tag);
        return as<Got>(answer);
    }
    // The bytes of these places are the ones that belong to their keys.
    void expect_content(const Got& got) {
        std::vector<std::uint8_t> out;
        for (const SlotRef& place : got.places) {
            if (place.length == 0) continue;
            out.resize(place.length);
            const auto copied = reader->copy(place, out);
            ASSERT_TRUE(copied.ok()) << copied.error().message;
            ASSERT_EQ(out, content_of(place.key, place.length));
        }
    }
    std::uint32_t found(ClientId client, std::uint64_t first, std::uint32_t count) {
        return expect<Found>(client, Lookup{ns, 0, keys(first, count), 0, true}).blocks;
    }
    void expect_nothing_held() {
        const NodeHeld h = node->held();
        EXPECT_EQ(h.leases + h.pinned_slots + h.reservations + h.writing_slots + h.reads +
                      h.appends + h.waiting_gets + h.followers + h.pollers,
                  0U);
        node->check_invariants();
    }

    Geometry geometry;
    NodeOptions options;
    io::MemoryRegion memory;
    std::unique_ptr<Arena> arena;
    std::optional<ArenaReader> reader;
    std::unique_ptr<Index> index;
    std::unique_ptr<Node> node;
    Now now{{1h}, {std::chrono::hours(490'000)}};
    NsId ns = 0;

    std::deque<Reply> replies;
    std::vector<CopyIn> copies;
    std::vector<AppendSsd> appends;
    std::vector<ReadSsd> reads;
    std::vector<Location> touched;
    std::map<std::uint64_t, Record> ssd;
    std::map<std::uint64_t, std::vector<std::uint8_t>> staging;
    std::uint64_t next_location = 100;
    std::uint64_t next_tag = 1;
    std::uint64_t last_tag = 0;
    std::uint64_t next_client = 1;
};

}  // namespace nereid::kv
