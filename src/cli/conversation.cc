#include "cli/conversation.h"

#include <fmt/format.h>

#include <utility>

#include "cli/command.h"

namespace nereid::cli {

namespace {

constexpr std::string_view kHelp =
    "/reset         forget the conversation\n"
    "/system TEXT   set the system message (without TEXT: remove it) and forget the conversation\n"
    "/quit          leave (also Ctrl-D, or Ctrl-C twice)\n"
    "Ctrl-C         stop the answer\n"
    "//TEXT         ask something that begins with a slash";

model::Message message(model::Role role, std::string text) {
    model::Message m;
    m.role = role;
    m.parts.emplace_back(model::TextPart{std::move(text)});
    return m;
}

std::string_view trim(std::string_view s) {
    const auto first = s.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) return {};
    return s.substr(first, s.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

Conversation::Conversation(Settings settings) : settings_(std::move(settings)) {}

Conversation::Step Conversation::line(std::string_view typed) {
    std::string_view text = trim(typed);
    if (text.empty()) return {};
    if (text.starts_with("//")) {
        text.remove_prefix(1);
    } else if (text.starts_with('/')) {
        const auto space = text.find(' ');
        const std::string_view name = text.substr(0, space);
        const std::string_view rest =
            space == std::string_view::npos ? std::string_view{} : trim(text.substr(space));
        if (name == "/quit" || name == "/exit") return {Step::Kind::kQuit};
        if (name == "/help") return {Step::Kind::kSay, std::string(kHelp)};
        if (name == "/reset") {
            messages_.clear();
            return {Step::Kind::kSay, "(the conversation is forgotten)"};
        }
        if (name == "/system") {
            settings_.system = rest;
            messages_.clear();
            return {Step::Kind::kSay, rest.empty()
                                          ? "(no system message; the conversation is forgotten)"
                                          : "(system message set; the conversation is forgotten)"};
        }
        const std::string_view known[] = {"/quit", "/exit", "/help", "/reset", "/system"};
        const std::string_view near = nearest(name, known);
        return {Step::Kind::kSay,
                fmt::format("there is no command {}; {}/help lists them", name,
                            near.empty() ? "" : fmt::format("did you mean {}? ", near))};
    }
    messages_.push_back(message(model::Role::kUser, std::string(text)));
    return {Step::Kind::kAsk};
}

model::Request Conversation::request() const {
    model::Request r;
    r.model = settings_.model;
    r.stream = r.include_usage = true;
    if (!settings_.system.empty())
        r.messages.push_back(message(model::Role::kSystem, settings_.system));
    r.messages.insert(r.messages.end(), messages_.begin(), messages_.end());
    if (settings_.max_tokens > 0)
        r.max_output_tokens = static_cast<TokenCount>(settings_.max_tokens);
    if (settings_.temperature >= 0) r.sampling.temperature = settings_.temperature;
    return r;
}

void Conversation::answered(std::string text) {
    messages_.push_back(message(model::Role::kAssistant, std::move(text)));
}

void Conversation::withdrawn() { messages_.pop_back(); }

std::string printable(std::string_view piece, bool& held) {
    std::string out;
    out.reserve(piece.size() + 1);
    for (const char c : piece) {
        const auto byte = static_cast<unsigned char>(c);
        if (std::exchange(held, false)) {
            if (byte >= 0x80 && byte <= 0x9f) continue;
            out += '\xc2';
        }
        if (byte == 0xc2) {
            held = true;
        } else if ((byte >= 0x20 && byte != 0x7f) || c == '\n' || c == '\t') {
            out += c;
        }
    }
    return out;
}

}  // namespace nereid::cli
