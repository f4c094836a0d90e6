// Configuration: each knob is declared once, where it is used, and everything else derives from
// that declaration: TOML file, command line, --help, validation, the page docs/config.md.
//
// A room's options struct has `void bind(io::ConfigBinder&)` that names each field:
//     b.knob("gateway.queue_max", queue_max, {.unit = "requests", .min = 0, .max = 1e6, .reload =
//     true, .doc = "..."});
// Precedence: command line (--gateway.queue-max=5 or --gateway.queue-max 5; '_' and '-' are equal),
// then the TOML file, then the default in the struct. An unknown key is kConfig and names the
// nearest known one, with file and line. A list is written as an array of strings, on the command
// line "a,b" or the option again. Environment variables are for secrets only and never bound here.
// Durations are written "150ms", "5s", "2m"; sizes "64KiB", "2GiB"; both refuse a bare number with
// the mend in the message.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace nereid::io {

struct KnobSpec {
    std::string_view unit = {};  // for numbers: "requests", "tokens", ...
    // Bounds, both included; of a duration in seconds, of a size in bytes.
    double min = -std::numeric_limits<double>::infinity();
    double max = std::numeric_limits<double>::infinity();
    std::vector<std::string_view> choices = {};  // for strings
    bool reload = false;                         // SIGHUP applies it to the running process
    std::string_view doc = {};
};

struct SizeBytes {
    ByteCount value = 0;
};  // a knob whose text has a size suffix

class ConfigBinder {
  public:
    virtual ~ConfigBinder() = default;
    virtual void knob(std::string_view key, bool& field, KnobSpec spec) = 0;
    virtual void knob(std::string_view key, std::int64_t& field, KnobSpec spec) = 0;
    virtual void knob(std::string_view key, double& field, KnobSpec spec) = 0;
    virtual void knob(std::string_view key, std::string& field, KnobSpec spec) = 0;
    virtual void knob(std::string_view key, Duration& field, KnobSpec spec) = 0;
    virtual void knob(std::string_view key, SizeBytes& field, KnobSpec spec) = 0;
    virtual void knob(std::string_view key, std::vector<std::string>& field, KnobSpec spec) = 0;
};

using BindFn = std::function<void(ConfigBinder&)>;

struct ConfigSources {
    std::string toml_path;          // empty = none
    std::vector<std::string> args;  // "--key=value" / "--key value" / "--flag" for bool
    // Short names for the commonest keys: {"model", "engine.model"}, {"port", "gateway.port"}.
    std::vector<std::pair<std::string, std::string>> aliases;
};
// Fills every field. kConfig with file:line or the argument, what is wrong and the mend. All errors
// at once, one per line; the fields are then as before.
Result<void> load_config(const BindFn& bind, const ConfigSources& sources);
std::string config_help(const BindFn& bind,
                        const std::vector<std::pair<std::string, std::string>>& aliases);
std::string config_markdown(const BindFn& bind);  // the table of docs/config.md
std::string config_toml(const BindFn& bind);  // the effective values, as a file that loads again
// Keys whose value differs between two loads and that are not `reload`: changing them needs a
// restart.
std::vector<std::string> restart_needed(const BindFn& before, const BindFn& after);

// The texts of durations ("150ms"; ns us ms s m h d, one decimal number) and sizes ("64KiB"; B KB
// KiB MB MiB GB GiB TB TiB), as knobs use them. kInvalidArgument with the mend. The formatters give
// the largest unit that is exact.
Result<Duration> parse_duration(std::string_view text);
Result<ByteCount> parse_size(std::string_view text);
std::string format_duration(Duration d);
std::string format_size(ByteCount bytes);

}  // namespace nereid::io
