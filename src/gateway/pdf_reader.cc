#include "gateway/pdf_reader.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "base/utf8.h"
#include "io/memory_region.h"

namespace nereid::gateway {
namespace {

constexpr std::size_t kLongestComplaint = 1000;
constexpr std::size_t kMaxFilesKept = 10'000;
// Of env and prlimit, as of a shell: they could not run the program, or found none.
constexpr int kCannotRun = 126;
constexpr int kNotFound = 127;

// What the program has said.
struct Output {
    std::string text;
    std::string complaint;  // its beginning
    bool too_long = false;
};

io::ProcessSpec spec_of(const std::string& program, int file,
                        const std::shared_ptr<Output>& output) {
    io::ProcessSpec spec;
    // env: our own environment holds secrets.
    spec.argv = {"/usr/bin/env",
                 "-i",
                 "LC_ALL=C.UTF-8",
                 "prlimit",
                 "--as=1073741824",
                 "--cpu=20",
                 "--fsize=0",
                 "--core=0",
                 "--nofile=64",
                 program,
                 "-enc",
                 "UTF-8",
                 "-nopgbrk",
                 fmt::format("/proc/self/fd/{}", file),
                 "-"};
    spec.inherit_fds = {file};
    spec.on_line = [output](std::string_view line, bool is_stderr) {
        std::string& to = is_stderr ? output->complaint : output->text;
        // Of a line that long the rest is lost.
        if (!is_stderr && line.size() == io::kMaxProcessLine) output->too_long = true;
        if (to.size() + line.size() > (is_stderr ? kLongestComplaint : PdfReader::kMaxText)) {
            output->too_long = output->too_long || !is_stderr;
            return;
        }
        to.append(line).append("\n");
    };
    return spec;
}

// Kills a process that runs for too long.
class Alarm {
  public:
    Alarm(io::Loop& loop, TimePoint at, io::Process& process)
        : loop_(loop), id_(loop.arm(at, [&process] { process.signal(SIGKILL); })) {}
    Alarm(const Alarm&) = delete;
    Alarm& operator=(const Alarm&) = delete;
    ~Alarm() { loop_.cancel(id_); }

  private:
    io::Loop& loop_;
    io::Loop::TimerId id_;
};

std::unexpected<Error> refused(std::string why) {
    return err(Code::kInvalidArgument, " " + std::move(why) + ".");
}

Result<std::string> judge(const io::ExitStatus& status, Output& output,
                          const std::string& program) {
    if (status.code == kNotFound || status.code == kCannotRun) {
        return err(Code::kUnsupported,
                   fmt::format(" is a PDF, and this server cannot read PDFs: {} does not run here.",
                               program));
    }
    if (output.complaint.contains("ncorrect password"))
        return refused("is a PDF that only its password opens");
    if (status.code == 3) return refused("is a PDF that does not let its text be taken");
    if (status.signal != 0) return refused("is a PDF that takes too much time or memory to read");
    if (status.code != 0) return refused("is a damaged PDF");
    if (output.too_long)
        return refused(fmt::format("is a PDF with more than {} bytes of text, or {} in a line",
                                   PdfReader::kMaxText, io::kMaxProcessLine));
    const auto last = output.text.find_last_not_of(" \t\r\n\f");
    if (last == std::string::npos)
        return refused("is a PDF without text (pictures of pages are not read)");
    output.text.resize(last + 1);
    return replace_invalid_utf8(output.text);
}

}  // namespace

// One of the kAtOnce places, from take() to the end of its scope.
struct PdfReader::Turn {
    Turn(PdfReader& r, std::string whose) : reader(r), tenant(std::move(whose)), called(r.loop_) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
        std::erase(reader.waiting_, this);
        if (!mine) return;
        reader.running_.erase(std::ranges::find(reader.running_, tenant));
        // From the loop, never on the stack of whoever is being destroyed here.
        PdfReader& r = reader;
        if (r.wake_ == 0) r.wake_ = r.loop_.arm(r.loop_.now(), [&r] { r.call_waiting(); });
    }
    io::Task<Result<void>> take() {
        const auto mine_waiting =
            std::ranges::count(reader.waiting_, tenant, [](const Turn* t) { return t->tenant; });
        if (reader.waiting_.size() >= kMaxWaiting ||
            static_cast<std::size_t>(mine_waiting) >= kMaxWaitingEach)
            co_return err(Code::kOverloaded, " cannot be read now: too many files wait.");
        // Whoever waits comes first, also before the next file of who has just read one.
        if (reader.running_.size() >= kAtOnce || !reader.waiting_.empty()) {
            reader.waiting_.push_back(this);
            co_await called.wait();
        }
        reader.running_.push_back(tenant);
        mine = true;
        co_return Result<void>();
    }
    PdfReader& reader;
    std::string tenant;
    io::Signal called;
    bool mine = false;
};

