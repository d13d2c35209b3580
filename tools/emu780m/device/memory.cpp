#include "memory.h"

#include "../statistics.h"
#include "log.h"
#include "ranges.h"

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace device {
namespace {

constexpr uint64_t PAGE = 4096;
constexpr uint64_t MOST_BYTES = 1ull << 36;  // of addresses that all buffers together may take

struct Buffer {
    uint64_t offset;
    uint64_t bytes;  // 0: the handle is free
    bool own_memory;
};

class File {
public:
    File() {
        descriptor_ = memfd_create("emu780m", MFD_CLOEXEC);
        if (descriptor_ < 0 || ftruncate(descriptor_, MOST_BYTES))
            stop("no file for the device's memory: %s", strerror(errno));
        void* const at = mmap(nullptr, MOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
        if (at == MAP_FAILED)
            stop("no addresses for the device's memory: %s", strerror(errno));
        start = static_cast<uint8_t*>(at);
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor_);
    }

    uint8_t* start;
    char path[64];
    Ranges free{PAGE, MOST_BYTES};

private:
    int descriptor_;
};

File& file() {
    static File* const made = new File;  // until the process ends: drivers free buffers late
    return *made;
}

std::vector<Buffer> buffers{{0, 0, false}};  // by handle
std::vector<uint32_t> free_handles;

const Buffer& buffer(uint32_t handle) {
    if (handle == 0 || handle >= buffers.size() || !buffers[handle].bytes)
        stop("buffer %u: no such buffer, or it was freed", handle);
    return buffers[handle];
}

struct Mapping {
    uint64_t bytes;
    uint8_t* start;
};

// What is mapped, by address. Remembers the last mapping found, since most accesses follow one in the same buffer.
class Addresses : public rdna3::Memory {
public:
    void map(uint64_t address, Mapping mapping) {
        mappings_[address] = mapping;
        forget();
    }

    void unmap(uint64_t address) {
        mappings_.erase(address);
        forget();
    }

    // Whatever is mapped of these bytes.
    void unmap_bytes(const uint8_t* start, uint64_t bytes) {
        for (auto mapping = mappings_.begin(); mapping != mappings_.end();) {
            const uint8_t* const at = mapping->second.start;
            mapping = at >= start && at < start + bytes ? mappings_.erase(mapping) : std::next(mapping);
        }
        forget();
    }

    uint8_t* at(uint64_t address, uint32_t size, bool write) const override {
        if (!inside(address, size) && !(find(address) && inside(address, size)))
            return nullptr;
        uint8_t* const found = start_ + (address - first_);
        if (statistics::footprint_wanted())
            statistics::touch(found - file().start, size, write);
        return found;
    }

    const uint8_t* rest(uint64_t address, size_t& size) const override {
        if (!find(address))
            return nullptr;
        size = end_ - address;
        return start_ + (address - first_);
    }

private:
    bool inside(uint64_t address, uint32_t size) const { return address >= first_ && address + size <= end_; }

    bool find(uint64_t address) const {
        auto mapping = mappings_.upper_bound(address);
        if (mapping == mappings_.begin())
            return false;
        --mapping;
        if (address - mapping->first >= mapping->second.bytes)
            return false;
        first_ = mapping->first;
        end_ = first_ + mapping->second.bytes;
        start_ = mapping->second.start;
        return true;
    }

    void forget() {
        first_ = 1;
        end_ = 0;
    }

    std::map<uint64_t, Mapping> mappings_;
    mutable uint64_t first_ = 1;
    mutable uint64_t end_ = 0;
    mutable uint8_t* start_ = nullptr;
};

Addresses addresses;

}  // namespace

const char* node() { return file().path; }

uint32_t create_buffer(uint64_t bytes, bool own_memory) {
    bytes = (bytes + PAGE - 1) & ~(PAGE - 1);
    const uint64_t offset = bytes ? file().free.take(bytes, PAGE) : 0;
    if (!offset)
        stop("no room for a buffer of %" PRIu64 " bytes", bytes);
    uint32_t handle = static_cast<uint32_t>(buffers.size());
    if (free_handles.empty()) {
        buffers.push_back({offset, bytes, own_memory});
    } else {
        handle = free_handles.back();
        free_handles.pop_back();
        buffers[handle] = {offset, bytes, own_memory};
    }
    return handle;
}

void free_buffer(uint32_t handle) {
    const Buffer freed = buffer(handle);
    addresses.unmap_bytes(file().start + freed.offset, freed.bytes);
    madvise(file().start + freed.offset, freed.bytes, MADV_REMOVE);  // the next one there starts with zeros
    file().free.give_back(freed.offset, freed.bytes);
    buffers[handle] = {0, 0, false};
    free_handles.push_back(handle);
}

uint64_t buffer_offset(uint32_t handle) {
    return buffer(handle).offset;
}

uint64_t bytes_in_use(bool own_memory) {
    uint64_t bytes = 0;
    for (const Buffer& buffer : buffers)
        bytes += buffer.own_memory == own_memory ? buffer.bytes : 0;
    return bytes;
}

void map_address(uint64_t address, uint64_t bytes, uint32_t handle, uint64_t offset) {
    const Buffer& mapped = buffer(handle);
    if (offset > mapped.bytes || bytes > mapped.bytes - offset)
        stop("buffer %u of %" PRIu64 " bytes: %" PRIu64 " from %" PRIu64 " on cannot be mapped", handle, mapped.bytes,
             bytes, offset);
    addresses.map(address, {bytes, file().start + mapped.offset + offset});
}

void unmap_address(uint64_t address) {
    addresses.unmap(address);
}

const rdna3::Memory& gpu_memory() { return addresses; }

uint8_t* bytes_at(uint64_t address, uint32_t size, bool write, const char* what) {
    uint8_t* const found = addresses.at(address, size, write);
    if (!found)
        stop("%s: nothing is mapped at %#" PRIx64 " (%u bytes)", what, address, size);
    return found;
}

uint32_t word_at(uint64_t address, const char* what) {
    uint32_t word;
    memcpy(&word, bytes_at(address, sizeof word, false, what), sizeof word);
    return word;
}

}  // namespace device
