#include "text/placement.h"

#include <gtest/gtest.h>

#include <string>

namespace nereid::text {
namespace {

using model::Message;
using model::Role;

// "s:one u:two": roles by their first letter; parts joined by '+'.
std::vector<Message> read(const std::string& text) {
    std::vector<Message> out;
    for (std::size_t at = 0; at < text.size();) {
        const auto end = std::min(text.find(' ', at), text.size());
        const auto role = std::string("sduat").find(text[at]);
        constexpr Role kRoles[] = {Role::kSystem, Role::kDeveloper, Role::kUser, Role::kAssistant,
                                   Role::kTool};
        out.push_back(
            {.role = kRoles[role], .parts = {model::TextPart{text.substr(at + 2, end - at - 2)}}});
        at = end + 1;
    }
    return out;
}

std::string said(const std::vector<Message>& messages) {
    std::string out;
    for (const Message& m : messages) {
        if (!out.empty()) out += ' ';
        out += "sduat"[static_cast<std::size_t>(m.role)];
        for (std::size_t i = 0; i < m.parts.size(); ++i)
            out += (i == 0 ? ':' : '+') + std::get<model::TextPart>(m.parts[i]).text;
    }
    return out;
}

std::string one_system(const std::string& text) { return said(placed(read(text), {true, false})); }

TEST(Placement, SystemMessagesStandFirst_A73) {
    EXPECT_EQ(one_system("s:1 u:2 a:3 u:4"), "s:1 u:2 a:3 u:4");
    EXPECT_EQ(one_system("d:1 d:2 u:3"), "s:1+2 u:3");  // Codex
    EXPECT_EQ(one_system("s:1 d:2 s:3"), "s:1+2+3");
    EXPECT_EQ(one_system("s:1 u:2 s:3"), "s:1 u:2+3");
    EXPECT_EQ(one_system("s:1 u:2 a:3 s:4 u:5"), "s:1 u:2 a:3 u:4+5");
    EXPECT_EQ(one_system("u:1 s:2 a:3"), "u:1+2 a:3");
    EXPECT_EQ(one_system("s:1 u:2 a:3 s:4"), "s:1 u:2 a:3 u:4");
    EXPECT_EQ(one_system("u:1 a:2 s:3 a:4"), "u:1 a:2 u:3 a:4");
    EXPECT_EQ(one_system("u:1 a:2 s:3 t:4 u:5"), "u:1 a:2 t:4 u:3+5");
    EXPECT_EQ(one_system("u:1 u:2"), "u:1 u:2");
}

TEST(Placement, UsersTurnsAlternate) {
    EXPECT_EQ(said(placed(read("u:1 u:2 a:3 u:4 u:5"), {false, true})), "u:1+2 a:3 u:4+5");
    EXPECT_EQ(said(placed(read("s:1 u:2 s:3 u:4"), {true, true})), "s:1 u:2+3+4");
    EXPECT_EQ(said(placed(read("s:1 u:2 s:3 u:4"), {false, true})), "s:1 u:2 s:3 u:4");
}

// What has been said of a conversation is the beginning of what is said when it goes on.
TEST(Placement, TheBeginningStays_A73) {
    const std::string turns = "s:1 u:2 s:3 a:4 t:5 s:6 a:7 u:8 d:9 a:10 s:11 u:12 a:13";
    const auto all = read(turns);
    const std::string whole = said(placed(all, {true, true}));
    for (std::size_t n = 1; n <= all.size(); ++n) {
        if (all[n - 1].role != Role::kUser && n != all.size()) continue;
        std::vector<Message> some(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n));
        // A system message right behind a user's turn is part of its request.
        while (n < all.size() && all[n].role != Role::kAssistant) some.push_back(all[n++]);
        EXPECT_TRUE(whole.starts_with(said(placed(some, {true, true})))) << n;
    }
}

// Calls are said by their ids, results by the id of theirs.
TEST(Placement, OneCallATurn) {
    const auto call = [](std::string id) {
        return model::ToolCall{.id = std::move(id), .name = "f", .arguments = "{}"};
    };
    const auto result = [](std::string id) {
        Message m{.role = Role::kTool, .parts = {model::TextPart{"r" + id}}};
        m.tool_call_id = std::move(id);
        return m;
    };
    std::vector<Message> messages = read("u:q a:two");
    messages[1].reasoning = "why";
    messages[1].tool_calls = {call("1"), call("2"), call("3")};
    for (const char* id : {"2", "1", "1", "9"}) messages.push_back(result(id));
    for (Message& m : read("a:one u:next")) messages.push_back(m);
    messages[6].tool_calls = {call("4")};
    const auto out = placed(messages, {.one_call = true});
    EXPECT_EQ(said(out), "u:q a:two t:r1 t:r1 a t:r2 a t:r9 a:one u:next");
    EXPECT_EQ(out[1].reasoning, "why");
    EXPECT_TRUE(out[4].reasoning.empty());
    for (const Message& m : out) EXPECT_LE(m.tool_calls.size(), 1u);
    EXPECT_EQ(out[4].tool_calls[0].id, "2");
    EXPECT_EQ(out[6].tool_calls[0].id, "3");
    EXPECT_EQ(said(placed(messages, {})), said(messages));
}

}  // namespace
}  // namespace nereid::text
