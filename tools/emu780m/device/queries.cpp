#include "queries.h"

#include "chips.h"
#include "clock.h"
#include "log.h"
#include "memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

namespace device {
namespace {

constexpr uint32_t FIRMWARE_VERSION = 2200;  // new enough that no workaround for old firmware applies
constexpr uint32_t FIRMWARE_FEATURE = 35;
constexpr uint32_t GB_ADDR_CONFIG = 0x263e;  // the one register that is asked for: how addresses map to memory channels
constexpr uint32_t ADDRESS_CONFIG = 0x242;
constexpr uint32_t ARRAYS_PER_ENGINE = 2;
constexpr uint32_t COMPUTE_RINGS = 4;

template <typename T> int reply(const drm_amdgpu_info& query, const T& value) {
    auto* const to = reinterpret_cast<uint8_t*>(query.return_pointer);
    memset(to, 0, query.return_size);
    memcpy(to, &value, std::min<size_t>(sizeof value, query.return_size));
    return 0;
}

// Indirect buffers that a submission may have, by kind of queue; as Linux answers. With 0 RADV would submit none at a
// time, for ever.
int most_buffers(const drm_amdgpu_info& query) {
    uint32_t most[AMDGPU_HW_IP_NUM];
    std::fill(std::begin(most), std::end(most), 49u);
    most[AMDGPU_HW_IP_GFX] = 192;
    most[AMDGPU_HW_IP_COMPUTE] = 125;
    most[AMDGPU_HW_IP_VCN_JPEG] = 16;
    return reply(query, most);
}

// Queues: graphics and compute. No copy engine, no video.
int queues(const drm_amdgpu_info& query) {
    drm_amdgpu_info_hw_ip ip = {};
    const uint32_t kind = query.query_hw_ip.type;
    if (kind == AMDGPU_HW_IP_GFX || kind == AMDGPU_HW_IP_COMPUTE) {
        ip.hw_ip_version_major = 11;
        ip.hw_ip_version_minor = chip().gfx_version >> 8 & 255;
        ip.ip_discovery_version = chip().gfx_version;
        ip.available_rings = kind == AMDGPU_HW_IP_GFX ? 1 : (1 << COMPUTE_RINGS) - 1;
        ip.ib_start_alignment = 32;
        ip.ib_size_alignment = 32;
    }
    return reply(query, ip);
}

int queue_count(const drm_amdgpu_info& query) {
    const uint32_t kind = query.query_hw_ip.type;
    const uint32_t count = kind == AMDGPU_HW_IP_GFX || kind == AMDGPU_HW_IP_COMPUTE;
    return reply(query, count);
}

int firmware(const drm_amdgpu_info& query) {
    drm_amdgpu_info_firmware version = {};
    version.ver = FIRMWARE_VERSION;
    version.feature = FIRMWARE_FEATURE;
    return reply(query, version);
}

int registers(const drm_amdgpu_info& query) {
    if (query.read_mmr_reg.dword_offset != GB_ADDR_CONFIG || query.read_mmr_reg.count != 1) {
        log("register %#x is not known", query.read_mmr_reg.dword_offset);
        return -EINVAL;
    }
    return reply(query, ADDRESS_CONFIG);
}

drm_amdgpu_heap_info heap(uint64_t bytes) {
    drm_amdgpu_heap_info heap = {};
    heap.total_heap_size = bytes;
    heap.usable_heap_size = bytes;
    heap.max_allocation = bytes;
    return heap;
}

// All of the GPU's own memory is visible to the CPU.
int memory(const drm_amdgpu_info& query) {
    drm_amdgpu_memory_info memory = {};
    memory.vram = heap(chip().vram_bytes);
    memory.cpu_accessible_vram = heap(chip().vram_bytes);
    memory.gtt = heap(chip().shared_bytes);
    return reply(query, memory);
}

int memory_sizes(const drm_amdgpu_info& query) {
    drm_amdgpu_info_vram_gtt sizes = {};
    sizes.vram_size = chip().vram_bytes;
    sizes.vram_cpu_accessible_size = chip().vram_bytes;
    sizes.gtt_size = chip().shared_bytes;
    return reply(query, sizes);
}

void describe_compute_units(drm_amdgpu_info_device& d) {
    const uint32_t mask = (1u << chip().compute_units_per_array) - 1;
    d.num_shader_engines = chip().shader_engines;
    d.num_shader_arrays_per_engine = ARRAYS_PER_ENGINE;
    d.num_cu_per_sh = chip().compute_units_per_array;
    d.cu_active_number = chip().shader_engines * ARRAYS_PER_ENGINE * chip().compute_units_per_array;
    d.cu_ao_mask = mask;
    for (uint32_t engine = 0; engine < chip().shader_engines; engine++) {
        for (uint32_t array = 0; array < ARRAYS_PER_ENGINE; array++)  // the fifth and later: behind the first four
            d.cu_bitmap[engine % 4][array + engine / 4 * 2] = mask;
    }
    d.num_rb_pipes = 4 * chip().shader_engines;
    d.enabled_rb_pipes_mask = (1u << d.num_rb_pipes) - 1;
    d.wave_front_size = 32;
    d.num_shader_visible_vgprs = chip().registers;
}

void describe_memory(drm_amdgpu_info_device& d) {
    d.virtual_address_offset = 0x200000;
    d.virtual_address_max = 0x800000000000;
    d.high_va_offset = 0xffff800000000000;
    d.high_va_max = 0xffffffffffffe000;
    d.virtual_address_alignment = 4096;
    d.pte_fragment_size = 65536;
    d.gart_page_size = 4096;
    d.vram_type = chip().vram_type;
    d.vram_bit_width = chip().bus_bits;
    d.num_tcc_blocks = chip().l2_blocks;
    d.tcp_cache_size = 32;
    d.num_sqc_per_wgp = 1;
    d.sqc_data_cache_size = 16;
    d.sqc_inst_cache_size = 32;
    d.gl1c_cache_size = 128;
    d.gl2c_cache_size = chip().l2_cache;
    d.mall_size = static_cast<uint64_t>(chip().last_cache) << 10;
}

int device_info(const drm_amdgpu_info& query) {
    drm_amdgpu_info_device d = {};
    d.device_id = chip().device_id;
    d.pci_rev = chip().revision;
    d.family = chip().family;
    d.external_rev = chip().external_rev;
    d.ids_flags = chip().integrated ? AMDGPU_IDS_FLAGS_FUSION : 0;
    d.gpu_counter_freq = TICKS_PER_MS;
    d.max_engine_clock = chip().engine_clock;
    d.max_memory_clock = chip().memory_clock;
    d.num_hw_gfx_contexts = 8;
    d.pcie_gen = 4;
    d.pcie_num_lanes = 16;
    d.gc_double_offchip_lds_buf = 1;
    d.gs_vgt_table_depth = 32;
    d.gs_prim_buffer_depth = 1792;
    d.max_gs_waves_per_vgt = 32;
    describe_compute_units(d);
    describe_memory(d);
    return reply(query, d);
}

}  // namespace

int answer(const drm_amdgpu_info& query) {
    switch (query.query) {
    case AMDGPU_INFO_ACCEL_WORKING: return reply(query, uint32_t{1});
    case AMDGPU_INFO_HW_IP_INFO: return queues(query);
    case AMDGPU_INFO_HW_IP_COUNT: return queue_count(query);
    case AMDGPU_INFO_FW_VERSION: return firmware(query);
    case AMDGPU_INFO_TIMESTAMP: return reply(query, ticks);
    case AMDGPU_INFO_READ_MMR_REG: return registers(query);
    case AMDGPU_INFO_MEMORY: return memory(query);
    case AMDGPU_INFO_VRAM_GTT: return memory_sizes(query);
    case AMDGPU_INFO_DEV_INFO: return device_info(query);
    case AMDGPU_INFO_MAX_IBS: return most_buffers(query);
    case AMDGPU_INFO_VRAM_USAGE:
    case AMDGPU_INFO_VIS_VRAM_USAGE: return reply(query, bytes_in_use(true));
    case AMDGPU_INFO_GTT_USAGE: return reply(query, bytes_in_use(false));
    case AMDGPU_INFO_VIDEO_CAPS: return reply(query, uint64_t{0});  // none
    default: log("query %#x is not known", query.query); return -EINVAL;
    }
}

}  // namespace device
