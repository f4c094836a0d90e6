#include "kv/node/probe.h"

#include <fmt/format.h>

namespace nereid::kv {
namespace {

struct Named {
    std::uint64_t NodeCounters::* field;
    const char* name;
    const char* help;
};
constexpr std::array kNamed{
    Named{&NodeCounters::lookups, "nereid_kv_lookups_total", "Look-ups answered."},
    Named{&NodeCounters::requested_tokens, "nereid_kv_requested_tokens_total",
          "Tokens of the blocks looked up."},
    Named{&NodeCounters::contiguous_hit_tokens, "nereid_kv_contiguous_hit_tokens_total",
          "Tokens found contiguously from the first block asked for."},
    Named{&NodeCounters::usable_hit_tokens, "nereid_kv_usable_hit_tokens_total",
          "Tokens of hits that the namespace's rules let an engine use."},
    Named{&NodeCounters::sampled_raw_tokens, "nereid_kv_sampled_raw_hit_tokens_total",
          "Of every 16th look-up: tokens of all blocks there, also behind a hole."},
    Named{&NodeCounters::sampled_contiguous_tokens, "nereid_kv_sampled_contiguous_hit_tokens_total",
          "Of every 16th look-up: tokens of the contiguous blocks."},
    Named{&NodeCounters::overpromised_tokens, "nereid_kv_overpromised_tokens_total",
          "Tokens that a look-up promised and the record denied."},
    Named{&NodeCounters::dram_hits, "nereid_kv_dram_hits_total", "Objects given from DRAM."},
    Named{&NodeCounters::ssd_hits, "nereid_kv_ssd_hits_total", "Objects read from SSD."},
    Named{&NodeCounters::misses, "nereid_kv_misses_total", "Objects asked for and not there."},
    Named{&NodeCounters::joined_reads, "nereid_kv_joined_total",
          "Objects that another's read or write brought."},
    Named{&NodeCounters::get_deadlines, "nereid_kv_get_deadlines_total",
          "Gets that ended at their deadline."},
    Named{&NodeCounters::committed, "nereid_kv_committed_total", "Objects stored."},
    Named{&NodeCounters::commit_repeats, "nereid_kv_commit_repeats_total",
          "Commits that were repeated."},
    Named{&NodeCounters::commits_refused, "nereid_kv_commits_refused_total",
          "Commits refused or failed."},
    Named{&NodeCounters::exists, "nereid_kv_put_exists_total",
          "Reservations of objects that were there already."},
    Named{&NodeCounters::attached, "nereid_kv_put_attached_total",
          "Reservations that attached to another's write."},
    Named{&NodeCounters::reservations_expired, "nereid_kv_reservations_expired_total",
          "Reservations whose time ran out."},
    Named{&NodeCounters::no_space, "nereid_kv_no_space_total",
          "Objects for which no slot could be freed."},
    Named{&NodeCounters::put_crc_failures, "nereid_kv_put_crc_failures_total",
          "Commits whose bytes had another checksum."},
    Named{&NodeCounters::crc_failures, "nereid_kv_crc_failures_total",
          "Objects read from SSD that were damaged."},
    Named{&NodeCounters::read_failures, "nereid_kv_read_failures_total",
          "Reads from SSD that failed otherwise."},
    Named{&NodeCounters::dram_bytes_in, "nereid_kv_dram_in_bytes_total", "Bytes put into DRAM."},
    Named{&NodeCounters::dram_bytes_out, "nereid_kv_dram_out_bytes_total",
          "Bytes given from DRAM."},
    Named{&NodeCounters::ssd_bytes_in, "nereid_kv_ssd_in_bytes_total", "Bytes written to SSD."},
    Named{&NodeCounters::ssd_bytes_out, "nereid_kv_ssd_out_bytes_total", "Bytes read from SSD."},
    Named{&NodeCounters::append_failures, "nereid_kv_append_failures_total",
          "Writes to SSD that failed."},
    Named{&NodeCounters::append_deferred, "nereid_kv_append_deferred_total",
          "Writes to SSD that had to wait."},
    Named{&NodeCounters::append_lost, "nereid_kv_append_lost_total",
          "Objects that left DRAM before they were on SSD."},
    Named{&NodeCounters::held_back, "nereid_kv_put_held_back_total",
          "Puts that found no room while others waited for the SSD."},
    Named{&NodeCounters::ssd_gone, "nereid_kv_ssd_gone_total", "Records the SSD tier dropped."},
    Named{&NodeCounters::index_full, "nereid_kv_index_full_total",
          "Objects for which the index had no room."},
    Named{&NodeCounters::clients_gone, "nereid_kv_clients_gone_total",
          "Clients that left or died."},
    Named{&NodeCounters::leases_expired, "nereid_kv_leases_expired_total",
          "Leases that were not released in time."},
    Named{&NodeCounters::refused, "nereid_kv_refused_total", "Commands answered with an error."},
};
constexpr std::array kCauses{"capacity", "quota", "expired", "cleared", "corrupt", "steal"};
static_assert(kCauses.size() == kEvictCauses);

void raise(ops::Counter& counter, std::uint64_t now, std::uint64_t before) {
    if (now > before) counter.add(now - before);
}

}  // namespace

NodeProbe::NodeProbe(ops::Registry& registry)
    : registry_(registry),
      lookup_seconds_(registry.histogram("nereid_kv_lookup_seconds",
                                         "Time of a look-up inside the node.",
                                         ops::short_seconds_buckets())),
      leases_(registry.gauge("nereid_kv_leases", "Leases held by clients.")),
      pinned_(registry.gauge("nereid_kv_pinned_slots", "Slots that leases keep.")),
      reservations_(registry.gauge("nereid_kv_reservations", "Open reservations.")),
      append_queue_(registry.gauge("nereid_kv_append_queue", "Objects waiting to go to SSD.")),
      blocks_(registry.gauge("nereid_kv_dram_objects", "Readable objects in DRAM.")),
      tier_bytes_(registry.gauge("nereid_kv_tier_used_bytes", "Bytes in use.", {"tier"})),
      tier_capacity_(registry.gauge("nereid_kv_tier_capacity_bytes", "Bytes there are.", {"tier"})),
      write_amplification_(registry.gauge("nereid_kv_ssd_write_amplification_ratio",
                                          "Bytes on the device per byte stored.")),
      curve_(registry.gauge("nereid_kv_hit_curve_ratio",
                            "Share of block references that DRAM of so many blocks would hit.",
                            {"blocks"})),
      device_corrupt_(registry.counter("nereid_kv_ssd_corrupt_total",
                                       "Damaged records that the SSD tier found.")),
      device_errors_(registry.counter("nereid_kv_ssd_io_errors_total", "Errors of the device.")) {
    for (const Named& n : kNamed) {
        sources_.push_back({n.field, &registry_.counter(n.name, n.help)});
    }
    auto& clients = registry.counter("nereid_kv_client_objects_total",
                                     "What clients report: objects saved and fetched, and what "
                                     "became of the others (node_given_up: times).",
                                     {"outcome"});
    constexpr std::array kOutcomes{"saved",         "save_dropped",  "save_failed",
                                   "fetched",       "fetch_timeout", "fetch_failed",
                                   "fetch_skipped", "node_given_up"};
    static_assert(kOutcomes.size() == kClientCounts);
    for (std::size_t i = 0; i < kClientCounts; ++i) clients_[i] = &clients.with({kOutcomes[i]});
    auto& evictions =
        registry.counter("nereid_kv_evictions_total", "Objects that left DRAM.", {"cause"});
    for (std::size_t i = 0; i < kEvictCauses; ++i) {
        evictions_[i] = &evictions.with({kCauses[i]});
    }
}

void NodeProbe::publish(const NodeCounters& counters, const NodeHeld& held, const SsdStats* ssd,
                        const std::vector<HitCurve::Point>& curve) {
    for (const Source& s : sources_) {
        raise(*s.counter, counters.*s.field, last_.*s.field);
    }
    for (std::size_t i = 0; i < kEvictCauses; ++i) {
        raise(*evictions_[i], counters.evictions[i], last_.evictions[i]);
    }
    last_ = counters;
    leases_.set(static_cast<double>(held.leases));
    pinned_.set(static_cast<double>(held.pinned_slots));
    reservations_.set(static_cast<double>(held.reservations));
    append_queue_.set(static_cast<double>(held.append_queue + held.appends));
    blocks_.set(static_cast<double>(held.blocks));
    tier_bytes_.with({"dram"}).set(static_cast<double>(held.dram_used_bytes));
    tier_capacity_.with({"dram"}).set(static_cast<double>(held.dram_capacity_bytes));
    for (const HitCurve::Point& p : curve) {
        curve_.with({fmt::format("{}", p.blocks)}).set(p.hit_ratio);
    }
    if (ssd == nullptr) return;
    tier_bytes_.with({"ssd"}).set(static_cast<double>(ssd->used_bytes));
    tier_capacity_.with({"ssd"}).set(static_cast<double>(ssd->capacity_bytes));
    if (ssd->payload_bytes > 0) {
        write_amplification_.set(static_cast<double>(ssd->written_bytes) /
                                 static_cast<double>(ssd->payload_bytes));
    }
    raise(device_corrupt_, ssd->corrupt, last_ssd_.corrupt);
    raise(device_errors_, ssd->io_errors, last_ssd_.io_errors);
    last_ssd_ = *ssd;
}

}  // namespace nereid::kv
