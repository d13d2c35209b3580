// Machine code as text, by libLLVM, which is found by name at run time (EMU_LLVM names another).
#include "disassembly.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "text.h"

namespace rdna3 {

constexpr u32 CODE_END = 0xbf9f0000;

using CreateDisassembler = void* (*)(const char* triple, const char* cpu, void*, int, void*, void*);
using DisassembleOne = size_t (*)(void* context, const u8* bytes, u64 size, u64 pc, char* text, size_t text_size);

struct Disassembler {
    void* context = nullptr;
    DisassembleOne run = nullptr;
};

static void* open_llvm() {
    const char* own = getenv("EMU_LLVM");
    for (const char* name : {own, "libLLVM.so.22.1", "libLLVM.so.21.1", "libLLVM.so.20.1", "libLLVM.so.19.1",
                             "libLLVM-19.so.1"}) {
        void* library = name ? dlopen(name, RTLD_NOW | RTLD_GLOBAL) : nullptr;
        if (library)
            return library;
    }
    fail("no libLLVM; name one in EMU_LLVM");
}

static void* symbol(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (!found)
        fail(std::string("libLLVM has no ") + name);
    return found;
}

// The chip that code is for, as LLVM names it: gfx1150 and later have instructions more, and other codes for some.
static const char* target() {
    const char* chosen = getenv("EMU_CHIP");
    return chosen && *chosen ? chosen : "gfx1103";
}

static Disassembler open_disassembler() {
    void* library = open_llvm();
    for (const char* part : {"LLVMInitializeAMDGPUTargetInfo", "LLVMInitializeAMDGPUTargetMC",
                             "LLVMInitializeAMDGPUDisassembler"})
        ((void (*)())symbol(library, part))();
    const auto create = (CreateDisassembler)symbol(library, "LLVMCreateDisasmCPU");
    Disassembler made;
    made.context = create("amdgcn-mesa-mesa3d", target(), nullptr, 0, nullptr, nullptr);
    made.run = (DisassembleOne)symbol(library, "LLVMDisasmInstruction");
    if (!made.context)
        fail(std::string("libLLVM has no ") + target());
    return made;
}

static u32 word_at(const u8* code, size_t position) {
    u32 word = 0;
    memcpy(&word, code + position, 4);
    return word;
}

// LLVM refuses scalar loads whose registers run on into VCC (s[104:107]). Their text, read out of the bits; empty: this
// is no scalar load.
static std::string scalar_load(u32 first, u32 second) {
    const u32 operation = first >> 18 & 255;
    const u32 width = operation & 7;
    if (first >> 26 != 0x3d || operation > 12 || width > 4)
        return "";
    const bool buffer = operation >= 8;
    const u32 base = (first & 63) * 2;
    const u32 data = first >> 6 & 127;
    const u32 scalar = second >> 25;
    const int offset = (i32)(second << 11) >> 11;
    char offset_register[16];
    snprintf(offset_register, sizeof offset_register, scalar == NUL ? "null" : scalar == M0 ? "m0" : "s%u", scalar);
    char text[128];
    snprintf(text, sizeof text, "s_%sload_b%d s[%u:%u], s[%u:%u], %s offset:%d", buffer ? "buffer_" : "", 32 << width,
             data, data + (1u << width) - 1, base, base + (buffer ? 3 : 1), offset_register, offset);
    return text;
}

std::vector<Line> disassemble(const u8* code, size_t size) {
    static const Disassembler disassembler = open_disassembler();
    std::vector<Line> lines;
    size_t position = 0;
    while (position < size) {
        char room[512];
        size_t used = disassembler.run(disassembler.context, code + position, size - position, position, room,
                                       sizeof room);
        std::string text = used ? room : "";
        if (!used && position + 8 <= size) {
            text = scalar_load(word_at(code, position), word_at(code, position + 4));
            used = text.empty() ? 0 : 8;
        }
        if (!used) {
            char why[64];
            snprintf(why, sizeof why, "not an instruction: %08x at byte %zu", word_at(code, position), position);
            fail(why);
        }
        lines.push_back({trimmed(text.substr(0, text.find(';'))), (u32)position, (u32)used / 4});
        position += used;
    }
    return lines;
}

size_t code_size(const u8* code, size_t most) {
    size_t size = 0;
    while (size + 4 <= most && word_at(code, size) != CODE_END)
        size += 4;
    return size;
}

}  // namespace rdna3
