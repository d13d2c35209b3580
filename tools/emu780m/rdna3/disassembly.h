// Machine code as text, by whatever libLLVM with AMDGPU there is.
#pragma once
#include <string>
#include <vector>

#include "base.h"

namespace rdna3 {

struct Line {
    std::string text;
    u32 position;  // bytes
    u32 words;
};

// All instructions of `size` bytes of code.
std::vector<Line> disassemble(const u8* code, size_t size);

// Bytes of code up to what RADV puts behind the last instruction (s_code_end).
size_t code_size(const u8* code, size_t most);

}  // namespace rdna3
