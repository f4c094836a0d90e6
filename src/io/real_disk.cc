#include "io/real_disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "io/aligned_buffer.h"
#include "io/socket.h"
#include "io/uring.h"
#include "io/waiter.h"

namespace nereid::io {

namespace {

Error disk_error(std::string_view what, std::string_view path, int number) {
    Code code = Code::kIo;
    switch (number) {
        case ENOENT:
        case ENOTDIR:
            code = Code::kNotFound;
            break;
        case EEXIST:
            code = Code::kConflict;
            break;
        case EACCES:
        case EPERM:
        case EROFS:
            code = Code::kPermissionDenied;
            break;
        case ENOSPC:
        case EDQUOT:
            code = Code::kNoSpace;
            break;
        default:
            break;
    }
    return {code, fmt::format("{} {}: {}", what, path, errno_text(number))};
}

// A system call that is made again when a signal interrupts it.
template <class F>
auto retry(F f) {
    auto r = f();
    while (r < 0 && errno == EINTR) r = f();
    return r;
}

class OwnedFd {
  public:
    explicit OwnedFd(int fd) : fd_(fd) {}
    OwnedFd(OwnedFd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
    OwnedFd& operator=(OwnedFd&&) = delete;
    ~OwnedFd() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const { return fd_; }

  private:
    int fd_;
};

std::string parent_of(const std::string& path) {
    const auto parent = std::filesystem::path(path).parent_path().string();
    return parent.empty() ? "." : parent;
}

Result<void> sync_folder(const std::string& folder) {
    const OwnedFd fd(
        retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (fd.get() < 0) return disk_error("open", folder, errno);
    // Some file systems have no fsync for folders and say EINVAL: there is nothing more to do then.
    if (retry([&] { return fsync(fd.get()); }) != 0 && errno != EINVAL)
        return disk_error("fsync", folder, errno);
    return {};
}

}  // namespace

// The threads and their queue.
class RealDisk::Pool : public std::enable_shared_from_this<RealDisk::Pool> {
  public:
    struct Job {
        explicit Job(RealLoop& loop) : waiter(loop) {}
        std::move_only_function<void()> work;
        enum class State : std::uint8_t {
            kQueued,
            kRunning,
            kDone
        } state = State::kQueued;  // guarded by mutex_
        Waiter waiter;
    };

    Pool(RealLoop& loop, std::size_t threads) : loop_(loop) {
        for (std::size_t i = 0; i < threads; ++i) {
            threads_.emplace_back([this, i] {
                pthread_setname_np(pthread_self(), fmt::format("nereid-disk-{}", i).c_str());
                serve();
            });
        }
    }
    ~Pool() { CHECK(threads_.empty()); }
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    void stop() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (auto& t : threads_) t.join();
        threads_.clear();
    }

    // Runs f() in a thread; f returns a Result.
    template <class F>
    static auto call(std::shared_ptr<Pool> pool, F f) -> Task<std::invoke_result_t<F&>> {
        std::optional<std::invoke_result_t<F&>> result;
        const auto job = std::make_shared<Job>(pool->loop_);
        job->work = [&result, &f] { result.emplace(f()); };
        struct Guard {  // f and result live in this frame: a thread must be done with them before
                        // they go
            Pool& pool;
            Job& job;
            ~Guard() { pool.abandon(job); }
        };
        const Guard guard{*pool, *job};
        pool->submit(job);
        co_await job->waiter.wait();
        co_return std::move(*result);
    }

  private:
    void submit(std::shared_ptr<Job> job) {
        {
            const std::lock_guard lock(mutex_);
            CHECK_MSG(!stopping_, "a file is used after its disk has gone");
            queue_.push_back(std::move(job));
        }
        wake_.notify_one();
    }
    void abandon(Job& job) {
        std::unique_lock lock(mutex_);
        if (job.state == Job::State::kQueued) {
            std::erase_if(queue_, [&](const auto& j) { return j.get() == &job; });
        }
        finished_.wait(lock, [&] { return job.state != Job::State::kRunning; });
    }
    void serve() {
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
            if (queue_.empty()) return;
            auto job = std::move(queue_.front());
            queue_.pop_front();
            job->state = Job::State::kRunning;
            lock.unlock();
            job->work();
            lock.lock();
            job->state = Job::State::kDone;
            // Under the lock: whoever abandons the job may end the loop next.
            loop_.post([job] { job->waiter.wake(Wake::kEvent); });
            finished_.notify_all();
        }
    }

