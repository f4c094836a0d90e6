// nereid_peek: a sibling extension of deepinfer._C that reaches what its bindings leave out. No patch: it is compiled
// against the same headers with the same pybind11, and shares the registry of types. Every call belongs on the engine
// thread, between steps.
//
//   block_table(seq)                the blocks that a request owns (a copy)
//   prompted(scheduler)             number of requests that wait for admission to decode
//   add_prompted(scheduler, seq)    a request with its KV in place enters a decode-only engine: no clone, no spare block
//   adopt(scheduler, seq, ids)      the request takes `ids` (shared: each gets one more reference) as its first blocks, and
//                                   fresh ones and a state for the rest. False, and nothing changed, when there is no room
//   output(ptr)                     (request_id, token, reason, logprob, drafted, accepted): one call instead of six
//   Rows                            the requests whose tokens need no second look: add(name, id, logprob, stop_ids), and
//                                   remove(name), which gives how many tokens of it were packed (0 when it is not there)
//   Rows.pack(ptrs, at, tokens, drafts)
//                                   appends what one step returned, from ptrs[at] on, to two bytearrays in the form of the
//                                   wire (TokenOut, DraftCount; little-endian), up to the first output that is not of such
//                                   a request, ends it, or is one of its stop ids; returns where it stands. 0.1 us a token
//   crc32c(register, data)          engine-wire's checksum: starts with 0xFFFFFFFF, the CRC is the register inverted
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/outputs.hpp"
#include "engine/scheduler.hpp"
#include "engine/sequence.hpp"

namespace {

bool adopt(Scheduler& scheduler, Sequence& seq, const std::vector<int>& ids) {
    TORCH_CHECK(seq.schedule.status == SequenceStatus::WAITING, "only a waiting request adopts blocks");
    TORCH_CHECK(seq.cache.block_table.empty() && seq.cache.state_id == -1, "the request owns blocks already");
    const int need = seq.get_num_blocks() - static_cast<int>(ids.size());
    TORCH_CHECK(need >= 0, "more blocks than the request has");
    py::gil_scoped_release release;  // the lock refuses a holder of the GIL
    BlockManagerMutexAcquire lock{scheduler.block_manager, scheduler.state_manager};
    const bool state = !scheduler.state_manager || scheduler.state_manager->can_allocate_single_nolock();
    if (!state || scheduler.block_manager->can_allocate_nolock(need) != AllocStatus::OK) return false;
    scheduler.block_manager->pin_blocks_nolock(ids);
    auto table = ids;
    const auto fresh = scheduler.block_manager->allocate_nolock(need);
    table.insert(table.end(), fresh.begin(), fresh.end());
    seq.cache.block_table = std::move(table);
    if (scheduler.state_manager) seq.cache.state_id = scheduler.state_manager->allocate_single_nolock();
    return true;
}

py::tuple output(const uint64_t ptr) {
    const auto& o = *reinterpret_cast<const RequestOutput*>(ptr);
    return py::make_tuple(o.request_id, o.token_id, o.finish_reason, o.token_logprobs, o.draft_tok, o.accept_tok);
}

// The bytes of a bytearray beyond what it has, to be filled; shrinks it to what was filled.
class Tail {
  public:
    Tail(const py::bytearray& bytes, size_t most) : bytes_(bytes.ptr()), used_(PyByteArray_GET_SIZE(bytes_)) {
        if (PyByteArray_Resize(bytes_, used_ + static_cast<Py_ssize_t>(most)) != 0) throw py::error_already_set();
    }
    ~Tail() { PyByteArray_Resize(bytes_, used_); }
    Tail(const Tail&) = delete;
    Tail& operator=(const Tail&) = delete;
    template <class T>
    void put(T value) {
        std::memcpy(PyByteArray_AS_STRING(bytes_) + used_, &value, sizeof value);
        used_ += sizeof value;
    }

