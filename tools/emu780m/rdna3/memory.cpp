// Addresses, buffer descriptors, widths out of names.
#include "memory.h"

#include <cstdio>
#include <map>

namespace rdna3::WAVES {

u8* memory_at(const Wave& wave, u64 address, u32 size, bool write) {
    u8* at = wave.memory->at(address, size, write);
    if (at)
        return at;
    char why[99];
    const char* what = write ? "write" : "read";
    snprintf(why, sizeof why, "no memory at %#llx (%u bytes, %s)", (unsigned long long)address, size, what);
    fail(why);
}

Buffer read_buffer(const Wave& wave, const Operand& operand) {
    const u32* words = &wave.s[operand.value];
    const u64 base = words[0] | (u64)(words[1] & 0xffff) << 32;
    return {canonical(base), words[1] >> 16 & 0x3fff, words[2]};
}

int words_of(const std::string& name) {
    static const std::map<std::string, int> sizes = {
        {"_b32", 1}, {"_b64", 2}, {"_b96", 3}, {"_b128", 4}, {"_b256", 8}, {"_b512", 16},
    };
    const size_t last = name.rfind('_');
    const auto found = sizes.find(last == std::string::npos ? "" : name.substr(last));
    return found == sizes.end() ? 0 : found->second;
}

}  // namespace rdna3::WAVES
