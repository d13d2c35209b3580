#include "fences.h"

#include "log.h"

#include <map>

namespace device {
namespace {

std::map<uint32_t, uint64_t> points;
uint32_t next_handle = 1;

uint64_t& point_of(uint32_t handle) {
    const auto found = points.find(handle);
    if (found == points.end())
        stop("fence %u: no such fence, or it was destroyed", handle);
    return found->second;
}

}  // namespace

uint32_t create_fence(uint64_t point) {
    points[next_handle] = point;
    return next_handle++;
}

void destroy_fence(uint32_t handle) {
    point_of(handle);
    points.erase(handle);
}

uint64_t fence_point(uint32_t handle) { return point_of(handle); }

void set_fence(uint32_t handle, uint64_t point) { point_of(handle) = point; }

}  // namespace device
