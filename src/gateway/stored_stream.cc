#include "gateway/stored_stream.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "gateway/pending.h"
#include "gateway/stored_response.h"

namespace nereid::gateway {
namespace {

constexpr char kWholeKind[] = "response_events";
constexpr char kPartKind[] = "response_part";
constexpr std::size_t kMaxWhole = 32u << 20;
constexpr std::string_view kCut = ": cut\n\n";  // ends a stream that did not come to its end
constexpr Duration kPartEvery = 250ms;
constexpr Duration kLookEvery = 250ms;
constexpr int kLooksForAnEnd = 8;  // between the end of a response and its whole stream
constexpr std::uint32_t kPage = 1000;

std::string parts_of(std::string_view id, std::string_view process) {
    return fmt::format("{}/{}", id, process);
}
std::string part_name(std::string_view list, std::uint32_t number) {
    return fmt::format("{}/{:08}", list, number);
}

store::ListQuery parts_query(std::string tenant, std::string list, std::uint32_t limit) {
    store::ListQuery query{
        .kind = kPartKind, .tenant = std::move(tenant), .parent = std::move(list), .after = {}};
    query.limit = limit;
    return query;
}

// The answer to a follower: it begins with the first bytes.
class Answer {
  public:
    Answer(Exchange& x, std::uint64_t skip) : x_(x), skipper_(skip) {}

    bool begun() const { return begun_; }
    std::size_t taken() const { return taken_; }

    io::Task<Result<void>> give(std::string_view frames) {
        taken_ += frames.size();
        const std::string_view wanted = skipper_.take(frames);
        if (begun_) co_return co_await x_.reply().chunk(wanted);
        begun_ = true;
        x_.record.status = 200;
        io::Headers headers = x_.headers("text/event-stream; charset=utf-8");
        headers.add("cache-control", "no-cache");
        co_return co_await x_.reply().start(200, headers, wanted);
    }
    io::Task<void> end() { note(co_await x_.reply().finish()); }
    // No more will come.
    io::Task<void> cut(Error error) {
        if (begun_)
            x_.reply().abort();
        else
            co_await x_.fail(std::move(error));
    }
    bool note(const Result<void>& sent) {
        if (!sent.ok()) x_.write_failed(sent.error());
        return sent.ok();
    }

