#include "text/gbnf.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/json.h"
#include "base/utf8.h"

namespace nereid::text {
namespace {

constexpr std::size_t kMaxBytes = 256u << 10;
constexpr int kMaxNesting = 200;
constexpr std::uint32_t kUnbounded = ~0u;
constexpr std::uint32_t kMaxRepeat = 2000;

struct Node {
    enum class Kind : std::uint8_t { kLiteral, kClass, kRule, kSequence, kChoice, kRepeat };
    Kind kind = Kind::kSequence;
    std::string text = {};  // literal: its text; class: a regex; rule: its name
    std::vector<Node> parts = {};
    std::uint32_t min = 0;
    std::uint32_t max = 0;
};

struct Rule {
    Node node;
    std::size_t line = 0;
    bool defined = false;
    bool recursive = false;  // or leads to one that is
    std::size_t index = 0;
};

// Throws nothing: the first mistake is kept in error_ and everything after it unwinds.
class Reader {
  public:
    explicit Reader(std::string_view text) : text_(text) {}

    Result<std::map<std::string, Rule>> rules() {
        while (!failed()) {
            space(true);
            if (at_ == text_.size()) break;
            rule();
        }
        if (failed()) {
            return err(Code::kInvalidArgument,
                       fmt::format("the grammar, line {}: {}", line_, error_), "grammar");
        }
        return std::move(rules_);
    }

  private:
    bool failed() const { return !error_.empty(); }
    void fail(std::string what) {
        if (failed()) return;
        error_ = std::move(what);
        at_ = text_.size();
    }
    char peek(std::size_t ahead = 0) const {
        return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
    }
    char next() {
        const char c = peek();
        if (c == '\n') ++line_;
        if (at_ < text_.size()) ++at_;
        return c;
    }
    void space(bool lines) {
        while (at_ < text_.size()) {
            const char c = peek();
            if (c == '#') {
                while (at_ < text_.size() && peek() != '\n') next();
            } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
                next();
            } else {
                break;
            }
        }
    }
    static bool is_word(char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_';
    }
    std::string word() {
        std::string name;
        while (is_word(peek())) name += next();
        return name;
    }

    void rule() {
        const std::size_t line = line_;
        const std::string name = word();
        space(false);
        if (name.empty() || !text_.substr(at_).starts_with("::="))
            return fail("expected `name ::= ...`");
        at_ += 3;
        space(true);
        Node node = choice(0, false);
        if (failed()) return;
        Rule& rule = rules_[name];
        if (rule.defined) return fail("the rule " + name + " is defined twice");
        rule.node = std::move(node);
        rule.line = line;
        rule.defined = true;
        if (at_ < text_.size() && peek() != '\n' && peek() != '\r')
            fail(fmt::format("unexpected '{}'", peek()));
    }

    // In parentheses line breaks do not end it.
    Node choice(int depth, bool nested) {
        Node node{.kind = Node::Kind::kChoice};
        if (depth > kMaxNesting) {
            fail("nested too deeply");
            return node;
        }
        node.parts.push_back(sequence(depth, nested));
        while (peek() == '|') {
            next();
            space(true);
            node.parts.push_back(sequence(depth, nested));
        }
        if (node.parts.size() == 1) return std::move(node.parts[0]);
        return node;
    }

    Node sequence(int depth, bool nested) {
        Node node{.kind = Node::Kind::kSequence};
        while (!failed()) {
            std::optional<Node> one = item(depth);
            if (!one) break;
            space(nested);
            repeat(*one);
            space(nested);
            node.parts.push_back(std::move(*one));
        }
        return node;
    }

    std::optional<Node> item(int depth) {
        const char c = peek();
        if (c == '"') return literal();
        if (c == '[') return char_class();
        if (c == '.') {
            next();
            return Node{.kind = Node::Kind::kClass, .text = "(?s:.)"};
        }
        if (c == '(') {
            next();
            space(true);
            Node inner = choice(depth + 1, true);
            if (next() != ')') fail("a parenthesis is not closed");
            return inner;
        }
        if (is_word(c)) {
            // The next rule's name ends this one.
            std::size_t end = at_;
            while (end < text_.size() && is_word(text_[end])) ++end;
            while (end < text_.size() && (text_[end] == ' ' || text_[end] == '\t')) ++end;
            if (text_.substr(end).starts_with("::=")) return std::nullopt;
            Node node{.kind = Node::Kind::kRule, .text = word()};
            rules_[node.text];
            return node;
        }
        return std::nullopt;
    }

