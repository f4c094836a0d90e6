#include "app/config_command.h"

#include <cstdio>

#include "app/cache_command.h"
#include "app/experts_command.h"
#include "app/gateway_main.h"
#include "app/serve.h"
#include "cli/chat.h"
#include "cli/command.h"

namespace nereid::app {

namespace {

constexpr std::string_view kUsage =
    "nereid config: what can be configured\n\n"
    "usage: nereid config --markdown              every knob of every command, as docs/config.md\n"
    "       nereid config --toml [SERVE OPTIONS]  what `nereid serve` with these options would "
    "use, as a file for --config\n";

void bind_everything(io::ConfigBinder& b) {
    static ServeOptions serve;
    static BackendOptions backend;
    static cli::ChatOptions chat;
    serve.bind(b);
    backend.bind(b);
    chat.bind(b);
    bind_cache(b);
    bind_experts(b);
}

Result<std::string> effective(std::span<const std::string> args) {
    TRY(const auto invocation, cli::parse_invocation(args));
    ServeOptions options;
    const auto bind = [&options](io::ConfigBinder& b) { options.bind(b); };
    TRY_VOID(io::load_config(bind, {invocation.config_path, invocation.knobs, serve_aliases()}));
    return io::config_toml(bind);
}

}  // namespace

int config_command(std::span<const std::string> args) {
    const std::string what = args.empty() ? "--help" : args[0];
    Result<std::string> text = std::string(kUsage);
    if (what == "--markdown") {
        text = io::config_markdown(bind_everything);
    } else if (what == "--toml") {
        text = effective(args.subspan(1));
    } else if (what != "--help" && what != "-h") {
        const std::string_view known[] = {"--markdown", "--toml", "--help"};
        const std::string near(cli::nearest(what, known));
        text = err(Code::kConfig, "config does not know '" + what + "'" +
                                      (near.empty() ? "" : "; did you mean '" + near + "'?"));
    }
    if (!text.ok()) return cli::report(text.error());
    std::fputs(text->c_str(), stdout);
    return cli::kOk;
}

}  // namespace nereid::app
