#pragma once
#include <cstdint>

namespace device {

// Carries out a command buffer: so many words at a GPU address. Packets that only order caches and waits are passed by,
// since all here is done in order and seen at once; what is not known ends the process.
void run_commands(uint64_t address, uint32_t words);

}  // namespace device
