#pragma once
#include <cstdint>

namespace device {

// The GPU's counter that timestamps are read from, 100 MHz. It advances by what dispatches must take at least.
constexpr uint32_t TICKS_PER_MS = 100000;
extern uint64_t ticks;

}  // namespace device
