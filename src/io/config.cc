#include "io/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <variant>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "base/check.h"

namespace nereid::io {

namespace {

using Strings = std::vector<std::string>;
using Target =
    std::variant<bool*, std::int64_t*, double*, std::string*, Duration*, SizeBytes*, Strings*>;
// The value for a Target, in the same order.
using Value = std::variant<bool, std::int64_t, double, std::string, Duration, SizeBytes, Strings>;

struct Field {
    std::string key;
    Target target;
    KnobSpec spec;

    std::string section() const {
        const std::size_t dot = key.rfind('.');
        return dot == std::string::npos ? std::string{} : key.substr(0, dot);
    }
    std::string name() const { return key.substr(key.rfind('.') + 1); }  // npos + 1 == 0
};

class Collector final : public ConfigBinder {
  public:
    void knob(std::string_view key, bool& f, KnobSpec s) override { add(key, &f, std::move(s)); }
    void knob(std::string_view key, std::int64_t& f, KnobSpec s) override {
        add(key, &f, std::move(s));
    }
    void knob(std::string_view key, double& f, KnobSpec s) override { add(key, &f, std::move(s)); }
    void knob(std::string_view key, std::string& f, KnobSpec s) override {
        add(key, &f, std::move(s));
    }
    void knob(std::string_view key, Duration& f, KnobSpec s) override {
        add(key, &f, std::move(s));
    }
    void knob(std::string_view key, SizeBytes& f, KnobSpec s) override {
        add(key, &f, std::move(s));
    }
    void knob(std::string_view key, Strings& f, KnobSpec s) override { add(key, &f, std::move(s)); }

    std::vector<Field> fields;

  private:
    void add(std::string_view key, Target target, KnobSpec spec) {
        for (const auto& f : fields) CHECK_MSG(f.key != key, key);
        fields.push_back({std::string(key), target, std::move(spec)});
    }
};

std::vector<Field> collect(const BindFn& bind) {
    Collector c;
    bind(c);
    return std::move(c.fields);
}

// ------------------------------------------------------------------ texts

std::string toml_string(std::string_view s) {
    std::string out = "\"";
    for (const char c : s) {
        const auto u = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') out += '\\';
        if (u < 0x20 || u == 0x7f)
            out += fmt::format("\\u{:04X}", u);
        else
            out += c;
    }
    return out + '"';
}

std::string number_text(double v) {
    if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
    std::string s = fmt::format("{}", v);
    if (s.find_first_of(".en") == std::string::npos) s += ".0";
    return s;
}

struct AsToml {
    std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
    std::string operator()(const std::int64_t* v) const { return fmt::format("{}", *v); }
    std::string operator()(const double* v) const { return number_text(*v); }
    std::string operator()(const std::string* v) const { return toml_string(*v); }
    std::string operator()(const Duration* v) const { return toml_string(format_duration(*v)); }
    std::string operator()(const SizeBytes* v) const { return toml_string(format_size(v->value)); }
    std::string operator()(const Strings* v) const {
        std::string out = "[";
        for (const auto& s : *v) out += (out.size() > 1 ? ", " : "") + toml_string(s);
        return out + "]";
    }
};
std::string toml_text(const Field& f) { return std::visit(AsToml{}, f.target); }

std::string_view kind_name(const Field& f) {
    static constexpr std::array<std::string_view, 7> kNames = {
        "true or false", "integer", "number", "text", "duration", "size", "list of texts"};
    return kNames[f.target.index()];
}

std::string bound_text(const Field& f, double v) {
    if (std::holds_alternative<Duration*>(f.target))
        return format_duration(Duration(std::llround(v * 1e9)));
    if (std::holds_alternative<SizeBytes*>(f.target)) return format_size(static_cast<ByteCount>(v));
    return fmt::format("{}", v);
}

// "0 … 1000000", "at least 1", "one of a, b"; empty when anything goes.
std::string range_text(const Field& f) {
    if (!f.spec.choices.empty()) {
        std::string out = "one of ";
        for (const auto& c : f.spec.choices) out += (out.size() > 7 ? ", " : "") + std::string(c);
        return out;
    }
    const bool low = std::isfinite(f.spec.min), high = std::isfinite(f.spec.max);
    if (low && high) return bound_text(f, f.spec.min) + " to " + bound_text(f, f.spec.max);
    if (low) return "at least " + bound_text(f, f.spec.min);
    if (high) return "at most " + bound_text(f, f.spec.max);
    return {};
}

// Edits (insert, delete, replace) between two short texts.
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t above = row[j];
            row[j] =
                std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
            diagonal = above;
        }
    }
    return row[b.size()];
}

