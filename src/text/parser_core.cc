#include "text/parser_core.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/json.h"

namespace nereid::text {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    return text;
}

MarkerAt find_marker(std::string_view text, std::span<const std::string_view> markers, bool final) {
    for (std::size_t at = 0; at < text.size(); ++at) {
        const std::string_view rest = text.substr(at);
        bool open = false;
        for (std::size_t i = 0; i < markers.size(); ++i) {
            if (markers[i].front() != rest.front()) continue;
            if (rest.starts_with(markers[i])) return {at, static_cast<int>(i)};
            open = open || markers[i].starts_with(rest);
        }
        if (open && !final) return {at, -1};
    }
    return {text.size(), -1};
}

// ---------------------------------------------------------------- ValueScanner

ValueScanner::Step ValueScanner::feed(char c) {
    if (in_string_) {
        if (escaped_) {
            escaped_ = false;
        } else if (c == '\\') {
            escaped_ = true;
        } else if (c == '"') {
            in_string_ = false;
            if (depth_ == 0) return Step::kDone;
        }
        return Step::kMore;
    }
    if (scalar_) {
        const bool ends = c == ',' || c == '}' || c == ']' || is_space(c) || c == '<';
        return ends ? Step::kDoneBefore : Step::kMore;
    }
    const bool opens = c == '{' || c == '[';
    if (!begun_) {
        begun_ = true;
        if (opens) {
            ++depth_;
        } else if (c == '"') {
            in_string_ = true;
        } else if (c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')) {
            scalar_ = true;
        } else {
            return Step::kBroken;
        }
        return Step::kMore;
    }
    if (c == '"') in_string_ = true;
    if (opens) ++depth_;
    if (c == '}' || c == ']') {
        if (--depth_ == 0) return Step::kDone;
    }
    return Step::kMore;
}

// ---------------------------------------------------------------- CallWriter

const model::Tool* CallWriter::find(std::string_view shown) const {
    if (options_.tools == nullptr) return nullptr;
    for (const model::Tool& tool : *options_.tools) {
        if (shown_name(tool.name_space, tool.name) == shown) return &tool;
    }
    return nullptr;
}

void CallWriter::begin(std::string_view shown, std::vector<model::Event>& out) {
    const std::uint32_t index = begun_++;
    open_ = true;
    streams_ = false;
    held_.clear();
    dropped_ = options_.one_call && index > 0;
    const model::Tool* tool = find(shown);
    custom_ = tool != nullptr && tool->custom;
    if (dropped_) return;
    model::ToolCallDelta delta{.choice = options_.choice,
                               .index = index,
                               .id = options_.call_id_prefix + std::to_string(index),
                               .name = tool != nullptr ? tool->name : std::string(shown),
                               .name_space = tool != nullptr ? tool->name_space : std::string(),
                               .custom = custom_};
    out.emplace_back(std::move(delta));
}

void CallWriter::emit(std::string_view bytes, std::vector<model::Event>& out) {
    if (dropped_ || bytes.empty()) return;
    const std::uint32_t index = begun_ - 1;
    if (out.size() > first_event_) {
        auto* last = std::get_if<model::ToolCallDelta>(&out.back());
        if (last != nullptr && last->choice == options_.choice && last->index == index) {
            last->arguments += bytes;
            return;
        }
    }
    out.emplace_back(model::ToolCallDelta{.choice = options_.choice,
                                          .index = index,
                                          .arguments = std::string(bytes),
                                          .custom = custom_});
}

void CallWriter::arguments(std::string_view bytes, std::vector<model::Event>& out) {
    if (bytes.empty()) return;
    if (!streams_ && !custom_ && held_.empty()) streams_ = bytes[0] == '{' || bytes[0] == '[';
    if (streams_)
        emit(bytes, out);
    else
        held_ += bytes;
}