  private:
    Exchange& x_;
    FrameSkipper skipper_;
    std::size_t taken_ = 0;  // bytes of the stream, skipped ones too
    bool begun_ = false;
};

Error no_stream() {
    return {Code::kInvalidArgument, "This response has no stream that can be read again.",
            "stream"};
}

}  // namespace

store::Key stored_stream_key(const Exchange& x, std::string_view id) {
    return response_key(x, kWholeKind, id);
}

StoredStream::StoredStream(Exchange& x, std::string id, std::shared_ptr<Recording> recording)
    : x_(x), id_(std::move(id)), recording_(std::move(recording)) {}

io::Task<void> StoredStream::keep_parts() {
    const std::string list = parts_of(id_, x_.core().process_id);
    store::Record part{.key = response_key(x_, kPartKind, {}), .parent = list};
    for (std::size_t offset = 0;;) {
        const Recording::View view = recording_->from(offset);
        if (!view.head.streamed || view.bytes.empty()) {
            co_await recording_->changed(x_.loop(), view.version);
            continue;
        }
        part.key.id = part_name(list, parts_++);
        part.body = view.bytes;
        part.expires = expiry(x_);
        // The same part again and again: a write that failed may have been done, and read.
        while (!(co_await x_.core().records->put(x_.loop(), part)).ok()) {
            x_.core().probe.part_not_written();
            co_await x_.loop().sleep_for(kPartEvery);
        }
        offset += view.bytes.size();
        co_await x_.loop().sleep_for(kPartEvery);
    }
}

io::Task<void> StoredStream::close(bool ours) {
    std::vector<store::Change> changes;
    const std::string list = parts_of(id_, x_.core().process_id);
    for (std::uint32_t i = 0; i < parts_; ++i) {
        changes.push_back({.op = store::Change::Op::kRemove,
                           .record = {.key = response_key(x_, kPartKind, part_name(list, i))}});
    }
    Recording::View all = recording_->from(0);
    if (!all.whole) all.bytes += kCut;
    if (ours && all.head.streamed && all.bytes.size() <= kMaxWhole) {
        store::Record whole{.key = stored_stream_key(x_, id_),
                            .parent = x_.core().process_id,
                            .body = std::move(all.bytes)};
        whole.expires = expiry(x_);
        changes.push_back({.op = store::Change::Op::kPut, .record = std::move(whole)});
    }
    if (changes.empty()) co_return;
    const auto kept = co_await x_.core().records->write(x_.loop(), std::move(changes));
    if (!kept.ok()) {
        x_.core().log.error("a response's stream could not be stored",
                            {{"id", id_}, {"error", kept.error().message}});
    }
}

io::Task<void> follow_stored(Exchange& x, std::string id, std::uint64_t skip,
                             std::shared_ptr<Job>& here) {
    store::Records& records = *x.core().records;
    Answer answer(x, skip);
    std::string process;     // whose parts are given
    std::uint64_t last = 0;  // of these, by order
    for (int ended = 0; ended < kLooksForAnEnd;) {
        here = answer.begun() ? nullptr : x.core().jobs.find(job_name(x, id));
        if (here != nullptr) co_return;
        const auto whole = co_await records.get(x.loop(), stored_stream_key(x, id));
        if (whole.ok()) {
            if (answer.begun() && whole->parent != process)
                co_return co_await answer.cut(no_stream());
            std::string_view bytes = whole->body;
            const bool cut = bytes.ends_with(kCut);
            if (cut) bytes.remove_suffix(kCut.size());
            const auto rest = bytes.substr(std::min(answer.taken(), bytes.size()));
            if (!answer.note(co_await answer.give(rest))) co_return;
            co_return co_await (cut ? answer.cut(no_stream()) : answer.end());
        }
        const auto owner = co_await pending_owner(x, id);
        if (!owner) ++ended;
        if (owner && *owner != process) {
            if (answer.begun()) co_return co_await answer.cut(no_stream());
            process = *owner;
        }
        auto query = parts_query(x.record.key, parts_of(id, process), kPage);
        query.after_order = last;
        // None: none yet, or the whole has replaced them.
        const auto parts = co_await records.list(x.loop(), std::move(query));
        if (parts.ok() && !parts->empty()) {
            std::string bytes;
            for (const store::Record& part : *parts) bytes += part.body;
            last = parts->back().order;
            if (!answer.note(co_await answer.give(bytes))) co_return;
        }
        co_await x.loop().sleep_for(kLookEvery);
    }
    co_await answer.cut(no_stream());
}

io::Task<bool> has_parts(Exchange& x, std::string id, std::string process) {
    auto parts = co_await x.core().records->list(
        x.loop(), parts_query(x.record.key, parts_of(id, process), 1));
    co_return parts.ok() && !parts->empty();
}

io::Task<void> forget_parts(Core& core, io::Loop& loop, std::string tenant, std::string id,
                            std::string process) {
    const store::ListQuery query = parts_query(std::move(tenant), parts_of(id, process), kPage);
    for (;;) {
        auto parts = co_await core.records->list(loop, query);
        if (!parts.ok() || parts->empty()) co_return;
        std::vector<store::Change> changes;
        for (store::Record& part : *parts) {
            changes.push_back(
                {.op = store::Change::Op::kRemove, .record = {.key = std::move(part.key)}});
        }
        if (!(co_await core.records->write(loop, std::move(changes))).ok()) co_return;
    }
}

}  // namespace nereid::gateway