std::string normalised(std::string_view key) {
    std::string out(key);
    std::ranges::replace(out, '-', '_');
    return out;
}
std::string dashed(std::string_view key) {
    std::string out(key);
    std::ranges::replace(out, '_', '-');
    return out;
}

// ------------------------------------------------------------------ loading

class Loading {
  public:
    Loading(const BindFn& bind, const ConfigSources& sources)
        : fields_(collect(bind)), sources_(sources) {}

    Result<void> run() {
        if (!sources_.toml_path.empty()) read_file();
        read_args();
        if (!errors_.empty())
            return Error{Code::kConfig, fmt::format("{}", fmt::join(errors_, "\n"))};
        for (auto& [field, value] : values_) {
            std::visit(
                [&](auto* to) { *to = std::get<std::remove_pointer_t<decltype(to)>>(value); },
                fields_[field].target);
        }
        return {};
    }

  private:
    void fault(std::string_view where, std::string_view what) {
        errors_.push_back(fmt::format("{}: {}", where, what));
    }

    std::optional<std::size_t> find(std::string_view key) const {
        const std::string wanted = normalised(key);
        for (std::size_t i = 0; i < fields_.size(); ++i) {
            if (normalised(fields_[i].key) == wanted) return i;
        }
        return std::nullopt;
    }

    std::string nearest(std::string_view key, std::string_view prefix) const {
        const std::string wanted = normalised(key);
        std::string best;
        std::size_t best_distance = std::max<std::size_t>(2, wanted.size() / 3) + 1;
        const auto consider = [&](const std::string& name, const std::string& compared) {
            const std::size_t d = distance(wanted, compared);
            if (d < best_distance) std::tie(best_distance, best) = std::pair(d, name);
        };
        for (const auto& f : fields_) consider(f.key, normalised(f.key));
        if (!prefix.empty()) {
            for (const auto& [alias, key_of] : sources_.aliases) consider(alias, normalised(alias));
        }
        // The right name in the wrong section.
        for (const auto& f : fields_) {
            if (best.empty() && normalised(f.name()) == wanted.substr(wanted.rfind('.') + 1))
                best = f.key;
        }
        if (best.empty()) return "; --help lists all";
        return fmt::format("; did you mean \"{}{}\"?", prefix,
                           prefix.empty() ? best : dashed(best));
    }

    // Stores after checking bounds and choices.
    void accept(std::size_t field, Value value, std::string_view where) {
        const Field& f = fields_[field];
        std::optional<double> number;
        if (const auto* i = std::get_if<std::int64_t>(&value)) number = static_cast<double>(*i);
        if (const auto* d = std::get_if<double>(&value)) number = *d;
        if (const auto* t = std::get_if<Duration>(&value)) number = to_seconds(*t);
        if (const auto* b = std::get_if<SizeBytes>(&value)) number = static_cast<double>(b->value);
        if (number && !(*number >= f.spec.min && *number <= f.spec.max))
            return fault(where, fmt::format("{} must be {}{}{}", f.key, range_text(f),
                                            f.spec.unit.empty() ? "" : " ", f.spec.unit));
        if (const auto* s = std::get_if<std::string>(&value);
            s && !f.spec.choices.empty() &&
            std::ranges::find(f.spec.choices, *s) == f.spec.choices.end())
            return fault(where, fmt::format("{} must be {}, not \"{}\"", f.key, range_text(f), *s));
        values_[field] = std::move(value);
    }

    void wrong_kind(std::size_t field, std::string_view where) {
        const Field& f = fields_[field];
        fault(where, fmt::format("{} must be {}{}, for example {}", f.key, article(kind_name(f)),
                                 kind_name(f), toml_text(f)));
    }
    static std::string_view article(std::string_view noun) {
        if (noun.starts_with("true")) return "";
        return noun.starts_with("i") ? "an " : "a ";
    }