void PdfReader::call_waiting() {
    wake_ = 0;
    while (running_.size() < kAtOnce && !waiting_.empty()) {
        auto next = std::ranges::find_if(waiting_, [&](const Turn* turn) {
            return std::ranges::find(running_, turn->tenant) == running_.end();
        });
        if (next == waiting_.end()) next = waiting_.begin();
        Turn* const turn = *next;
        waiting_.erase(next);
        turn->called.notify();
    }
}

const Result<std::string>* PdfReader::kept(const Digest256& key) {
    const auto known = by_key_.find(key);
    if (known == by_key_.end() || known->second->until <= loop_.now()) return nullptr;
    kept_.splice(kept_.begin(), kept_, known->second);
    return &kept_.front().text;
}

io::Task<Result<std::string>> PdfReader::text(std::string program, std::string tenant,
                                              std::string_view bytes, Duration& took) {
    if (launcher_ == nullptr || program.empty())
        co_return err(Code::kUnsupported, " is a PDF, and this server reads no PDFs.");
    const Digest256 key = Sha256()
                              .update(as_bytes(tenant))
                              .update(as_bytes({"\0", 1}))
                              .update(as_bytes(program))
                              .update(as_bytes({"\0", 1}))
                              .update(as_bytes(bytes))
                              .finish();
    if (const auto* known = kept(key)) co_return *known;
    Turn turn(*this, std::move(tenant));
    CO_TRY_VOID(co_await turn.take());
    if (const auto* known = kept(key)) co_return *known;  // read while this one waited
    const TimePoint begin = loop_.now();
    Reading reading = co_await read(std::move(program), bytes);
    took += loop_.now() - begin;
    if (reading.lasting) keep(key, reading.text);
    co_return std::move(reading.text);
}

io::Task<PdfReader::Reading> PdfReader::read(std::string program, std::string_view bytes) {
    auto file = io::MemoryRegion::shared("nereid-pdf", bytes.size(), false);
    if (!file.ok()) co_return Reading{std::move(file.error()), false};
    std::memcpy(file->bytes().data(), bytes.data(), bytes.size());
    const auto output = std::make_shared<Output>();
    auto started = launcher_->start(spec_of(program, file->fd(), output));
    if (!started.ok()) {
        co_return Reading{
            err(Code::kUnavailable, " cannot be read now: " + started.error().message), false};
    }
    const std::unique_ptr<io::Process> process = *std::move(started);
    const Alarm alarm(loop_, loop_.now() + kTimeout, *process);
    const io::ExitStatus status = co_await process->wait();
    auto text = judge(status, *output, program);
    const bool lasting = status.signal == 0 && (text.ok() || text.code() == Code::kInvalidArgument);
    co_return Reading{std::move(text), lasting};
}

void PdfReader::keep(const Digest256& key, const Result<std::string>& text) {
    if (const auto old = by_key_.find(key); old != by_key_.end()) {
        kept_bytes_ -= old->second->bytes();
        kept_.erase(old->second);
        by_key_.erase(old);
    }
    kept_.push_front({key, text, text.ok() ? TimePoint::never() : loop_.now() + kKeepRefusal});
    by_key_.emplace(key, kept_.begin());
    kept_bytes_ += kept_.front().bytes();
    while (kept_bytes_ > kMaxKept || kept_.size() > kMaxFilesKept) {
        kept_bytes_ -= kept_.back().bytes();
        by_key_.erase(kept_.back().key);
        kept_.pop_back();
    }
}

}  // namespace nereid::gateway
