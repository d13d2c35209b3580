#pragma once

// What the emulated device has to say, on the standard error that the process started with: pytest and others put
// another in its place later.
namespace device {

// EMU_LOG: 1: a line for each dispatch (statistics.h), 2: packets, queries and calls too.
bool log_wanted(int level);
[[gnu::format(printf, 1, 2)]] void log(const char* format, ...);

// Ends the process with status 70: a driver that went on would compute something else than the GPU, or hang.
[[noreturn, gnu::format(printf, 1, 2)]] void stop(const char* format, ...);

}  // namespace device
