// PdfReader: the text of PDF files, by poppler's pdftotext: a process of its own for each file,
// with an empty environment and limits on memory and time, so that what a hostile file does ends
// with it (ADR 0015).
//
// One per shard, on its loop. kAtOnce files at a time; others wait, kMaxWaiting in all and
// kMaxWaitingEach of a tenant. Whoever waits comes before the next file of who has just read one,
// and a tenant that reads one already comes after those that read none. What came of a file is
// kept, a refusal for kKeepRefusal: agents send the same file with every turn. Errors begin with a
// space: the file's name goes before.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "io/loop.h"
#include "io/process.h"
#include "io/root_task.h"

namespace nereid::gateway {

class PdfReader {
  public:
    static constexpr int kAtOnce = 2;
    static constexpr std::size_t kMaxWaiting = 64;
    static constexpr std::size_t kMaxWaitingEach = 16;
    static constexpr std::size_t kMaxText = 16u << 20;  // bytes, of one file
    static constexpr std::size_t kMaxKept = 32u << 20;  // bytes of texts
    static constexpr Duration kTimeout = 30s;           // of one file
    static constexpr Duration kKeepRefusal = 10min;     // what reads it may be mended

    // `launcher` may be null: no PDFs are read. Both outlive this.
    PdfReader(io::Loop& loop, io::ProcessLauncher* launcher) : loop_(loop), launcher_(launcher) {}
    ~PdfReader() { loop_.cancel(wake_); }
    PdfReader(const PdfReader&) = delete;
    PdfReader& operator=(const PdfReader&) = delete;

    // The text, a page after the other. `program` is called as pdftotext is; empty: none.
    // kInvalidArgument: damaged, encrypted, without text, beyond the limits; kUnsupported: there is
    // no such program here; kOverloaded: too many wait. `took`: grows by the time that the program
    // ran. `tenant`: what is kept is kept apart, so that nobody learns what others send.
    io::Task<Result<std::string>> text(std::string program, std::string tenant,
                                       std::string_view bytes, Duration& took);

  private:
    struct Turn;
    struct Kept {
        Digest256 key;
        Result<std::string> text;
        TimePoint until;
        std::size_t bytes() const { return text.ok() ? text->size() : text.error().message.size(); }
    };
    struct Reading {
        Result<std::string> text;
        bool lasting;  // would be the same again
    };
    io::Task<Reading> read(std::string program, std::string_view bytes);
    const Result<std::string>* kept(const Digest256& key);
    void call_waiting();
    void keep(const Digest256& key, const Result<std::string>& text);

    io::Loop& loop_;
    io::ProcessLauncher* launcher_;
    std::vector<std::string> running_;  // whose
    std::deque<Turn*> waiting_;
    io::Loop::TimerId wake_ = 0;  // armed when a place has become free
    std::list<Kept> kept_;        // the last used first
    std::map<Digest256, std::list<Kept>::iterator> by_key_;
    std::size_t kept_bytes_ = 0;
};

}  // namespace nereid::gateway
