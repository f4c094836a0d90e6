// In place of csrc/graph_timer/graph_timer_cuda.cpp: the symbols exist, every use throws. CUDA graphs alone reach them.
#include "graph_timer/graph_timer.hpp"

#include <stdexcept>

namespace deepinfer::graph_timer {
namespace {
[[noreturn]] void absent() { throw std::runtime_error("graph timer: not in the CPU build"); }
}  // namespace

GraphHandle::GraphHandle(py::object graph) : graph_(std::move(graph)) {}
std::vector<EventRecordNodeHandle> GraphHandle::get_event_record_nodes() const { absent(); }
bool GraphHandle::operator==(const GraphHandle&) const { absent(); }
std::size_t GraphHandle::hash() const { absent(); }

EventHandle::EventHandle() { absent(); }
EventHandle::EventHandle(int64_t raw) : raw_event_(raw) {}
void EventHandle::record(int64_t, bool) const { absent(); }
void EventHandle::synchronize() const { absent(); }
bool EventHandle::query() const { absent(); }
float EventHandle::elapsed_time(const EventHandle&) const { absent(); }
bool EventHandle::operator==(const EventHandle&) const { absent(); }
std::size_t EventHandle::hash() const { absent(); }

EventRecordNodeHandle::EventRecordNodeHandle(int64_t node, int64_t exec) : raw_node_(node), raw_graph_exec_(exec) {}
EventHandle EventRecordNodeHandle::get_event() const { absent(); }
void EventRecordNodeHandle::set_event(const EventHandle&) { absent(); }

}  // namespace deepinfer::graph_timer