    RealLoop& loop_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable finished_;
    std::deque<std::shared_ptr<Job>> queue_;  // guarded by mutex_
    bool stopping_ = false;                   // guarded by mutex_
    std::vector<std::thread> threads_;
};

namespace {

using Pool = RealDisk::Pool;

struct OpenFile {
    OwnedFd fd;
    std::string path;
    bool aligned_only = false;
};

// Pieces of a read or write, and what has been done of them.
class Pieces {
  public:
    template <class C>
    explicit Pieces(const std::vector<std::span<C>>& pieces) {
        list_.reserve(pieces.size());
        for (const auto& p : pieces) {
            list_.push_back({const_cast<char*>(p.data()), p.size()});
            left_ += p.size();
        }
    }
    const std::vector<iovec>& list() const { return list_; }
    std::size_t left() const { return left_; }
    void advance(std::size_t n) {
        left_ -= n;
        std::size_t whole = 0;
        while (whole < list_.size() && n >= list_[whole].iov_len) n -= list_[whole++].iov_len;
        list_.erase(list_.begin(), list_.begin() + static_cast<std::ptrdiff_t>(whole));
        if (n > 0) {
            list_[0].iov_base = static_cast<char*>(list_[0].iov_base) + n;
            list_[0].iov_len -= n;
        }
    }
    // What File promises, and O_DIRECT asks for.
    Result<void> check(const OpenFile& f, std::uint64_t offset) const {
        if (list_.size() > File::kMaxPieces)
            return err(Code::kInvalidArgument, f.path + ": too many pieces");
        if (!f.aligned_only) return {};
        bool aligned = offset % kDirectAlignment == 0;
        for (const iovec& v : list_) {
            aligned = aligned && v.iov_len % kDirectAlignment == 0 &&
                      reinterpret_cast<std::uintptr_t>(v.iov_base) % kDirectAlignment == 0;
        }
        if (!aligned)
            return err(Code::kInvalidArgument, f.path + ": direct I/O with an unaligned piece");
        return {};
    }

  private:
    std::vector<iovec> list_;
    std::size_t left_ = 0;
};

Result<std::size_t> read_all_at(const OpenFile& f, Pieces& into, std::uint64_t offset) {
    std::size_t done = 0;
    while (into.left() > 0) {
        const auto n = retry([&] {
            return preadv(f.fd.get(), into.list().data(), static_cast<int>(into.list().size()),
                          static_cast<off_t>(offset + done));
        });
        if (n < 0) return disk_error("read", f.path, errno);
        if (n == 0) break;
        done += static_cast<std::size_t>(n);
        // Short inside a page: the end of the file, and no place to go on from directly.
        if (f.aligned_only && static_cast<std::size_t>(n) % kDirectAlignment != 0) break;
        into.advance(static_cast<std::size_t>(n));
    }
    return done;
}

Result<void> write_all_at(const OpenFile& f, Pieces& pieces, std::uint64_t offset) {
    std::uint64_t done = 0;
    while (pieces.left() > 0) {
        const auto n = retry([&] {
            return pwritev(f.fd.get(), pieces.list().data(), static_cast<int>(pieces.list().size()),
                           static_cast<off_t>(offset + done));
        });
        if (n < 0) return disk_error("write", f.path, errno);
        done += static_cast<std::uint64_t>(n);
        pieces.advance(static_cast<std::size_t>(n));
    }
    return {};
}

class RealFile final : public File {
  public:
    RealFile(std::shared_ptr<Pool> pool, std::shared_ptr<Uring> ring, std::shared_ptr<OpenFile> f)
        : pool_(std::move(pool)), ring_(std::move(ring)), f_(std::move(f)) {}
    Task<Result<std::size_t>> read_at(std::span<char> into, std::uint64_t offset) override {
        return read_pieces({into}, offset);
    }
    Task<Result<void>> write_at(std::span<const char> bytes, std::uint64_t offset) override {
        return write_pieces({bytes}, offset);
    }
    Task<Result<std::size_t>> read_pieces(std::vector<std::span<char>> into,
                                          std::uint64_t offset) override {
        if (ring_) return ring_read(ring_, f_, Pieces(into), offset);
        return Pool::call(pool_,
                          [f = f_, pieces = Pieces(into), offset]() mutable -> Result<std::size_t> {
                              TRY_VOID(pieces.check(*f, offset));
                              return read_all_at(*f, pieces, offset);
                          });
    }
    Task<Result<void>> write_pieces(std::vector<std::span<const char>> bytes,
                                    std::uint64_t offset) override {
        if (ring_) return ring_write(ring_, f_, Pieces(bytes), offset);
        return Pool::call(pool_,
                          [f = f_, pieces = Pieces(bytes), offset]() mutable -> Result<void> {
                              TRY_VOID(pieces.check(*f, offset));
                              return write_all_at(*f, pieces, offset);
                          });
    }
    Task<Result<void>> allocate(std::uint64_t bytes) override {
        return Pool::call(pool_, [f = f_, bytes]() -> Result<void> {
            if (retry([&] { return fallocate(f->fd.get(), 0, 0, static_cast<off_t>(bytes)); }) ==
                0) {
                return {};
            }
            if (errno != EOPNOTSUPP) return disk_error("allocate", f->path, errno);
            // No reservation in this file system; its other half, the size, can be had.
            struct stat st{};
            if (fstat(f->fd.get(), &st) != 0) return disk_error("stat", f->path, errno);
            if (static_cast<std::uint64_t>(st.st_size) < bytes &&
                ftruncate(f->fd.get(), static_cast<off_t>(bytes)) != 0) {
                return disk_error("allocate", f->path, errno);
            }
            return {};
        });
    }
    Task<Result<void>> sync() override {
        if (ring_) return ring_sync(ring_, f_);
        return Pool::call(pool_, [f = f_]() -> Result<void> {
            if (retry([&] { return fdatasync(f->fd.get()); }) != 0)
                return disk_error("sync", f->path, errno);
            return {};
        });
    }
    // Of an open file: known to the kernel, nothing to wait for.
    Task<Result<std::uint64_t>> size() override {
        struct stat st{};
        if (fstat(f_->fd.get(), &st) != 0) co_return disk_error("stat", f_->path, errno);
        co_return static_cast<std::uint64_t>(st.st_size);
    }
    Task<Result<void>> truncate(std::uint64_t bytes) override {
        return Pool::call(pool_, [f = f_, bytes]() -> Result<void> {
            if (retry([&] { return ftruncate(f->fd.get(), static_cast<off_t>(bytes)); }) != 0) {
                return disk_error("truncate", f->path, errno);
            }
            return {};
        });
    }

