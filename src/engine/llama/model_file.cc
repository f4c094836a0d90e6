#include "engine/llama/model_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include <gguf.h>
#include "base/hash.h"

namespace nereid::engine::llama {
namespace {

std::unexpected<Error> bad(const std::string& path, std::string_view what, std::string_view mend) {
    return err(Code::kConfig, fmt::format("engine.model \"{}\": {}. Mend: {}", path, what, mend));
}

class File {
  public:
    explicit File(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
    ~File() {
        if (fd_ >= 0) ::close(fd_);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int fd() const { return fd_; }

  private:
    int fd_;
};

struct GgufFree {
    void operator()(gguf_context* c) const { gguf_free(c); }
};

}  // namespace

Result<ModelFile> inspect_model(const std::string& path) {
    const File file(path);
    if (file.fd() < 0) {
        return bad(path, std::strerror(errno),
                   "give the path of a GGUF file that this user may read");
    }
    struct stat st{};
    if (::fstat(file.fd(), &st) != 0 || !S_ISREG(st.st_mode)) {
        return bad(path, "is not a regular file", "give the path of a GGUF file");
    }
    char magic[4] = {};
    if (::pread(file.fd(), magic, sizeof magic, 0) != sizeof magic ||
        std::memcmp(magic, "GGUF", 4) != 0) {
        return bad(path, "is not a GGUF file", "convert the model to GGUF, or fetch a .gguf of it");
    }
    const std::unique_ptr<gguf_context, GgufFree> gguf(
        gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
    if (gguf == nullptr)
        return bad(path, "its GGUF header is damaged or cut short", "fetch the file again");
    ModelFile out;
    out.size = static_cast<ByteCount>(st.st_size);
    const ByteCount data = gguf_get_data_offset(gguf.get());
    for (std::int64_t i = 0; i < gguf_get_n_tensors(gguf.get()); ++i) {
        const ByteCount end =
            data + gguf_get_tensor_offset(gguf.get(), i) + gguf_get_tensor_size(gguf.get(), i);
        if (end > out.size) {
            return bad(path,
                       fmt::format("is cut short: {} bytes, tensor {} ends at {}", out.size,
                                   gguf_get_tensor_name(gguf.get(), i), end),
                       "fetch the file again");
        }
    }
    const auto architecture = gguf_find_key(gguf.get(), "general.architecture");
    if (architecture < 0 || gguf_get_kv_type(gguf.get(), architecture) != GGUF_TYPE_STRING) {
        return bad(path, "names no architecture", "it is no language model; give another file");
    }
    out.architecture = gguf_get_val_str(gguf.get(), architecture);
    const auto vocabulary = gguf_find_key(gguf.get(), "tokenizer.ggml.tokens");
    if (vocabulary < 0 || gguf_get_kv_type(gguf.get(), vocabulary) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_n(gguf.get(), vocabulary) == 0) {
        return bad(path, "holds no vocabulary",
                   "give a complete model, not a projector, adapter or later part of a split");
    }
    return out;
}

Result<Digest256> digest_file(const std::string& path) {
    const File file(path);
    struct stat st{};
    if (file.fd() < 0 || ::fstat(file.fd(), &st) != 0) {
        return err(Code::kIo, fmt::format("{}: {}", path, std::strerror(errno)));
    }
    const auto size = static_cast<std::size_t>(st.st_size);
    if (size == 0) return sha256({});
    void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
    if (at == MAP_FAILED)
        return err(Code::kIo, fmt::format("{}: mmap: {}", path, std::strerror(errno)));
    const Digest256 digest = sha256({static_cast<const std::uint8_t*>(at), size});
    ::munmap(at, size);
    return digest;
}

}  // namespace nereid::engine::llama
