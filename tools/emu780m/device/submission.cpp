#include "submission.h"

#include "fences.h"
#include "log.h"
#include "packets.h"

namespace device {
namespace {

template <typename T> const T* items(const drm_amdgpu_cs_chunk& chunk) {
    return reinterpret_cast<const T*>(chunk.chunk_data);
}

template <typename T> uint32_t count(const drm_amdgpu_cs_chunk& chunk) { return chunk.length_dw * 4 / sizeof(T); }

// A point of 0 stands for an object without a timeline.
void wait_for(uint32_t fence, uint64_t point) {
    if (!reached(fence, point ? point : 1))
        stop("a submission waits for fence %u, which nothing before it has reached", fence);
}

void run_commands_of(const drm_amdgpu_cs_chunk& chunk) {
    const auto& buffer = *items<drm_amdgpu_cs_chunk_ib>(chunk);
    if (buffer.ip_type != AMDGPU_HW_IP_GFX && buffer.ip_type != AMDGPU_HW_IP_COMPUTE)
        stop("a submission to queue %u, neither graphics nor compute", buffer.ip_type);
    run_commands(buffer.va_start, buffer.ib_bytes / 4);
}

void before(const drm_amdgpu_cs_chunk& chunk) {
    using Fence = drm_amdgpu_cs_chunk_sem;
    using Point = drm_amdgpu_cs_chunk_syncobj;
    switch (chunk.chunk_id) {
    case AMDGPU_CHUNK_ID_SYNCOBJ_IN:
        for (uint32_t k = 0; k < count<Fence>(chunk); k++)
            wait_for(items<Fence>(chunk)[k].handle, 1);
        break;
    case AMDGPU_CHUNK_ID_SYNCOBJ_TIMELINE_WAIT:
        for (uint32_t k = 0; k < count<Point>(chunk); k++)
            wait_for(items<Point>(chunk)[k].handle, items<Point>(chunk)[k].point);
        break;
    case AMDGPU_CHUNK_ID_IB:
    case AMDGPU_CHUNK_ID_FENCE:         // where the CPU could see that it is done
    case AMDGPU_CHUNK_ID_DEPENDENCIES:  // submissions before this one, all done
    case AMDGPU_CHUNK_ID_SCHEDULED_DEPENDENCIES:
    case AMDGPU_CHUNK_ID_SYNCOBJ_OUT:
    case AMDGPU_CHUNK_ID_SYNCOBJ_TIMELINE_SIGNAL:
    case AMDGPU_CHUNK_ID_BO_HANDLES: break;  // what is to be resident
    default: stop("a submission has a part of kind %#x, which is not known here", chunk.chunk_id);
    }
}

void after(const drm_amdgpu_cs_chunk& chunk) {
    using Fence = drm_amdgpu_cs_chunk_sem;
    using Point = drm_amdgpu_cs_chunk_syncobj;
    if (chunk.chunk_id == AMDGPU_CHUNK_ID_SYNCOBJ_OUT) {
        for (uint32_t k = 0; k < count<Fence>(chunk); k++)
            set_fence(items<Fence>(chunk)[k].handle, 1);
    }
    if (chunk.chunk_id == AMDGPU_CHUNK_ID_SYNCOBJ_TIMELINE_SIGNAL) {
        for (uint32_t k = 0; k < count<Point>(chunk); k++)
            set_fence(items<Point>(chunk)[k].handle, items<Point>(chunk)[k].point ? items<Point>(chunk)[k].point : 1);
    }
}

}  // namespace

void submit(drm_amdgpu_cs& submission) {
    static uint64_t number = 1;
    const auto* const chunks = reinterpret_cast<const drm_amdgpu_cs_chunk* const*>(submission.in.chunks);
    const uint32_t num_chunks = submission.in.num_chunks;
    for (uint32_t k = 0; k < num_chunks; k++)
        before(*chunks[k]);
    for (uint32_t k = 0; k < num_chunks; k++) {
        if (chunks[k]->chunk_id == AMDGPU_CHUNK_ID_IB)
            run_commands_of(*chunks[k]);
    }
    for (uint32_t k = 0; k < num_chunks; k++)
        after(*chunks[k]);
    submission.out.handle = number++;
}

}  // namespace device
