#include "cli/keys.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <array>
#include <charconv>
#include <cstdio>

#include "cli/command.h"
#include "gateway/auth.h"

namespace nereid::cli {

namespace {

constexpr std::string_view kUsage =
    "nereid keys: API keys for the file that --api-keys names\n\n"
    "usage: nereid keys new NAME [--max-concurrency N] >> FILE\n\n"
    "The file gets the key's SHA-256; the key itself is shown once, on standard error.\n";

Result<gateway::NewKey> new_key(std::span<const std::string> args) {
    if (args.empty())
        return err(Code::kConfig, "keys new needs a name. Mend: nereid keys new NAME");
    std::int64_t max_concurrency = 0;
    if (args.size() == 3 && args[1] == "--max-concurrency") {
        const auto [end, ec] =
            std::from_chars(args[2].data(), args[2].data() + args[2].size(), max_concurrency);
        if (ec != std::errc{} || end != args[2].data() + args[2].size() || max_concurrency < 0) {
            return err(Code::kConfig,
                       fmt::format("--max-concurrency {}: not a number of requests", args[2]));
        }
    } else if (args.size() != 1) {
        return err(Code::kConfig,
                   fmt::format("keys new does not know '{}'; did you mean '--max-concurrency N'?",
                               args[1]));
    }
    std::array<std::uint8_t, 32> entropy{};
    if (getrandom(entropy.data(), entropy.size(), 0) != static_cast<ssize_t>(entropy.size())) {
        return err(Code::kIo, "the system gave no random bytes");
    }
    return gateway::make_key_line(args[0], max_concurrency, entropy);
}

}  // namespace

int keys(std::span<const std::string> args) {
    if (args.empty() || args[0] == "--help" || args[0] == "-h") {
        std::fputs(std::string(kUsage).c_str(), stdout);
        return args.empty() ? kConfigExit : kOk;
    }
    if (args[0] != "new")
        return report(
            {Code::kConfig, fmt::format("keys does not know '{}'; did you mean 'new'?", args[0])});
    const auto key = new_key(args.subspan(1));
    if (!key.ok()) return report(key.error());
    fmt::print(stderr, "{}\n", key->key);
    fmt::print("{}\n", key->line);
    return kOk;
}

}  // namespace nereid::cli