namespace {

// Arguments that a model wrote as a JSON string hold the object inside it; `null` and nothing mean
// none.
std::string settled(std::string held) {
    const std::string_view text = trimmed(held);
    if (text.empty() || text == "null") return "{}";
    if (text.front() == '"') {
        auto parsed = Json::parse(text);
        if (parsed.ok() && parsed->is_string())
            return trimmed(parsed->as_string()).empty() ? "{}" : parsed->as_string();
    }
    return held;
}

std::string custom_input(const std::string& held) {
    const auto parsed = Json::parse(held);
    if (parsed.ok()) {
        if (parsed->is_string()) return parsed->as_string();
        const Json* input = parsed->find("input");
        if (input != nullptr && input->is_string()) return input->as_string();
    }
    return held;
}

}  // namespace

void CallWriter::end(std::vector<model::Event>& out) {
    if (!open_) return;
    if (!streams_) emit(custom_ ? custom_input(held_) : settled(std::move(held_)), out);
    held_.clear();
    open_ = false;
}

// ---------------------------------------------------------------- CallReader

CallReader::Status CallReader::feed(char c) {
    switch (at_) {
        case At::kBefore:
            if (is_space(c)) return Status::kOpen;
            if (c != '{') return Status::kBroken;
            at_ = At::kMember;
            return Status::kOpen;
        case At::kMember:
            if (is_space(c)) return Status::kOpen;
            if (c == '}' && first_) return Status::kDone;
            if (c != '"') return Status::kBroken;
            first_ = false;
            key_.clear();
            in_key_ = true;
            at_ = At::kKey;
            return Status::kOpen;
        case At::kKey:
            return key_byte(c);
        case At::kColon:
            if (is_space(c)) return Status::kOpen;
            if (c != ':') return Status::kBroken;
            at_ = At::kValueStart;
            return Status::kOpen;
        case At::kValueStart:
            if (is_space(c)) return Status::kOpen;
            value_ = {};
            raw_.clear();
            at_ = At::kValue;
            return value_byte(c);
        case At::kValue:
            return value_byte(c);
        case At::kAfter:
            if (is_space(c)) return Status::kOpen;
            if (c == '}') return Status::kDone;
            if (c != ',') return Status::kBroken;
            at_ = At::kMember;
            return Status::kOpen;
    }
    return Status::kBroken;
}

CallReader::Status CallReader::key_byte(char c) {
    if (escaped_) {
        escaped_ = false;
    } else if (c == '\\') {
        escaped_ = true;
    } else if (c == '"') {
        in_key_ = false;
        at_ = At::kColon;
        return Status::kOpen;
    }
    key_ += c;
    return Status::kOpen;
}

CallReader::Status CallReader::value_byte(char c) {
    const bool forwards = (key_ == "arguments" || key_ == "parameters") && !has_arguments_;
    switch (value_.feed(c)) {
        case ValueScanner::Step::kMore:
            (forwards ? arguments_ : raw_) += c;
            return Status::kOpen;
        case ValueScanner::Step::kDone:
            (forwards ? arguments_ : raw_) += c;
            has_arguments_ = has_arguments_ || forwards;
            value_ended();
            return Status::kOpen;
        case ValueScanner::Step::kDoneBefore:
            has_arguments_ = has_arguments_ || forwards;
            value_ended();
            return feed(c);
        case ValueScanner::Step::kBroken:
            return Status::kBroken;
    }
    return Status::kBroken;
}

void CallReader::value_ended() {
    at_ = At::kAfter;
    if (key_ != "name" || has_name_) return;
    const auto parsed = Json::parse(raw_);
    if (!parsed.ok() || !parsed->is_string()) return;
    name_ = parsed->as_string();
    has_name_ = !name_.empty();
}

// ---------------------------------------------------------------- ParserBase

ParserBase::ParserBase(const ParserOptions& options, ReasoningMarks marks)
    : options_(options), marks_(marks) {}

void ParserBase::push(std::string_view text, std::vector<model::Event>& out) {
    in_.append(text);
    run(false, out);
}

