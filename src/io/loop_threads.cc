#include <pthread.h>

#include <future>
#include <string>
#include <utility>

#include "base/check.h"
#include "io/real_loop.h"

namespace nereid::io {

LoopThreads::LoopThreads(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) loops_.push_back(std::make_unique<RealLoop>());
    for (std::size_t i = 0; i < count; ++i) {
        // Until its thread has taken the loop over, a post() from here would count as one from the
        // loop's thread.
        std::promise<void> taken;
        threads_.emplace_back([loop = loops_[i].get(), i, &taken] {
            const std::string name = "nereid-loop-" + std::to_string(i);
            pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
            loop->post([&taken] { taken.set_value(); });
            loop->run();
        });
        taken.get_future().wait();
    }
}

LoopThreads::~LoopThreads() {
    for (const auto& loop : loops_) loop->stop();
    for (auto& thread : threads_) thread.join();
}

void LoopThreads::run_on(std::size_t i, std::move_only_function<void()> fn) {
    CHECK(!loops_[i]->on_loop_thread());
    std::promise<void> done;
    loops_[i]->post([&fn, &done] {
        fn();
        done.set_value();
    });
    done.get_future().wait();
}

}  // namespace nereid::io