  private:
    PyObject* bytes_;
    Py_ssize_t used_;
};

class Rows {
  public:
    void add(std::string name, uint64_t id, bool logprob, std::vector<int> stops) {
        rows_.insert_or_assign(std::move(name), Row{id, logprob, std::move(stops)});
    }
    uint32_t remove(const std::string& name) {
        const auto at = rows_.find(name);
        if (at == rows_.end()) return 0;
        const uint32_t packed = at->second.packed;
        rows_.erase(at);
        return packed;
    }
    py::ssize_t pack(const py::array_t<uint64_t, py::array::c_style | py::array::forcecast>& ptrs, py::ssize_t at,
                     const py::bytearray& tokens, const py::bytearray& drafts) {
        static constexpr size_t kToken = 20, kDraft = 16;  // wire.py: "<QifI", "<QII"
        const py::ssize_t count = ptrs.size();
        const uint64_t* data = ptrs.data();
        const auto left = static_cast<size_t>(std::max<py::ssize_t>(0, count - at));
        Tail token_tail(tokens, left * kToken), draft_tail(drafts, left * kDraft);
        for (; at < count; ++at) {
            const auto& o = *reinterpret_cast<const RequestOutput*>(data[at]);
            if (!std::string_view(o.finish_reason).empty()) break;
            const auto found = rows_.find(o.request_id);
            if (found == rows_.end()) break;
            Row& row = found->second;
            const int32_t token = o.token_id;
            if (std::find(row.stops.begin(), row.stops.end(), token) != row.stops.end()) break;
            ++row.packed;
            token_tail.put(row.id);
            token_tail.put(token);
            token_tail.put(row.logprob ? static_cast<float>(o.token_logprobs) : 0.0f);
            token_tail.put(uint32_t{0});
            if (o.draft_tok > 1) {
                draft_tail.put(row.id);
                draft_tail.put(static_cast<uint32_t>(o.draft_tok - 1));
                draft_tail.put(static_cast<uint32_t>(o.accept_tok - 1));
            }
        }
        return at;
    }

  private:
    struct Row {
        uint64_t id = 0;
        bool logprob = false;
        std::vector<int> stops = {};
        uint32_t packed = 0;
    };
    std::unordered_map<std::string, Row> rows_;
};

// CRC-32C, eight bytes a turn (Intel's slicing-by-8).
uint32_t crc32c(uint32_t state, const py::buffer& data) {
    static const auto tables = [] {
        std::array<std::array<uint32_t, 256>, 8> t{};
        for (uint32_t byte = 0; byte < 256; ++byte) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
            t[0][byte] = crc;
        }
        for (size_t row = 1; row < 8; ++row)
            for (size_t byte = 0; byte < 256; ++byte)
                t[row][byte] = t[0][t[row - 1][byte] & 0xFF] ^ (t[row - 1][byte] >> 8);
        return t;
    }();
    const py::buffer_info info = data.request();
    TORCH_CHECK(info.ndim == 1 && info.itemsize == 1, "bytes are wanted");
    const auto* at = static_cast<const uint8_t*>(info.ptr);
    auto left = static_cast<size_t>(info.size);
    for (; left >= 8; left -= 8, at += 8) {
        uint64_t word = 0;
        std::memcpy(&word, at, 8);
        word ^= state;
        state = 0;
        for (size_t k = 0; k < 8; ++k) state ^= tables[7 - k][(word >> (8 * k)) & 0xFF];
    }
    for (; left > 0; --left, ++at) state = tables[0][(state ^ *at) & 0xFF] ^ (state >> 8);
    return state;
}

static_assert(std::endian::native == std::endian::little, "the wire is little-endian, and so are all machines DeepInfer is for");

}  // namespace

PYBIND11_MODULE(nereid_peek, m) {
    m.def("block_table", [](const Sequence& seq) { return seq.cache.block_table; });
    m.def("prompted", [](const Scheduler& scheduler) { return scheduler.prompted.size(); });
    m.def("add_prompted", [](Scheduler& scheduler, const SequencePtr& seq) {
        TORCH_CHECK(!seq->cache.block_table.empty(), "allocate its blocks first");
        TORCH_CHECK(seq->cache.num_tokens == seq->get_len() - 1, "the KV must cover all tokens but the last");
        seq->reserve_output_tokens();
        seq->cache.block_table.reserve(scheduler._block_table_capacity(*seq));
        scheduler.prompted.emplace_back(seq, false);
    });
    m.def("adopt", &adopt);
    m.def("output", &output);
    m.def("crc32c", &crc32c);
    py::class_<Rows>(m, "Rows").def(py::init<>()).def("add", &Rows::add).def("remove", &Rows::remove).def("pack", &Rows::pack);
}
