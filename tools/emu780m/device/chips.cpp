#include "chips.h"

#include "log.h"

#include <cstdlib>
#include <string>

#include <amdgpu_drm.h>

namespace device {
namespace {

constexpr uint64_t GIB = 1ull << 30;

// Numbers as public drivers and descriptions give them. Family, external_rev and gfx_version bear on what is compiled,
// the others on what the driver reports.
constexpr Chip CHIPS[] = {
    {
        .target = "gfx1103",
        .name = "AMD Radeon 780M (emulated)",
        .device_id = 0x15bf,
        .revision = 0xc4,
        .family = AMDGPU_FAMILY_GC_11_0_1,
        .external_rev = 0x01,
        .gfx_version = 0x0b0001,
        .integrated = true,
        .shader_engines = 1,
        .compute_units_per_array = 6,
        .engine_clock = 2700000,
        .memory_clock = 2800000,
        .vram_type = AMDGPU_VRAM_TYPE_DDR5,
        .bus_bits = 128,
        .l2_blocks = 4,
        .l2_cache = 2048,
        .last_cache = 0,
        .registers = 1024,
        .vram_bytes = 4 * GIB,
        .shared_bytes = 14 * GIB,
    },
    {
        .target = "gfx1150",
        .name = "AMD Radeon 890M (emulated)",
        .device_id = 0x150e,
        .revision = 0xc1,
        .family = AMDGPU_FAMILY_GC_11_5_0,
        .external_rev = 0x01,
        .gfx_version = 0x0b0500,
        .integrated = true,
        .shader_engines = 1,
        .compute_units_per_array = 8,
        .engine_clock = 2900000,
        .memory_clock = 3750000,
        .vram_type = AMDGPU_VRAM_TYPE_LPDDR5,
        .bus_bits = 128,
        .l2_blocks = 4,
        .l2_cache = 2048,
        .last_cache = 0,
        .registers = 1024,
        .vram_bytes = 4 * GIB,
        .shared_bytes = 14 * GIB,
    },
    {
        .target = "gfx1151",
        .name = "AMD Radeon 8060S (emulated)",
        .device_id = 0x1586,
        .revision = 0xc1,
        .family = AMDGPU_FAMILY_GC_11_5_0,
        .external_rev = 0xc1,
        .gfx_version = 0x0b0501,
        .integrated = true,
        .shader_engines = 2,
        .compute_units_per_array = 10,
        .engine_clock = 2900000,
        .memory_clock = 4000000,
        .vram_type = AMDGPU_VRAM_TYPE_LPDDR5,
        .bus_bits = 256,
        .l2_blocks = 16,
        .l2_cache = 2048,
        .last_cache = 32768,
        .registers = 1536,
        .vram_bytes = 4 * GIB,
        .shared_bytes = 14 * GIB,
    },
    {
        .target = "gfx1100",
        .name = "AMD Radeon RX 7900 XTX (emulated)",
        .device_id = 0x744c,
        .revision = 0xc8,
        .family = AMDGPU_FAMILY_GC_11_0_0,
        .external_rev = 0x01,
        .gfx_version = 0x0b0000,
        .integrated = false,
        .shader_engines = 6,
        .compute_units_per_array = 8,
        .engine_clock = 2500000,
        .memory_clock = 1250000,
        .vram_type = AMDGPU_VRAM_TYPE_GDDR6,
        .bus_bits = 384,
        .l2_blocks = 24,
        .l2_cache = 6144,
        .last_cache = 98304,
        .registers = 1536,
        .vram_bytes = 24 * GIB,
        .shared_bytes = 16 * GIB,
    },
};

const Chip& chosen() {
    const char* const value = getenv("EMU_CHIP");
    const std::string wanted = value && *value ? value : CHIPS[0].target;
    std::string known;
    for (const Chip& chip : CHIPS) {
        if (wanted == chip.target)
            return chip;
        known += std::string(known.empty() ? "" : ", ") + chip.target;
    }
    stop("EMU_CHIP: %s is not among the chips: %s", wanted.c_str(), known.c_str());
}

}  // namespace

const Chip& chip() {
    static const Chip& found = chosen();
    return found;
}

}  // namespace device
