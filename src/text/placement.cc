#include "text/placement.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace nereid::text {
namespace {

using model::Message;
using model::Role;

bool is_system(const Message& message) {
    return message.role == Role::kSystem || message.role == Role::kDeveloper;
}

void append(std::vector<model::Part>& to, std::vector<model::Part>&& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

bool ends_with_user(const std::vector<Message>& messages) {
    return !messages.empty() && messages.back().role == Role::kUser;
}

// One pass with at most one waiting text: a system message that came after a turn of the model's.
class Placer {
  public:
    explicit Placer(const Placement& placement) : placement_(placement) {}

    void add(Message message) {
        if (placement_.one_system && is_system(message)) return add_system(std::move(message));
        if (message.role == Role::kUser) return add_user(std::move(message));
        // Results belong to the calls before them.
        if (message.role != Role::kTool) say_waiting();
        out_.push_back(std::move(message));
    }
    std::vector<Message> take() {
        say_waiting();
        return std::move(out_);
    }

  private:
    void add_system(Message message) {
        if (out_.empty()) {
            message.role = Role::kSystem;
            out_.push_back(std::move(message));
        } else if (out_.size() == 1 && is_system(out_[0])) {
            append(out_[0].parts, std::move(message.parts));
        } else if (ends_with_user(out_)) {
            append(out_.back().parts, std::move(message.parts));
        } else {
            append(waiting_, std::move(message.parts));
        }
    }
    void add_user(Message message) {
        if (!waiting_.empty()) {
            append(waiting_, std::move(message.parts));
            message.parts = std::exchange(waiting_, {});
        }
        if (placement_.one_user && ends_with_user(out_))
            append(out_.back().parts, std::move(message.parts));
        else
            out_.push_back(std::move(message));
    }
    void say_waiting() {
        if (!waiting_.empty())
            out_.push_back({.role = Role::kUser, .parts = std::exchange(waiting_, {})});
    }

    Placement placement_;
    std::vector<Message> out_;
    std::vector<model::Part> waiting_;
};

// Each call in a turn of its own, its results behind it; results of no call stay at the end.
std::vector<Message> with_single_calls(std::vector<Message> messages) {
    std::vector<Message> out;
    for (auto at = messages.begin(); at != messages.end();) {
        Message& said = *at++;
        if (said.tool_calls.size() < 2) {
            out.push_back(std::move(said));
            continue;
        }
        const auto results_end = std::find_if(
            at, messages.end(), [](const Message& m) { return m.role != Role::kTool; });
        std::vector<Message> results(std::make_move_iterator(at),
                                     std::make_move_iterator(results_end));
        at = results_end;
        for (model::ToolCall& call : std::exchange(said.tool_calls, {})) {
            Message turn = std::exchange(said, Message{.role = Role::kAssistant, .parts = {}});
            const std::string id = call.id;
            turn.tool_calls.push_back(std::move(call));
            out.push_back(std::move(turn));
            std::vector<Message> others;
            for (Message& result : results)
                (result.tool_call_id == id ? out : others).push_back(std::move(result));
            results = std::move(others);
        }
        for (Message& result : results) out.push_back(std::move(result));
    }
    return out;
}

}  // namespace

std::vector<Message> placed(std::vector<Message> messages, const Placement& placement) {
    if (placement.one_call) messages = with_single_calls(std::move(messages));
    if (!placement.one_system && !placement.one_user) return messages;
    Placer placer(placement);
    for (Message& message : messages) placer.add(std::move(message));
    return placer.take();
}

}  // namespace nereid::text
