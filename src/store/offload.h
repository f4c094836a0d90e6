// Runs a function on another loop while a coroutine of this one waits: what blocks (databases) or
// computes for long. `f` owns what it needs.
//
// The waiting coroutine may be destroyed: the function then still runs, and its result is dropped.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "io/loop.h"
#include "io/root_task.h"
#include "io/task.h"

namespace nereid::store {

template <class F>
io::Task<std::invoke_result_t<F&>> offload(io::Loop& there, io::Loop& here, F f) {
    struct State {
        State(io::Loop& loop, F fn) : done(loop), run(std::move(fn)) {}
        io::Signal done;  // used on `here` alone
        F run;
        std::optional<std::invoke_result_t<F&>> result;
    };
    const auto state = std::make_shared<State>(here, std::move(f));
    // The last reference is let go on `here`, where the signal lives.
    there.post([shared = state, &here]() mutable {
        shared->result.emplace(shared->run());
        here.post([s = std::move(shared)] { s->done.notify(); });
    });
    co_await state->done.wait();
    co_return std::move(*state->result);
}

}  // namespace nereid::store
