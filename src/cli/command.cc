#include "cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace nereid::cli {

namespace {

constexpr std::string_view kVersion = "0.1.0";

std::size_t edits(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
        }
    }
    return row[b.size()];
}

std::string overview(std::span<const Command> commands) {
    std::string out =
        "nereid: the online service around an LLM engine\n\nusage: nereid COMMAND [OPTIONS]\n\n";
    for (const auto& c : commands) out += fmt::format("  {:<9} {}\n", c.name, c.summary);
    out += "\n`nereid COMMAND --help` lists a command's options.\n";
    return out;
}

const Command* find(std::span<const Command> commands, std::string_view name) {
    const auto it = std::find_if(commands.begin(), commands.end(),
                                 [&](const Command& c) { return c.name == name; });
    return it == commands.end() ? nullptr : &*it;
}

Result<void> split_address(std::string_view address, std::vector<std::string>& knobs) {
    const auto colon = address.rfind(':');
    if (colon == std::string_view::npos || colon == 0 || colon + 1 == address.size()) {
        return err(
            Code::kConfig,
            fmt::format("--listen {}: no address and port; write it like 127.0.0.1:8080", address));
    }
    std::string_view host = address.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    knobs.push_back(fmt::format("--gateway.host={}", host));
    knobs.push_back(fmt::format("--gateway.port={}", address.substr(colon + 1)));
    return {};
}

}  // namespace

std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates) {
    std::string_view best;
    std::size_t best_edits = std::max<std::size_t>(2, name.size() / 3) + 1;
    for (const auto candidate : candidates) {
        const std::size_t e = edits(name, candidate);
        if (e < best_edits) {
            best_edits = e;
            best = candidate;
        }
    }
    return best;
}

int dispatch(std::span<const Command> commands, std::span<const std::string> args) {
    const bool bare = args.empty();
    if (bare || args[0] == "help" || args[0] == "--help" || args[0] == "-h") {
        if (!bare && args.size() > 1 && find(commands, args[1]) != nullptr) {
            const std::string help[] = {"--help"};
            return find(commands, args[1])->run(help);
        }
        const std::string text = overview(commands);
        std::fputs(text.c_str(), bare ? stderr : stdout);
        return bare ? kConfigExit : kOk;
    }
    const std::string_view name = args[0] == "--version" ? "version" : std::string_view(args[0]);
    if (const Command* command = find(commands, name)) return command->run(args.subspan(1));
    std::vector<std::string_view> names;
    for (const auto& c : commands) names.push_back(c.name);
    const std::string_view near = nearest(name, names);
    return report(
        {Code::kConfig, fmt::format("there is no command '{}'; {}`nereid help` lists them", name,
                                    near.empty() ? "" : fmt::format("did you mean '{}'? ", near))});
}

Result<Invocation> parse_invocation(std::span<const std::string> args) {
    Invocation out;
    for (std::size_t i = 0; i < args.size(); ++i) {
        const std::string& arg = args[i];
        const auto value_of = [&](std::string_view name) -> Result<std::string> {
            if (arg.size() > name.size()) return arg.substr(name.size() + 1);
            if (i + 1 == args.size())
                return Error{Code::kConfig, fmt::format("{} needs a value", name)};
            return args[++i];
        };
        const auto is = [&](std::string_view name) {
            return arg == name ||
                   (arg.starts_with(name) && arg.size() > name.size() && arg[name.size()] == '=');
        };
        if (arg == "--help" || arg == "-h") {
            out.help = true;
        } else if (is("--config")) {
            TRY(out.config_path, value_of("--config"));
        } else if (is("--listen")) {
            TRY(const std::string address, value_of("--listen"));
            TRY_VOID(split_address(address, out.knobs));
        } else {
            out.knobs.push_back(arg);
        }
    }
    return out;
}

int report(const Error& error) {
    std::string text = "nereid: " + error.message;
    if (!text.ends_with('\n')) text += '\n';
    std::fputs(text.c_str(), stderr);
    const bool mend = error.code == Code::kConfig || error.code == Code::kConflict ||
                      error.code == Code::kNotFound || error.code == Code::kInvalidArgument ||
                      error.code == Code::kCorrupt || error.code == Code::kUnsupported ||
                      error.code == Code::kPermissionDenied;
    return mend ? kConfigExit : kFailed;
}

std::string version() { return fmt::format("nereid {}", kVersion); }

}  // namespace nereid::cli
