// In place of DeepInfer's csrc/cuda_utils.cpp: "device" memory is a memfd per allocation, so that handles of the two
// arenas work between processes as CUDA IPC handles do. A record is what CUDA's is: 64 opaque bytes and a length.
// The exporter must outlive the first import. Copies are synchronous; the only stream is 0.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "cuda_utils.hpp"

namespace deepinfer::cuda::utils {
namespace {

struct Record {
    char path[64];
    ssize_t bytes;
};
static_assert(sizeof(Record) == 72);

struct Region {
    int fd = -1;
    size_t bytes = 0;
};
std::mutex guard;
std::map<void*, Region> regions;

void release(void* at) {
    const std::lock_guard lock(guard);
    const auto found = regions.find(at);
    if (found == regions.end()) return;
    munmap(at, found->second.bytes);
    close(found->second.fd);
    regions.erase(found);
}

std::optional<torch::Tensor> map_region(int fd, ssize_t bytes) {
    const size_t whole = (static_cast<size_t>(bytes) + 4095) / 4096 * 4096;
    void* at = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        close(fd);
        return std::nullopt;
    }
    {
        const std::lock_guard lock(guard);
        regions[at] = {fd, whole};
    }
    return torch::from_blob(at, {bytes}, release, torch::TensorOptions().dtype(torch::kByte));
}

}  // namespace

std::optional<torch::Tensor> alloc_tensor(ssize_t size) {
    const int fd = memfd_create("deepinfer-device", MFD_CLOEXEC);
    if (fd < 0) return std::nullopt;
    if (ftruncate(fd, (size + 4095) / 4096 * 4096) != 0) {
        close(fd);
        return std::nullopt;
    }
    return map_region(fd, size);
}

py::bytes export_ipc_tensor(size_t at, ssize_t bytes) {
    Record record{};
    record.bytes = bytes;
    const std::lock_guard lock(guard);
    const auto found = regions.find(reinterpret_cast<void*>(at));
    TORCH_CHECK(found != regions.end(), "export_ipc_tensor: not the start of an alloc_tensor region");
    std::snprintf(record.path, sizeof record.path, "/proc/%d/fd/%d", getpid(), found->second.fd);
    return py::bytes(reinterpret_cast<const char*>(&record), sizeof record);
}

std::optional<torch::Tensor> import_ipc_tensor(py::bytes data) {
    const std::string bytes = data;
    TORCH_CHECK(bytes.size() == sizeof(Record), "not an IPC record");
    Record record;
    std::memcpy(&record, bytes.data(), sizeof record);
    record.path[63] = 0;
    const int fd = open(record.path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return std::nullopt;
    return map_region(fd, record.bytes);
}

void cuda_copy_async(void* to, void* from, size_t size, uint64_t stream) {
    TORCH_CHECK(stream == 0, "the CPU build knows stream 0 only");
    std::memcpy(to, from, size);
}

uint64_t get_current_stream() { return 0; }

void pymodule_init(pybind11::module& m) {
    m.def("alloc_tensor", &alloc_tensor, py::arg("size"));
    m.def("export_ipc_tensor", &export_ipc_tensor, py::arg("ptr"), py::arg("nbytes"));
    m.def("import_ipc_tensor", &import_ipc_tensor, py::arg("data"));
}

}  // namespace deepinfer::cuda::utils
