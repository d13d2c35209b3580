// The classes of instructions. Each looks at a line's name; if the instruction is one of its own it fills in how to run
// it, takes the modifiers it knows, and returns true.
#pragma once
#include "wave.h"

namespace rdna3::WAVES {

bool select_branch(Text& text, Instruction& to);      // branches, barrier, end
bool select_scalar(Text& text, Instruction& to);      // scalar ALU, 32 bits
bool select_scalar_float(Text& text, Instruction& to);
bool select_scalar64(Text& text, Instruction& to);    // scalar ALU, 64 bits
bool select_scalar_memory(Text& text, Instruction& to);
bool select_compare(Text& text, Instruction& to);     // v_cmp, v_cmpx
bool select_lanes(Text& text, Instruction& to);       // between lanes: readlane, permlane, swap
bool select_wide(Text& text, Instruction& to);        // carries, 64 bits
bool select_packed(Text& text, Instruction& to);      // packed halves, v_fma_mix, dot products
bool select_wmma(Text& text, Instruction& to);
bool select_vector(Text& text, Instruction& to);      // all other vector ALU: one operation for each lane
bool select_lds(Text& text, Instruction& to);
bool select_scratch(Text& text, Instruction& to);
bool select_vector_memory(Text& text, Instruction& to);  // buffers and global addresses

// A line as an instruction; throws with the line where no class knows it.
Instruction parse(const std::string& line);

// Waits and hints, which do nothing here; before the operands are looked at, for theirs are of many kinds.
bool select_idle(Instruction& to);

// Makes of two vector operations the pair that reads all its operands before it writes.
void make_pair(Instruction& first, Instruction second);

// result and source[] from all of the line's operands, in their order.
void take_operands(const Text& text, Instruction& to);

}  // namespace rdna3::WAVES