    // What follows an item: nothing, *, +, ?, {m}, {m,}, {m,n}; several in a row wrap each other.
    void repeat(Node& node) {
        for (int i = 0; i < 4; ++i) {
            std::uint32_t min = 0;
            std::uint32_t max = kUnbounded;
            switch (peek()) {
                case '*':
                    break;
                case '+':
                    min = 1;
                    break;
                case '?':
                    max = 1;
                    break;
                case '{':
                    next();
                    min = max = number();
                    if (peek() == ',') {
                        next();
                        max = peek() == '}' ? kUnbounded : number();
                    }
                    if (peek() != '}' || min > max) return fail("expected {m}, {m,} or {m,n}");
                    break;
                default:
                    return;
            }
            next();
            Node inner = std::move(node);
            node = Node{.kind = Node::Kind::kRepeat, .min = min, .max = max};
            node.parts.push_back(std::move(inner));
        }
    }

    std::uint32_t number() {
        space(false);
        std::uint32_t n = 0;
        bool any = false;
        while (peek() >= '0' && peek() <= '9' && n <= kMaxRepeat) {
            n = n * 10 + static_cast<std::uint32_t>(next() - '0');
            any = true;
        }
        space(false);
        if (!any || n > kMaxRepeat) fail("a repetition is no number up to 2000");
        return n;
    }

    std::uint32_t hex(int digits) {
        std::uint32_t value = 0;
        for (int i = 0; i < digits; ++i) {
            const char c = next();
            const int digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) {
                fail("expected hexadecimal digits");
                return 0;
            }
            value = value * 16 + static_cast<std::uint32_t>(digit);
        }
        return value;
    }

    std::uint32_t character() {
        const char c = next();
        if (c == '\\') {
            const char escaped = next();
            switch (escaped) {
                case 'x':
                    return hex(2);
                case 'u':
                    return hex(4);
                case 'U':
                    return hex(8);
                case 't':
                    return '\t';
                case 'r':
                    return '\r';
                case 'n':
                    return '\n';
                case '\\':
                case '"':
                case '[':
                case ']':
                case '-':
                case '^':
                case '/':
                    return static_cast<std::uint32_t>(escaped);
                default:
                    fail(fmt::format("unknown escape \\{}", escaped));
                    return 0;
            }
        }
        const auto lead = static_cast<unsigned char>(c);
        if (lead < 0x80) return lead;
        const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        std::uint32_t value = lead & (0x3fu >> more);
        for (int i = 0; i < more; ++i)
            value = value << 6 | (static_cast<unsigned char>(next()) & 0x3f);
        return value;
    }

    bool valid(std::uint32_t c) {
        if (c <= 0x10ffff && !(c >= 0xd800 && c <= 0xdfff)) return true;
        fail("a character outside Unicode");
        return false;
    }

    Node literal() {
        next();
        Node node{.kind = Node::Kind::kLiteral};
        while (!failed() && peek() != '"') {
            if (at_ == text_.size() || peek() == '\n') {
                fail("a quote is not closed");
                break;
            }
            const std::uint32_t c = character();
            if (valid(c)) append_utf8(node.text, c);
        }
        next();
        return node;
    }

    Node char_class() {
        next();
        Node node{.kind = Node::Kind::kClass, .text = "["};
        if (peek() == '^') {
            next();
            node.text += '^';
        }
        const std::size_t empty = node.text.size();
        while (!failed() && peek() != ']') {
            if (at_ == text_.size() || peek() == '\n') {
                fail("a bracket is not closed");
                break;
            }
            const std::uint32_t low = character();
            std::uint32_t high = low;
            if (peek() == '-' && peek(1) != ']') {
                next();
                high = character();
            }
            if (failed() || !valid(low) || !valid(high)) break;
            if (low > high) {
                fail("a range of characters runs backwards");
                break;
            }
            node.text += fmt::format("\\x{{{:X}}}", low);
            if (high != low) node.text += fmt::format("-\\x{{{:X}}}", high);
        }
        next();
        if (node.text.size() == empty && !failed()) {
            if (empty == 2)
                node.text = "(?s:.)";  // [^]: anything
            else
                fail("an empty bracket matches nothing");
            return node;
        }
        node.text += ']';
        return node;
    }

