#include "ioctls.h"

#include "log.h"
#include "memory.h"
#include "queries.h"
#include "submission.h"

#include <cerrno>
#include <cstring>

#include <amdgpu_drm.h>

namespace device {
namespace {

int map_for_cpu(drm_amdgpu_gem_mmap& call) {
    const uint32_t handle = call.in.handle;
    call.out.addr_ptr = buffer_offset(handle);
    return 0;
}

int change_addresses(const drm_amdgpu_gem_va& call) {
    switch (call.operation) {
    case AMDGPU_VA_OP_MAP:
    case AMDGPU_VA_OP_REPLACE:
        if (!call.handle)
            stop("addresses with nothing behind them (a sparse buffer): not known here");
        map_address(call.va_address, call.map_size, call.handle, call.offset_in_bo);
        return 0;
    case AMDGPU_VA_OP_UNMAP:
    case AMDGPU_VA_OP_CLEAR: unmap_address(call.va_address); return 0;
    default: stop("change %u of addresses is not known here", call.operation);
    }
}

// One context, which is never lost.
int context(drm_amdgpu_ctx& call) {
    const uint32_t operation = call.in.op;
    memset(&call.out, 0, sizeof call.out);
    if (operation == AMDGPU_CTX_OP_ALLOC_CTX)
        call.out.alloc.ctx_id = 1;
    else if (operation < AMDGPU_CTX_OP_FREE_CTX || operation > AMDGPU_CTX_OP_SET_STABLE_PSTATE)
        stop("context operation %u is not known here", operation);
    return 0;
}

}  // namespace

int ioctl(unsigned number, void* argument) {
    if (log_wanted(2))
        log("call %#x", number);
    switch (static_cast<int>(number) - DRM_COMMAND_BASE) {
    case DRM_AMDGPU_GEM_MMAP: return map_for_cpu(*static_cast<drm_amdgpu_gem_mmap*>(argument));
    case DRM_AMDGPU_CTX: return context(*static_cast<drm_amdgpu_ctx*>(argument));
    case DRM_AMDGPU_CS: submit(*static_cast<drm_amdgpu_cs*>(argument)); return 0;
    case DRM_AMDGPU_INFO: return answer(*static_cast<drm_amdgpu_info*>(argument));
    case DRM_AMDGPU_GEM_METADATA: return 0;  // how images lie in memory: there are none
    case DRM_AMDGPU_GEM_VA: return change_addresses(*static_cast<drm_amdgpu_gem_va*>(argument));
    case DRM_AMDGPU_GEM_WAIT_IDLE:
    case DRM_AMDGPU_WAIT_CS: memset(argument, 0, 8); return 0;  // status 0: done
    default: stop("call %#x of the kernel's is not known here", number);
    }
}

}  // namespace device