bool ParserBase::finish(std::vector<model::Event>& out) {
    run(true, out);
    calls_.end(out);
    return calls_.begun() > 0;
}

void ParserBase::run(bool final, std::vector<model::Event>& out) {
    out_ = &out;
    out_begin_ = out.size();
    calls_.new_push(out.size());
    while (at_ < in_.size() && step(final)) {
    }
    // What was taken for the beginning of a call is given up, also when no byte is left to say so.
    for (int i = 0; final && i < 8 && step(true); ++i) {
    }
    in_.erase(0, at_);
    at_ = 0;
}

bool ParserBase::step(bool final) {
    if (skip_space_) {
        while (at_ < in_.size() && is_space(in_[at_])) ++at_;
        if (at_ == in_.size()) return false;
        skip_space_ = false;
    }
    switch (phase_) {
        case Phase::kStart:
            return start(final);
        case Phase::kReasoning:
            return reason(final);
        case Phase::kBody:
            if (wants_calls() || always_parses()) return body(final);
            content(rest());
            consume(rest().size());
            return false;
    }
    return false;
}

bool ParserBase::start(bool final) {
    phase_ = Phase::kBody;
    if (marks_.close.empty()) return true;
    if (options_.in_reasoning) {
        phase_ = Phase::kReasoning;
        skip_space_ = true;
        return true;
    }
    const std::string_view text = rest();
    const std::size_t word =
        static_cast<std::size_t>(std::ranges::find_if_not(text, is_space) - text.begin());
    const std::string_view ahead = text.substr(word);
    if (ahead.starts_with(marks_.open)) {
        consume(word + marks_.open.size());
        phase_ = Phase::kReasoning;
        skip_space_ = true;
        return true;
    }
    if (!final && marks_.open.starts_with(ahead)) {
        phase_ = Phase::kStart;
        return false;
    }
    return true;
}

// White space at the end of the reasoning belongs to the notation: held until a word follows.
bool ParserBase::reason(bool final) {
    const std::string_view text = rest();
    const MarkerAt found = find_marker(text, std::span(&marks_.close, 1), final);
    std::size_t end = found.at;
    if (!final || found.marker >= 0) {
        while (end > 0 && is_space(text[end - 1])) --end;
    }
    reasoning(text.substr(0, end));
    if (found.marker < 0) {
        consume(end);
        return false;
    }
    consume(found.at + marks_.close.size());
    phase_ = Phase::kBody;
    skip_space_ = true;
    return true;
}

int ParserBase::text_until(std::span<const std::string_view> markers, bool final) {
    const std::string_view text = rest();
    const MarkerAt found = find_marker(text, markers, final);
    std::size_t end = found.at;
    if (!final || found.marker >= 0 || calls_.begun() > 0) {
        while (end > 0 && is_space(text[end - 1])) --end;
    }
    content(text.substr(0, end));
    // White space before a call, between calls and after the last one is the notation's (A11).
    consume(found.marker >= 0 || final ? found.at : end);
    return found.marker;
}

bool ParserBase::skip_mark(std::string_view mark, std::string_view slips, bool final) {
    while (!rest().empty() &&
           (is_space(rest().front()) || slips.find(rest().front()) != std::string_view::npos))
        consume(1);
    if (rest().empty()) return false;
    if (rest().starts_with(mark)) {
        consume(mark.size());
        return true;
    }
    return final || !mark.starts_with(rest());
}

template <class Delta>
void ParserBase::append(std::string_view text) {
    if (text.empty()) return;
    if (out_->size() > out_begin_) {
        if (auto* last = std::get_if<Delta>(&out_->back())) {
            last->text += text;
            return;
        }
    }
    out_->emplace_back(Delta{.choice = options_.choice, .text = std::string(text)});
}
void ParserBase::content(std::string_view text) { append<model::TextDelta>(text); }
void ParserBase::reasoning(std::string_view text) { append<model::ReasoningDelta>(text); }

}  // namespace nereid::text