    // Text of the command line, or a TOML string for the kinds that are written as one.
    void accept_text(std::size_t field, std::string_view text, std::string_view where) {
        const Field& f = fields_[field];
        const auto parse_number = [&](auto zero) -> std::optional<decltype(zero)> {
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), zero);
            if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
            return zero;
        };
        if (std::holds_alternative<bool*>(f.target)) {
            if (text == "true" || text == "false") return accept(field, text == "true", where);
        } else if (std::holds_alternative<std::int64_t*>(f.target)) {
            if (const auto v = parse_number(std::int64_t{0})) return accept(field, *v, where);
        } else if (std::holds_alternative<double*>(f.target)) {
            if (const auto v = parse_number(0.0)) return accept(field, *v, where);
        } else if (std::holds_alternative<std::string*>(f.target)) {
            return accept(field, std::string(text), where);
        } else if (std::holds_alternative<Duration*>(f.target)) {
            const auto d = parse_duration(text);
            return d.ok() ? accept(field, *d, where)
                          : fault(where, f.key + ": " + d.error().message);
        } else if (std::holds_alternative<SizeBytes*>(f.target)) {
            const auto b = parse_size(text);
            return b.ok() ? accept(field, SizeBytes{*b}, where)
                          : fault(where, f.key + ": " + b.error().message);
        }
        wrong_kind(field, where);
    }

    // ---- file

    void read_file() {
        const toml::parse_result parsed = toml::parse_file(sources_.toml_path);
        if (!parsed) {
            const auto& at = parsed.error().source().begin;
            return fault(at.line == 0
                             ? sources_.toml_path
                             : fmt::format("{}:{}:{}", sources_.toml_path, at.line, at.column),
                         parsed.error().description());
        }
        read_table(parsed.table(), "");
    }

    bool is_section(std::string_view key) const {
        const std::string prefix = normalised(key) + ".";
        return std::ranges::any_of(
            fields_, [&](const Field& f) { return normalised(f.key).starts_with(prefix); });
    }

    void read_table(const toml::table& table, const std::string& prefix) {
        for (const auto& [name, node] : table) {
            const std::string key = prefix + std::string(name.str());
            const std::string where =
                fmt::format("{}:{}", sources_.toml_path, name.source().begin.line);
            if (const auto field = find(key)) {
                read_value(*field, node, where);
            } else if (node.is_table() && is_section(key)) {
                read_table(*node.as_table(), key + ".");
            } else {
                fault(where, fmt::format("unknown key \"{}\"{}", key, nearest(key, "")));
            }
        }
    }

    void read_value(std::size_t field, const toml::node& node, std::string_view where) {
        const Field& f = fields_[field];
        const bool textual = std::holds_alternative<std::string*>(f.target) ||
                             std::holds_alternative<Duration*>(f.target) ||
                             std::holds_alternative<SizeBytes*>(f.target);
        if (textual) {
            if (const auto* s = node.as_string()) return accept_text(field, s->get(), where);
            // A bare number gets the message about its unit.
            if (const auto* i = node.as_integer();
                i && !std::holds_alternative<std::string*>(f.target))
                return accept_text(field, fmt::format("{}", i->get()), where);
        } else if (std::holds_alternative<bool*>(f.target)) {
            if (const auto* b = node.as_boolean()) return accept(field, b->get(), where);
        } else if (std::holds_alternative<std::int64_t*>(f.target)) {
            if (const auto* i = node.as_integer()) return accept(field, i->get(), where);
        } else if (std::holds_alternative<double*>(f.target)) {
            if (const auto* d = node.as_floating_point()) return accept(field, d->get(), where);
            if (const auto* i = node.as_integer())
                return accept(field, static_cast<double>(i->get()), where);
        } else if (const auto* a = node.as_array()) {
            Strings list;
            for (const auto& item : *a) {
                if (!item.is_string()) return wrong_kind(field, where);
                list.push_back(item.as_string()->get());
            }
            return accept(field, std::move(list), where);
        }
        wrong_kind(field, where);
    }

    // ---- command line

    void read_args() {
        const auto& args = sources_.args;
        std::vector<std::size_t> lists_begun;
        for (std::size_t i = 0; i < args.size(); ++i) {
            std::string_view arg = args[i];
            if (!arg.starts_with("--") || arg.size() == 2) {
                fault(arg, "unexpected argument; options are written --key=value");
                continue;
            }
            arg.remove_prefix(2);
            const std::size_t equals = arg.find('=');
            const std::string_view name = arg.substr(0, equals);
            const std::string where = "--" + std::string(name);
            const auto field = find_arg(name);
            if (!field) {
                fault(where, fmt::format("unknown option{}", nearest(name, "--")));
                if (equals == std::string_view::npos && i + 1 < args.size() &&
                    !args[i + 1].starts_with("--"))
                    ++i;
                continue;
            }
            std::string_view text;
            if (equals != std::string_view::npos) {
                text = arg.substr(equals + 1);
            } else if (std::holds_alternative<bool*>(fields_[*field].target)) {
                text = "true";
                if (i + 1 < args.size() && (args[i + 1] == "true" || args[i + 1] == "false"))
                    text = args[++i];
            } else if (i + 1 < args.size()) {
                text = args[++i];
            } else {
                fault(where, "the value is missing");
                continue;
            }
            if (!std::holds_alternative<Strings*>(fields_[*field].target)) {
                accept_text(*field, text, where);
                continue;
            }
            Strings list;
            if (std::ranges::find(lists_begun, *field) != lists_begun.end())
                list = std::get<Strings>(values_[*field]);
            else
                lists_begun.push_back(*field);
            append_list(list, text);
            accept(*field, std::move(list), where);
        }
    }

    std::optional<std::size_t> find_arg(std::string_view name) const {
        for (const auto& [alias, key] : sources_.aliases) {
            if (normalised(alias) == normalised(name)) return find(key);
        }
        return find(name);
    }

    static void append_list(Strings& list, std::string_view text) {
        while (!text.empty()) {
            const std::size_t comma = text.find(',');
            list.emplace_back(text.substr(0, comma));
            if (comma == std::string_view::npos) break;
            text.remove_prefix(comma + 1);
        }
    }

    std::vector<Field> fields_;
    const ConfigSources& sources_;
    std::map<std::size_t, Value> values_;
    Strings errors_;
};

