// Command: one subcommand of `nereid`, and the choice among them. Pure apart from what a command
// itself does.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nereid::cli {

// Exit codes of every subcommand. A supervisor of ours, or systemd, does not restart on
// kConfigExit.
inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;  // it ran and something went wrong
inline constexpr int kConfigExit =
    2;  // the command line, the configuration or a file it names must be mended

struct Command {
    std::string_view name;
    std::string_view summary;  // one line for `nereid help`
    std::function<int(std::span<const std::string> args)>
        run;  // without program and subcommand; may block; an exit code
};

// Runs the one that args[0] names. `help`, `--help`, `-h` and no arguments print the list; `help
// NAME` is `NAME --help`; an unknown name prints the nearest one to stderr and returns kConfigExit.
int dispatch(std::span<const Command> commands, std::span<const std::string> args);

// What the service commands take besides knobs. `--config FILE`, `--help`, and `--listen
// HOST:PORT`, which is short for
// --gateway.host and --gateway.port ([::1]:8080 for IPv6).
struct Invocation {
    bool help = false;
    std::string config_path;
    std::vector<std::string> knobs;  // the rest, for io::load_config
};
// kConfig: an option without its value, or an address that is none.
Result<Invocation> parse_invocation(std::span<const std::string> args);

// The candidate with the fewest edits from `name`, or empty when none is near (more than a third of
// its letters, at least 2, differ). Ties: the first.
std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates);

// Prints "nereid: <message>" to stderr and returns the exit code that fits the error.
int report(const Error& error);

std::string version();  // "nereid 0.1.0"

}  // namespace nereid::cli
