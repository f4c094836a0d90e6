// What the output parsers of all families are made of. Internal to the parsers of room text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/event.h"
#include "text/parser.h"

namespace nereid::text {

bool is_space(char c);
std::string_view trimmed(std::string_view text);

// The first of `markers` in `text`. marker < 0: none is whole; then text[at..] may still become
// one (never when `final`), and what is before it cannot.
struct MarkerAt {
    std::size_t at = 0;
    int marker = -1;
};
MarkerAt find_marker(std::string_view text, std::span<const std::string_view> markers, bool final);

// Follows one JSON value byte by byte, by its brackets and quotes only: what is inside is the
// model's business.
class ValueScanner {
  public:
    enum class Step : std::uint8_t {
        kMore,
        kDone,        // complete with this byte
        kDoneBefore,  // complete before this byte, which is not part of it (numbers, words)
        kBroken,      // no value begins so
    };
    Step feed(char c);
    bool in_string() const { return in_string_; }

  private:
    std::uint32_t depth_ = 0;
    bool begun_ = false;
    bool scalar_ = false;
    bool in_string_ = false;
    bool escaped_ = false;
};

// Writes the calls of one choice as events: index, id, name and namespace in the first delta, then
// the arguments as they come. Custom tools get their text instead of the {"input": text} that the
// model wrote.
class CallWriter {
  public:
    explicit CallWriter(const ParserOptions& options) : options_(options) {}

    const model::Tool* find(std::string_view shown) const;
    void begin(std::string_view shown, std::vector<model::Event>& out);
    void arguments(std::string_view bytes, std::vector<model::Event>& out);
    // Events before `index` belong to earlier pushes and are not added to.
    void new_push(std::size_t index) { first_event_ = index; }
    // "{}" if there were none (A5).
    void end(std::vector<model::Event>& out);
    bool open() const { return open_; }
    std::uint32_t begun() const { return begun_; }

  private:
    void emit(std::string_view bytes, std::vector<model::Event>& out);

    const ParserOptions& options_;
    std::size_t first_event_ = 0;
    std::uint32_t begun_ = 0;
    bool open_ = false;
    bool dropped_ = false;  // one_call: this is not the first
    bool custom_ = false;
    bool streams_ = false;  // an object or array has begun: bytes pass
    std::string held_;      // a custom tool's arguments; anything that is no object
};

// Reads {"name": ..., "arguments": ...} byte by byte, members in any order.
class CallReader {
  public:
    enum class Status : std::uint8_t { kOpen, kDone, kBroken };
    Status feed(char c);
    bool has_name() const { return has_name_; }
    const std::string& name() const { return name_; }
    bool has_arguments() const { return has_arguments_; }
    // Bytes of the arguments since the last call; only once has_name().
    std::string take_arguments() { return std::exchange(arguments_, {}); }
    bool in_string() const { return in_key_ || (at_ == At::kValue && value_.in_string()); }

  private:
    enum class At : std::uint8_t { kBefore, kMember, kKey, kColon, kValueStart, kValue, kAfter };
    Status key_byte(char c);
    Status value_byte(char c);
    void value_ended();

    At at_ = At::kBefore;
    ValueScanner value_;
    std::string key_;
    bool in_key_ = false;
    bool escaped_ = false;
    bool first_ = true;
    std::string raw_;  // of a value that is not forwarded
    std::string name_;
    std::string arguments_;
    bool has_name_ = false;
    bool has_arguments_ = false;
};

// The frame of every parser: input held until it is understood, reasoning before the body.
class ParserBase : public OutputParser {
  public:
    struct ReasoningMarks {
        std::string_view open;
        std::string_view close;
    };
    ParserBase(const ParserOptions& options, ReasoningMarks marks);
    ~ParserBase() override = default;
    void push(std::string_view text, std::vector<model::Event>& out) final;
    bool finish(std::vector<model::Event>& out) final;

  protected:
    // Consumes what it understands of rest(); false when it needs more. With `final` nothing more
    // comes: it must consume everything in the end. Not asked where there are no tools to call.
    virtual bool body(bool final) = 0;
    // The notation says more than calls: it is parsed without tools, too.
    virtual bool always_parses() const { return false; }

    std::string_view rest() const { return std::string_view(in_).substr(at_); }
    void consume(std::size_t count) { at_ += count; }
    void content(std::string_view text);
    void reasoning(std::string_view text);
    // Text up to the first of `markers`: emitted but for the white space before it. Returns the
    // marker found (not consumed), or -1 when it needs more or all was emitted.
    int text_until(std::span<const std::string_view> markers, bool final);
    // Consumes any of `slips`, then the mark if it is there; false when it may still come.
    bool skip_mark(std::string_view mark, std::string_view slips, bool final);
    // What looked like a call and was none is text.
    void give_back(std::string& raw) {
        content(raw);
        raw.clear();
    }
    bool wants_calls() const { return options_.tools != nullptr && !options_.tools->empty(); }
    std::vector<model::Event>& out() { return *out_; }

    const ParserOptions options_;
    CallWriter calls_{options_};

  private:
    enum class Phase : std::uint8_t { kStart, kReasoning, kBody };
    bool step(bool final);
    bool start(bool final);
    bool reason(bool final);
    void run(bool final, std::vector<model::Event>& out);
    template <class Delta>
    void append(std::string_view text);

    ReasoningMarks marks_;
    Phase phase_ = Phase::kStart;
    bool skip_space_ = false;
    std::string in_;
    std::size_t at_ = 0;
    std::vector<model::Event>* out_ = nullptr;
    std::size_t out_begin_ = 0;  // events before it are not ours
};

std::unique_ptr<OutputParser> make_llama_parser(const ParserOptions& options);
std::unique_ptr<OutputParser> make_mistral_parser(const ParserOptions& options);
std::unique_ptr<OutputParser> make_deepseek3_parser(const ParserOptions& options);
std::unique_ptr<OutputParser> make_qwen_xml_parser(const ParserOptions& options);
std::unique_ptr<OutputParser> make_gemma_parser(const ParserOptions& options);
std::unique_ptr<OutputParser> make_harmony_parser(const ParserOptions& options);

}  // namespace nereid::text