// Fields by section, in the order in which sections first appear.
std::vector<std::pair<std::string, std::vector<const Field*>>> by_section(
    const std::vector<Field>& fields) {
    std::vector<std::pair<std::string, std::vector<const Field*>>> sections;
    for (const auto& f : fields) {
        auto at = std::ranges::find(sections, f.section(), [](const auto& s) { return s.first; });
        // TOML: keys without a section come before the first table.
        if (at == sections.end())
            at = sections.insert(f.section().empty() ? sections.begin() : sections.end(),
                                 {f.section(), {}});
        at->second.push_back(&f);
    }
    return sections;
}

std::string facts_text(const Field& f) {
    std::string out = "default " + toml_text(f);
    if (!f.spec.unit.empty()) out += " " + std::string(f.spec.unit);
    if (const auto range = range_text(f); !range.empty()) out += "; " + range;
    if (f.spec.reload) out += "; reload";
    return out;
}

std::string escaped_cell(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '|') out += '\\';
        out += c;
    }
    return out;
}

}  // namespace

Result<void> load_config(const BindFn& bind, const ConfigSources& sources) {
    return Loading(bind, sources).run();
}

std::string config_help(const BindFn& bind,
                        const std::vector<std::pair<std::string, std::string>>& aliases) {
    const auto fields = collect(bind);
    std::string out;
    for (const auto& [section, members] : by_section(fields)) {
        out +=
            fmt::format("{}{}:\n", out.empty() ? "" : "\n", section.empty() ? "general" : section);
        for (const Field* f : members) {
            out += "  --" + dashed(f->key);
            if (!std::holds_alternative<bool*>(f->target))
                out += fmt::format(" <{}>", kind_name(*f));
            for (const auto& [alias, key] : aliases) {
                if (normalised(key) == normalised(f->key)) out += ", --" + dashed(alias);
            }
            out += fmt::format("\n        {}{}[{}]\n", f->spec.doc, f->spec.doc.empty() ? "" : " ",
                               facts_text(*f));
        }
    }
    return out;
}

std::string config_markdown(const BindFn& bind) {
    const auto fields = collect(bind);
    std::string out;
    for (const auto& [section, members] : by_section(fields)) {
        out += fmt::format(
            "{}## {}\n\n| key | kind | default | range | reload | meaning "
            "|\n|---|---|---|---|---|---|\n",
            out.empty() ? "" : "\n", section.empty() ? "general" : section);
        for (const Field* f : members) {
            std::string range = range_text(*f);
            if (!f->spec.unit.empty())
                range += (range.empty() ? "" : " ") + std::string(f->spec.unit);
            out += fmt::format("| `{}` | {} | `{}` | {} | {} | {} |\n", f->key, kind_name(*f),
                               escaped_cell(toml_text(*f)), escaped_cell(range),
                               f->spec.reload ? "yes" : "restart", escaped_cell(f->spec.doc));
        }
    }
    return out;
}

std::string config_toml(const BindFn& bind) {
    const auto fields = collect(bind);
    std::string out;
    for (const auto& [section, members] : by_section(fields)) {
        if (!section.empty()) out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
        for (const Field* f : members) out += fmt::format("{} = {}\n", f->name(), toml_text(*f));
    }
    return out;
}

std::vector<std::string> restart_needed(const BindFn& before, const BindFn& after) {
    const auto old_fields = collect(before), new_fields = collect(after);
    std::vector<std::string> keys;
    for (const auto& f : new_fields) {
        const auto old = std::ranges::find(old_fields, f.key, &Field::key);
        if (!f.spec.reload && (old == old_fields.end() || toml_text(*old) != toml_text(f)))
            keys.push_back(f.key);
    }
    return keys;
}

}  // namespace nereid::io