  private:
    static bool again(int result) { return result == -EINTR || result == -EAGAIN; }
    static Task<Result<std::size_t>> ring_read(std::shared_ptr<Uring> ring,
                                               std::shared_ptr<OpenFile> f, Pieces into,
                                               std::uint64_t offset) {
        CO_TRY_VOID(into.check(*f, offset));
        std::size_t done = 0;
        while (into.left() > 0) {
            const int n = co_await Uring::run(ring, Uring::What::kRead, f->fd.get(), into.list(),
                                              offset + done);
            if (again(n)) continue;
            if (n < 0) co_return disk_error("read", f->path, -n);
            if (n == 0) break;
            done += static_cast<std::size_t>(n);
            if (f->aligned_only && static_cast<std::size_t>(n) % kDirectAlignment != 0) break;
            into.advance(static_cast<std::size_t>(n));
        }
        co_return done;
    }
    static Task<Result<void>> ring_write(std::shared_ptr<Uring> ring, std::shared_ptr<OpenFile> f,
                                         Pieces pieces, std::uint64_t offset) {
        CO_TRY_VOID(pieces.check(*f, offset));
        std::uint64_t done = 0;
        while (pieces.left() > 0) {
            const int n = co_await Uring::run(ring, Uring::What::kWrite, f->fd.get(), pieces.list(),
                                              offset + done);
            if (again(n)) continue;
            if (n < 0) co_return disk_error("write", f->path, -n);
            done += static_cast<std::uint64_t>(n);
            pieces.advance(static_cast<std::size_t>(n));
        }
        co_return Result<void>{};
    }
    static Task<Result<void>> ring_sync(std::shared_ptr<Uring> ring, std::shared_ptr<OpenFile> f) {
        static const std::vector<iovec> kNone;
        for (;;) {
            const int n = co_await Uring::run(ring, Uring::What::kSync, f->fd.get(), kNone, 0);
            if (again(n)) continue;
            if (n < 0) co_return disk_error("sync", f->path, -n);
            co_return Result<void>{};
        }
    }

