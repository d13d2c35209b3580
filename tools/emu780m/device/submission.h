#pragma once
#include <amdgpu_drm.h>

namespace device {

// DRM_IOCTL_AMDGPU_CS: carries out the command buffers of a submission, then its fences are reached, then it returns.
void submit(drm_amdgpu_cs& submission);

}  // namespace device
