#include "engine/scripted/script.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <cmath>
#include <fstream>
#include <iterator>

namespace nereid::engine::scripted {
namespace {

class Reader {
  public:
    explicit Reader(std::string_view name) : name_(name) {}

    std::unexpected<Error> bad(const toml::node& at, std::string_view key,
                               std::string_view what) const {
        return err(Code::kConfig,
                   fmt::format("{}:{}: {}: {}", name_, at.source().begin.line, key, what));
    }
    Result<std::string> text(const toml::node& n, std::string_view key) const {
        const auto v = n.value_exact<std::string>();
        if (!v.has_value()) return bad(n, key, "must be a string");
        return *v;
    }
    Result<std::uint32_t> count(const toml::node& n, std::string_view key) const {
        const auto v = n.value_exact<std::int64_t>();
        if (!v.has_value() || *v < 0 || *v > 1'000'000'000)
            return bad(n, key, "must be a whole number of 0 or more");
        return static_cast<std::uint32_t>(*v);
    }
    Result<Duration> milliseconds(const toml::node& n, std::string_view key) const {
        const auto v = n.value<double>();
        if (!v.has_value() || !(*v >= 0) || *v > 1e9)
            return bad(n, key, "must be milliseconds of 0 or more");
        return Duration{static_cast<std::int64_t>(*v * 1e6)};
    }
    Result<bool> flag(const toml::node& n, std::string_view key) const {
        const auto v = n.value_exact<bool>();
        if (!v.has_value()) return bad(n, key, "must be true or false");
        return *v;
    }
    Result<Code> code(const toml::node& n, std::string_view key) const {
        TRY(const std::string name, text(n, key));
        const Code code = code_from_name(name);
        if (code_info(code).name != name) return bad(n, key, "is no error code");
        return code;
    }
    Result<Rule> rule(const toml::table& table, const Script& defaults) const;

  private:
    std::string_view name_;
};

Result<Rule> Reader::rule(const toml::table& table, const Script& defaults) const {
    Rule r;
    r.ttft = defaults.ttft;
    r.itl = defaults.itl;
    for (const auto& [k, n] : table) {
        const std::string_view key = k.str();
        if (key == "contains") {
            TRY(r.contains, text(n, key));
        } else if (key == "text") {
            TRY(r.text, text(n, key));
        } else if (key == "repeat") {
            TRY(r.repeat, count(n, key));
        } else if (key == "ttft_ms") {
            TRY(r.ttft, milliseconds(n, key));
        } else if (key == "itl_ms") {
            TRY(r.itl, milliseconds(n, key));
        } else if (key == "refuse") {
            TRY(r.refuse, code(n, key));
        } else if (key == "fail_at") {
            TRY(r.fail_at, count(n, key));
        } else if (key == "stall_at") {
            TRY(r.stall_at, count(n, key));
        } else if (key == "die_at") {
            TRY(r.die_at, count(n, key));
        } else {
            return bad(n, key, "unknown key of a rule");
        }
    }
    if (r.repeat == 0 && r.text.empty()) return bad(table, "repeat", "0 needs a text");
    return r;
}

}  // namespace

Result<Script> parse_script(std::string_view source, std::string_view name) {
    const toml::parse_result parsed = toml::parse(source, std::string(name));
    if (!parsed) {
        return err(Code::kConfig, fmt::format("{}:{}: {}", name, parsed.error().source().begin.line,
                                              parsed.error().description()));
    }
    const Reader reader(name);
    Script script;
    const toml::array* rules = nullptr;
    for (const auto& [k, n] : parsed.table()) {
        const std::string_view key = k.str();
        if (key == "model") {
            TRY(script.model_id, reader.text(n, key));
        } else if (key == "context") {
            TRY(script.context_tokens, reader.count(n, key));
        } else if (key == "parallel") {
            TRY(script.parallel, reader.count(n, key));
        } else if (key == "max_queued") {
            TRY(script.max_queued, reader.count(n, key));
        } else if (key == "images") {
            TRY(script.images, reader.flag(n, key));
        } else if (key == "ttft_ms") {
            TRY(script.ttft, reader.milliseconds(n, key));
        } else if (key == "itl_ms") {
            TRY(script.itl, reader.milliseconds(n, key));
        } else if (key == "rule" && n.is_array_of_tables()) {
            rules = n.as_array();
        } else {
            return reader.bad(n, key, "unknown key");
        }
    }
    if (script.context_tokens < 2 || script.parallel < 1) {
        return err(Code::kConfig,
                   fmt::format("{}: context must be 2 or more, parallel 1 or more", name));
    }
    if (rules != nullptr) {
        for (const auto& n : *rules) {
            TRY(Rule rule, reader.rule(*n.as_table(), script));
            script.rules.push_back(std::move(rule));
        }
    }
    return script;
}

Result<Script> load_script(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file)
        return err(Code::kConfig,
                   fmt::format("{}: cannot be read. Mend: the path or its permissions", path));
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    return parse_script(text, path);
}

}  // namespace nereid::engine::scripted