    std::string_view text_;
    std::size_t at_ = 0;
    std::size_t line_ = 1;
    std::string error_;
    std::map<std::string, Rule> rules_;
};

class Writer {
  public:
    explicit Writer(std::map<std::string, Rule> rules) : rules_(std::move(rules)) {}

    Result<std::string> lark() {
        for (const auto& [name, rule] : rules_) {
            if (!rule.defined) {
                return err(Code::kInvalidArgument,
                           "the grammar has no definition of the rule " + name, "grammar");
            }
        }
        if (!rules_.contains("root"))
            return err(Code::kInvalidArgument, "the grammar has no rule root", "grammar");
        mark_recursive();
        std::size_t index = 0;
        for (auto& [name, rule] : rules_) rule.index = index++;
        std::string out = "start: " + name_of("root") + "\n";
        for (const auto& [name, rule] : rules_) {
            out += name_of(name) + ": ";
            write(rule.node, out, false);
            out += '\n';
        }
        return out;
    }

  private:
    std::string name_of(const std::string& name) const {
        const Rule& rule = rules_.at(name);
        return fmt::format("{}{}", rule.recursive ? "r" : "T", rule.index);
    }

    static void collect(const Node& node, std::vector<std::string>& names) {
        if (node.kind == Node::Kind::kRule) names.push_back(node.text);
        for (const Node& part : node.parts) collect(part, names);
    }

    // A rule is recursive when it reaches itself, or one that does: peel off what reaches only
    // peeled rules (Kahn's order).
    void mark_recursive() {
        std::map<std::string, std::vector<std::string>> uses;
        for (auto& [name, rule] : rules_) {
            collect(rule.node, uses[name]);
            rule.recursive = true;
        }
        for (bool again = true; again;) {
            again = false;
            for (auto& [name, rule] : rules_) {
                if (!rule.recursive) continue;
                bool plain = true;
                for (const std::string& used : uses[name])
                    plain = plain && !rules_.at(used).recursive;
                if (!plain) continue;
                rule.recursive = false;
                again = true;
            }
        }
    }

    void write(const Node& node, std::string& out, bool inner) const {
        switch (node.kind) {
            case Node::Kind::kLiteral:
                append_json_string(out, node.text);
                return;
            case Node::Kind::kClass:
                out += '/';
                out += node.text;
                out += '/';
                return;
            case Node::Kind::kRule:
                out += name_of(node.text);
                return;
            case Node::Kind::kSequence:
            case Node::Kind::kChoice: {
                if (node.parts.empty()) {
                    out += "\"\"";
                    return;
                }
                if (inner) out += '(';
                for (std::size_t i = 0; i < node.parts.size(); ++i) {
                    if (i > 0) out += node.kind == Node::Kind::kChoice ? " | " : " ";
                    write(node.parts[i], out, true);
                }
                if (inner) out += ')';
                return;
            }
            case Node::Kind::kRepeat:
                out += '(';
                write(node.parts[0], out, false);
                out += ')';
                if (node.max == kUnbounded && node.min == 0)
                    out += '*';
                else if (node.max == kUnbounded && node.min == 1)
                    out += '+';
                else if (node.max == kUnbounded)
                    out += fmt::format("{{{},}}", node.min);
                else
                    out += fmt::format("{{{},{}}}", node.min, node.max);
                return;
        }
    }

    std::map<std::string, Rule> rules_;
};

}  // namespace

Result<std::string> lark_of_gbnf(std::string_view gbnf) {
    if (gbnf.empty()) return err(Code::kInvalidArgument, "the grammar is empty", "grammar");
    if (gbnf.size() > kMaxBytes || gbnf.find('\0') != std::string_view::npos)
        return err(Code::kInvalidArgument, "the grammar is too large", "grammar");
    TRY(auto rules, Reader(gbnf).rules());
    return Writer(std::move(rules)).lark();
}

}  // namespace nereid::text
