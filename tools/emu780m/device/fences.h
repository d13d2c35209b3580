#pragma once
#include <cstdint>

// Synchronisation objects of the kernel's: a point on a timeline each, where objects without a timeline know 0 and 1.
// Submissions are done when they return, so a fence that a submission signals has been reached at once.
namespace device {

uint32_t create_fence(uint64_t point);
void destroy_fence(uint32_t handle);
uint64_t fence_point(uint32_t handle);
void set_fence(uint32_t handle, uint64_t point);
inline bool reached(uint32_t handle, uint64_t point) { return fence_point(handle) >= point; }

}  // namespace device
