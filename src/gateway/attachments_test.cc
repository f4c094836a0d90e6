// Attachments of requests to a text engine, which shows what became of them.
#include <gmock/gmock.h>

#include "base/base64.h"
#include "gateway/gateway_fixture.h"
#include "gateway/pdf_reader.h"
#include "io/sim_process.h"

namespace nereid::gateway {
namespace {

using testing::HasSubstr;
using testing::Not;

class Attachments : public GatewayTest {
  protected:
    Attachments() {
        launcher_.program("/usr/bin/env", [this](io::SimChild& child) -> io::Task<io::ExitStatus> {
            co_await child.loop().sleep_for(takes);
            child.print("of a pdf");
            co_return io::ExitStatus{};
        });
        launcher = &launcher_;
        backend.script = {
            {model::Start{}, model::TextDelta{.text = "x"}, model::ChoiceEnd{}, model::Done{}}};
    }
    ~Attachments() override {
        gateway.reset();  // its processes go before the launcher
        loop.settle();
    }
    static std::string file(std::string_view bytes) {
        return fmt::format(R"({{"type":"file","file":{{"file_data":"{}"}}}})",
                           base64_encode(bytes));
    }
    static std::string user(const std::string& parts) {
        return fmt::format(R"({{"role":"user","content":[{}]}})", parts);
    }
    // A call and its result.
    static std::string tool(const std::string& parts) {
        return fmt::format(
            R"({{"role":"assistant","tool_calls":[{{"id":"c","type":"function","function":)"
            R"({{"name":"f","arguments":"{{}}"}}}}]}},)"
            R"({{"role":"tool","tool_call_id":"c","content":[{}]}})",
            parts);
    }
    std::unique_ptr<Client> ask(const std::string& messages) {
        auto c = client();
        c->post("/v1/chat/completions",
                fmt::format(R"({{"model":"t","messages":[{}]}})", messages));
        loop.settle();
        return c;
    }
    // What the text engine was given, one text after the other.
    std::vector<std::string> given() const {
        std::vector<std::string> out;
        for (const model::Message& m : backend.last.messages) {
            for (const model::Part& part : m.parts)
                out.push_back(std::get<model::TextPart>(part).text);
        }
        return out;
    }
    io::SimProcessLauncher launcher_{loop};
    Duration takes{};
};

TEST_F(Attachments, DocumentsAreTextBeforeAnybodySeesThem) {
    start();
    auto c = ask(user(file("of a text") + "," + file("%PDF-1")));
    loop.advance(1s);
    EXPECT_EQ(c->status(), 200) << c->raw;
    EXPECT_EQ(given(), (std::vector<std::string>{"<document>\nof a text\n</document>\n",
                                                 "<document>\nof a pdf\n</document>\n"}));
}

// A note would stand in one turn, and the text in the next.
TEST_F(Attachments, TroubleOfOursIsNoNote) {
    start();
    launcher_.fail_starts(1);
    auto c = ask(tool(file("%PDF-1")));
    loop.advance(1s);
    EXPECT_EQ(c->status(), 503) << c->raw;
    EXPECT_EQ(backend.runs, 0);
    auto again = ask(tool(file("%PDF-1")));
    loop.advance(1s);
    EXPECT_EQ(again->status(), 200) << again->raw;
    EXPECT_THAT(given().back(), HasSubstr("of a pdf"));
    // What would come again is one.
    auto noted = ask(tool(file(std::string_view("\0", 1))));
    EXPECT_EQ(noted->status(), 200) << noted->raw;
    EXPECT_THAT(given().back(), HasSubstr("neither UTF-8 text nor a PDF"));
    auto refused = ask(user(file(std::string_view("\0", 1))));
    EXPECT_EQ(refused->status(), 400);
    EXPECT_EQ(at(refused->json(), "error.param"), Json("messages[0].content[0].file.file_data"));
}

TEST_F(Attachments, LimitsLeaveTheOldestOfToolsOut) {
    start();
    std::string messages;
    for (int i = 0; i < 65; ++i) messages += tool(file(fmt::format("file {}", i))) + ",";
    EXPECT_EQ(ask(messages + user(file("mine")))->status(), 200);
    const auto texts = given();
    ASSERT_EQ(texts.size(), 66u);
    EXPECT_THAT(texts[0], HasSubstr("too many documents"));
    EXPECT_THAT(texts[1], HasSubstr("too many documents"));
    EXPECT_THAT(texts[2], HasSubstr("file 2"));
    EXPECT_THAT(texts[64], HasSubstr("file 64"));
    EXPECT_THAT(texts[65], HasSubstr("mine"));
    std::string own;
    for (int i = 0; i < 65; ++i) own += (i == 0 ? "" : ",") + file("x");
    EXPECT_EQ(ask(user(own))->status(), 400);
}

TEST_F(Attachments, ReadingHasItsTimeForARequest) {
    takes = PdfReader::kTimeout - 1s;
    start();
    std::string parts;
    for (int i = 0; i < 4; ++i) parts += (i == 0 ? "" : ",") + file("%PDF-" + std::to_string(i));
    auto c = ask(user(parts));
    loop.advance(4 * takes);
    EXPECT_EQ(c->status(), 400) << c->raw;
    EXPECT_THAT(c->body(), HasSubstr("takes too long"));
    EXPECT_EQ(at(c->json(), "error.param"), Json("messages[0].content[3].file.file_data"));
}

TEST_F(Attachments, AReadingEndsWithItsClient) {
    takes = 20s;
    start();
    auto c = ask(user(file("%PDF-1")));
    EXPECT_EQ(launcher_.live(), 1);
    c->hang_up();
    loop.settle();
    EXPECT_EQ(launcher_.live(), 0);
    EXPECT_EQ(backend.runs, 0);
}

}  // namespace
}  // namespace nereid::gateway
