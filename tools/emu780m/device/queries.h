#pragma once
#include <amdgpu_drm.h>

namespace device {

// DRM_IOCTL_AMDGPU_INFO: what the driver asks about the chip. 0, or -EINVAL for what is not known here, as of a kernel
// that is older than the query.
int answer(const drm_amdgpu_info& query);

}  // namespace device
