#include "app/experts_command.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "cli/command.h"
#include "io/real_loop.h"
#include "router/experts/group.h"

namespace nereid::app {

namespace {

namespace experts = router::experts;
namespace fs = std::filesystem;

constexpr std::string_view kUsage =
    "nereid experts: which slots hold which experts, for a running group\n\n"
    "usage: nereid experts --folder DIR [--every 60s] [OPTIONS]\n\n"
    "Reads experts-RANK.json of all ranks, writes plan.json when a plan is worth its transfers.\n"
    "Once, or every so often until it is stopped.\n\n";

struct ExpertsOptions {
    std::string folder;
    Duration every = 0s;
    double moved_share = experts::BudgetOptions{}.moved_share;
    double act_below = experts::GroupPlanner::Options{}.act_below;
    double min_gain = experts::GroupPlanner::Options{}.min_gain;
    std::int64_t patience = experts::GroupPlanner::Options{}.patience;

    void bind(io::ConfigBinder& b) {
        b.knob("experts.folder", folder, {.doc = "Where ranks report: their `report_folder`."});
        b.knob("experts.every", every,
               {.min = 0, .doc = "Time between looks at the folder; 0: once."});
        b.knob("experts.moved_share", moved_share,
               {.min = 0.001, .max = 1, .doc = "Most slots that a plan moves, of all."});
        b.knob(
            "experts.act_below", act_below,
            {.min = 0,
             .max = 1,
             .doc = "A plan is made when balancedness is below this share of what is possible."});
        b.knob("experts.min_gain", min_gain,
               {.min = 0, .max = 1, .doc = "Least gain of a plan, of a step's expert time."});
        b.knob("experts.patience", patience,
               {.unit = "looks",
                .min = 1,
                .max = 1e6,
                .doc = "After so many a plan that was not installed is given up."});
    }
};

Result<std::string> read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file) return err(Code::kIo, path.string() + ": cannot be read");
    return text;
}

Result<std::vector<experts::RankReport>> read_folder(const std::string& folder) {
    std::vector<experts::RankReport> out;
    std::error_code ec;
    for (const auto& entry : fs::directory_iterator(folder, ec)) {
        const std::string name = entry.path().filename().string();
        if (!name.starts_with("experts-") || !name.ends_with(".json")) continue;
        TRY(const std::string text, read_file(entry.path()));
        auto report = experts::read_report(text);
        if (!report.ok())
            return err(Code::kInvalidArgument,
                       entry.path().string() + ": " + report.error().message);
        out.push_back(*std::move(report));
    }
    if (ec) return err(Code::kConfig, folder + ": " + ec.message() + ". Mend: --folder DIR.");
    return out;
}

// Beside it, then renamed: ranks read whole files only.
Result<void> write_plan(const fs::path& path, const std::string& text) {
    const fs::path part = path.string() + ".part";
    std::ofstream file(part, std::ios::binary);
    file << text;
    file.close();
    std::error_code ec;
    if (file) fs::rename(part, path, ec);
    if (!file || ec) return err(Code::kIo, path.string() + ": cannot be written");
    return {};
}

Result<void> look(const std::string& folder, experts::GroupPlanner& planner) {
    TRY(const auto reports, read_folder(folder));
    TRY(const auto outcome, planner.round(reports));
    if (outcome.plan) TRY_VOID(write_plan(fs::path(folder) / "plan.json", *outcome.plan));
    for (const std::string& note : outcome.notes) std::puts(note.c_str());
    std::fflush(stdout);
    return {};
}

io::Task<void> keep_looking(io::RealLoop& loop, const ExpertsOptions& options,
                            experts::GroupPlanner& planner) {
    for (;;) {
        // Files that are being replaced, or ranks that start: the next look is another one.
        const auto looked = look(options.folder, planner);
        if (!looked.ok()) cli::report(looked.error());
        co_await loop.sleep_for(options.every);
    }
}

const std::vector<std::pair<std::string, std::string>> kAliases = {{"folder", "experts.folder"},
                                                                   {"every", "experts.every"}};

Result<int> run(const cli::Invocation& invocation) {
    ExpertsOptions options;
    TRY_VOID(io::load_config([&options](io::ConfigBinder& b) { options.bind(b); },
                             {invocation.config_path, invocation.knobs, kAliases}));
    if (options.folder.empty())
        return err(Code::kConfig, "no folder is named. Mend: --folder DIR (key experts.folder).");
    experts::GroupPlanner planner({.budget = {.moved_share = options.moved_share},
                                   .act_below = options.act_below,
                                   .min_gain = options.min_gain,
                                   .patience = static_cast<std::uint32_t>(options.patience)});
    if (options.every == 0s) {
        TRY_VOID(look(options.folder, planner));
        return cli::kOk;
    }
    io::RealLoop loop;
    const io::SignalWatch watch(loop, {SIGTERM, SIGINT}, [&loop](int) { loop.stop(); });
    loop.spawn(keep_looking(loop, options, planner));
    loop.run();
    return cli::kOk;
}

}  // namespace

void bind_experts(io::ConfigBinder& b) {
    static ExpertsOptions options;
    options.bind(b);
}

int experts_command(std::span<const std::string> args) {
    auto invocation = cli::parse_invocation(args);
    if (!invocation.ok()) return cli::report(invocation.error());
    if (invocation->help) {
        const std::string help = std::string(kUsage) + io::config_help(bind_experts, kAliases);
        std::fputs(help.c_str(), stdout);
        return cli::kOk;
    }
    const auto code = run(*invocation);
    return code.ok() ? *code : cli::report(code.error());
}

}  // namespace nereid::app
