#pragma once
#include <cstdint>

namespace device {

// What the driver asks the kernel about a GPU; family and external_rev tell it the compiler's target. Clocks in kHz,
// caches in KiB; vram_type: AMDGPU_VRAM_TYPE_*.
struct Chip {
    const char* target;  // as EMU_CHIP names it
    const char* name;
    uint32_t device_id;
    uint32_t revision;
    uint32_t family;
    uint32_t external_rev;
    uint32_t gfx_version;  // major << 16 | minor << 8 | stepping of the graphics block
    bool integrated;       // shares the CPU's memory
    uint32_t shader_engines;
    uint32_t compute_units_per_array;  // of two in each engine
    uint32_t engine_clock;
    uint32_t memory_clock;
    uint32_t vram_type;
    uint32_t bus_bits;
    uint32_t l2_blocks;
    uint32_t l2_cache;
    uint32_t last_cache;
    uint32_t registers;  // vector registers of a SIMD, for waves of 32
    uint64_t vram_bytes;
    uint64_t shared_bytes;  // of the CPU's memory
};

// The chip that EMU_CHIP names, the Radeon 780M where it names none. An unknown name ends the process.
const Chip& chip();

}  // namespace device
