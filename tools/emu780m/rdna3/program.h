// Lines of text as a program: instructions whose branches know where they go.
#pragma once
#include "disassembly.h"
#include "wave.h"

namespace rdna3::WAVES {

using Program = std::vector<Instruction>;

// Throws with the text of the first few lines that are not known.
Program make_program(const std::vector<Line>& lines);

// Of machine code; each code is taken apart once.
const Program& program_of(const u8* code, size_t most);

}  // namespace rdna3::WAVES