    std::shared_ptr<Pool> pool_;
    std::shared_ptr<Uring> ring_;  // null: the pool does it
    std::shared_ptr<OpenFile> f_;
};

Result<std::shared_ptr<OpenFile>> open_file(const std::string& path, OpenMode mode, bool direct) {
    const auto try_open = [&path, direct](int flags) {
        const auto with = [&](int more) {
            return retry([&] { return ::open(path.c_str(), flags | more | O_CLOEXEC, 0640); });
        };
        int fd = with(direct ? O_DIRECT : 0);
        // The file system has none. The failed call may have created the file: so not O_EXCL again.
        if (fd < 0 && direct && errno == EINVAL) {
            flags &= ~O_EXCL;
            fd = with(0);
        }
        return fd;
    };
    bool created = false;
    int fd = -1;
    switch (mode) {
        case OpenMode::kRead:
            fd = try_open(O_RDONLY);
            break;
        case OpenMode::kReadWrite:
            fd = try_open(O_RDWR);
            break;
        case OpenMode::kCreate:
        case OpenMode::kCreateLocked:
            fd = try_open(O_RDWR);
            if (fd >= 0 || errno != ENOENT) break;
            fd = try_open(O_RDWR | O_CREAT);
            created = fd >= 0;
            break;
        case OpenMode::kCreateExclusive:
            fd = try_open(O_RDWR | O_CREAT | O_EXCL);
            created = fd >= 0;
            break;
    }
    if (fd < 0) return disk_error("open", path, errno);
    auto file = std::make_shared<OpenFile>(OwnedFd(fd), path, direct);
    if (mode == OpenMode::kCreateLocked &&
        retry([&] { return flock(fd, LOCK_EX | LOCK_NB); }) != 0) {
        if (errno == EWOULDBLOCK)
            return err(Code::kConflict, path + " is in use by another process");
        return disk_error("lock", path, errno);
    }
    if (created) TRY_VOID(sync_folder(parent_of(path)));
    return file;
}

Result<std::vector<std::string>> list_folder(const std::string& folder) {
    DIR* dir = opendir(folder.c_str());
    if (dir == nullptr) return disk_error("list", folder, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(dir)) {
        const std::string_view name = entry->d_name;
        if (name != "." && name != "..") names.emplace_back(name);
    }
    const int number = errno;
    closedir(dir);
    if (number != 0) return disk_error("list", folder, number);
    std::ranges::sort(names);
    return names;
}

Result<void> make_all_folders(const std::string& path) {
    std::filesystem::path at;
    for (const auto& part : std::filesystem::path(path)) {
        at /= part;
        if (part.empty() || part == "/") continue;
        if (mkdir(at.c_str(), 0750) == 0) {
            TRY_VOID(sync_folder(parent_of(at.string())));
        } else if (errno != EEXIST || !std::filesystem::is_directory(at)) {
            return disk_error("make folder", at.string(), errno);
        }
    }
    return {};
}

}  // namespace

RealDisk::RealDisk(RealLoop& loop, std::size_t threads)
    : RealDisk(loop, RealDiskOptions{.threads = threads}) {}
RealDisk::RealDisk(RealLoop& loop, const RealDiskOptions& options)
    : pool_(std::make_shared<Pool>(loop, options.threads)),
      uring_(options.uring ? Uring::create(loop, options.depth) : nullptr),
      direct_(options.direct) {}
RealDisk::~RealDisk() { pool_->stop(); }

Task<Result<std::unique_ptr<File>>> RealDisk::open(std::string path, OpenMode mode) {
    const auto pool = pool_;
    const auto ring = uring_;
    CO_TRY(auto file, co_await Pool::call(pool, [path, mode, direct = direct_] {
               return open_file(path, mode, direct);
           }));
    co_return std::make_unique<RealFile>(pool, ring, std::move(file));
}

Task<Result<void>> RealDisk::remove(std::string path) {
    return Pool::call(pool_, [path = std::move(path)]() -> Result<void> {
        if (unlink(path.c_str()) != 0) return disk_error("remove", path, errno);
        return sync_folder(parent_of(path));
    });
}

Task<Result<void>> RealDisk::rename(std::string from, std::string to) {
    return Pool::call(pool_, [from = std::move(from), to = std::move(to)]() -> Result<void> {
        if (::rename(from.c_str(), to.c_str()) != 0)
            return disk_error("rename", from + " -> " + to, errno);
        TRY_VOID(sync_folder(parent_of(to)));
        return parent_of(from) == parent_of(to) ? Result<void>{} : sync_folder(parent_of(from));
    });
}

Task<Result<std::vector<std::string>>> RealDisk::list(std::string folder) {
    return Pool::call(pool_, [folder = std::move(folder)] { return list_folder(folder); });
}

Task<Result<void>> RealDisk::make_folders(std::string path) {
    return Pool::call(pool_, [path = std::move(path)] { return make_all_folders(path); });
}

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
    const OwnedFd fd(retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
    if (fd.get() < 0) return disk_error("open", path, errno);
    std::string out;
    for (;;) {
        // One byte more than allowed is asked for, so that a file of exactly max_bytes passes;
        // sizes are not trusted (/proc).
        const std::size_t had = out.size();
        out.resize(std::min(max_bytes + 1, std::max<std::size_t>(had * 2, 4096)));
        const auto n = retry([&] { return ::read(fd.get(), out.data() + had, out.size() - had); });
        if (n < 0) return disk_error("read", path, errno);
        out.resize(had + static_cast<std::size_t>(n));
        if (n == 0) return out;
        if (out.size() > max_bytes) {
            return Error{Code::kTooLarge,
                         fmt::format("{} is larger than {} bytes", path, max_bytes)};
        }
    }
}

}  // namespace nereid::io
