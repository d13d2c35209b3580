// What RADV calls of libdrm and libdrm_amdgpu, answered for the emulated chip: preloaded, these come before the real.
// One lock around all: drivers call from several threads, and a submission is carried out in the thread that makes it.
#include "addresses.h"
#include "chips.h"
#include "fences.h"
#include "ioctls.h"
#include "log.h"
#include "memory.h"

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <mutex>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <amdgpu.h>
#include <amdgpu_drm.h>
#include <xf86drm.h>

using namespace device;

namespace {

constexpr uint32_t DRM_MAJOR = 3;  // of the kernel's driver
constexpr uint32_t DRM_MINOR = 61;
constexpr uint32_t AMD = 0x1002;

std::recursive_mutex lock;
using Guard = std::lock_guard<std::recursive_mutex>;

struct OpenDevice {
    int descriptor;
};

OpenDevice& opened(amdgpu_device_handle handle) { return *reinterpret_cast<OpenDevice*>(handle); }

drmDevicePtr the_device() {
    static drmPciBusInfo bus = {0, 1, 0, 0};
    static drmPciDeviceInfo pci;
    static char* nodes[DRM_NODE_MAX];
    static drmDevice device;
    pci.vendor_id = AMD;
    pci.device_id = static_cast<uint16_t>(chip().device_id);
    pci.revision_id = static_cast<uint8_t>(chip().revision);
    for (char*& path : nodes)
        path = const_cast<char*>(node());
    device.nodes = nodes;
    device.available_nodes = 1 << DRM_NODE_RENDER;
    device.bustype = DRM_BUS_PCI;
    device.businfo.pci = &bus;
    device.deviceinfo.pci = &pci;
    return &device;
}

amdgpu_bo_handle as_pointer(uint32_t handle) { return reinterpret_cast<amdgpu_bo_handle>(uintptr_t{handle}); }
uint32_t as_handle(amdgpu_bo_handle pointer) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer)); }

// As the calls of fences fail: by what errno would be, negative.
int wait_for_fences(const uint32_t* handles, const uint64_t* points, unsigned count, unsigned flags) {
    bool all = true;
    bool any = false;
    for (unsigned k = 0; k < count; k++) {
        const bool done = reached(handles[k], points && points[k] ? points[k] : 1);
        all = all && done;
        any = any || done;
    }
    return (flags & DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL ? all : any) ? 0 : -ETIME;
}

}  // namespace

extern "C" {

// ---- finding and opening the device

int drmGetDevices2(uint32_t, drmDevicePtr devices[], int most) {
    if (devices && most >= 1)
        devices[0] = the_device();
    return 1;
}

int drmGetDevice2(int, uint32_t, drmDevicePtr* device) {
    *device = the_device();
    return 0;
}

int drmGetDeviceFromDevId(dev_t, uint32_t, drmDevicePtr* device) { return drmGetDevice2(0, 0, device); }
void drmFreeDevice(drmDevicePtr*) {}
void drmFreeDevices(drmDevicePtr[], int) {}

drmVersionPtr drmGetVersion(int) {
    static char name[] = "amdgpu";
    static char date[] = "0";
    static char description[] = "emulated";
    static drmVersion version;
    version.version_major = DRM_MAJOR;
    version.version_minor = DRM_MINOR;
    version.name = name;
    version.name_len = sizeof name - 1;
    version.date = date;
    version.date_len = sizeof date - 1;
    version.desc = description;
    version.desc_len = sizeof description - 1;
    return &version;
}

void drmFreeVersion(drmVersionPtr) {}

int drmGetCap(int, uint64_t, uint64_t* value) {
    *value = 1;
    return 0;
}

int drmAuthMagic(int, drm_magic_t) { return 0; }

int amdgpu_device_initialize(int descriptor, uint32_t* major, uint32_t* minor, amdgpu_device_handle* handle) {
    *major = DRM_MAJOR;
    *minor = DRM_MINOR;
    *handle = reinterpret_cast<amdgpu_device_handle>(new OpenDevice{dup(descriptor)});
    return 0;
}

int amdgpu_device_deinitialize(amdgpu_device_handle handle) {
    close(opened(handle).descriptor);
    delete &opened(handle);
    return 0;
}

int amdgpu_device_get_fd(amdgpu_device_handle handle) { return opened(handle).descriptor; }
const char* amdgpu_get_marketing_name(amdgpu_device_handle) { return chip().name; }

int amdgpu_query_sw_info(amdgpu_device_handle, enum amdgpu_sw_info what, void* value) {
    switch (what) {
    case amdgpu_sw_info_address32_hi: *static_cast<uint32_t*>(value) = UPPER_WORD; return 0;
    case amdgpu_sw_info_address_prt_wa_control_bit: *static_cast<uint32_t*>(value) = SPARSE_BIT; return 0;
    }
    return -EINVAL;
}

// ---- addresses and buffers

int amdgpu_va_range_alloc(amdgpu_device_handle, enum amdgpu_gpu_va_range, uint64_t bytes, uint64_t alignment,
                          uint64_t wanted, uint64_t* start, amdgpu_va_handle* handle, uint64_t flags) {
    const Guard guard(lock);
    if (wanted)
        stop("a buffer at the address that the program chooses: not known here");
    const AddressPiece piece = take_addresses(bytes, alignment, flags);
    if (!piece.start)
        return -ENOMEM;
    *start = piece.start;
    *handle = reinterpret_cast<amdgpu_va_handle>(new AddressPiece(piece));
    return 0;
}

int amdgpu_va_range_free(amdgpu_va_handle handle) {
    const Guard guard(lock);
    const auto* const piece = reinterpret_cast<AddressPiece*>(handle);
    give_back_addresses(*piece);
    delete piece;
    return 0;
}

int amdgpu_bo_alloc(amdgpu_device_handle, struct amdgpu_bo_alloc_request* request, amdgpu_bo_handle* buffer) {
    const Guard guard(lock);
    *buffer = as_pointer(create_buffer(request->alloc_size, request->preferred_heap & AMDGPU_GEM_DOMAIN_VRAM));
    return 0;
}

int amdgpu_bo_free(amdgpu_bo_handle buffer) {
    const Guard guard(lock);
    free_buffer(as_handle(buffer));
    return 0;
}

int amdgpu_bo_export(amdgpu_bo_handle buffer, enum amdgpu_bo_handle_type type, uint32_t* handle) {
    if (type != amdgpu_bo_handle_type_kms && type != amdgpu_bo_handle_type_kms_noimport)
        return -ENOSYS;  // to another process
    *handle = as_handle(buffer);
    return 0;
}

int amdgpu_bo_import(amdgpu_device_handle, enum amdgpu_bo_handle_type, uint32_t, struct amdgpu_bo_import_result*) {
    return -ENOSYS;
}

int amdgpu_create_bo_from_user_mem(amdgpu_device_handle, void*, uint64_t, amdgpu_bo_handle*) { return -EINVAL; }
int drmPrimeFDToHandle(int, int, uint32_t*) { return -1; }

// ---- fences

int drmSyncobjCreate(int, uint32_t flags, uint32_t* handle) {
    const Guard guard(lock);
    *handle = create_fence(flags & DRM_SYNCOBJ_CREATE_SIGNALED ? 1 : 0);
    return 0;
}

int drmSyncobjDestroy(int, uint32_t handle) {
    const Guard guard(lock);
    destroy_fence(handle);
    return 0;
}

int drmSyncobjReset(int, const uint32_t* handles, uint32_t count) {
    const Guard guard(lock);
    for (uint32_t k = 0; k < count; k++)
        set_fence(handles[k], 0);
    return 0;
}

int drmSyncobjSignal(int, const uint32_t* handles, uint32_t count) {
    const Guard guard(lock);
    for (uint32_t k = 0; k < count; k++)
        set_fence(handles[k], 1);
    return 0;
}

int drmSyncobjTimelineSignal(int, const uint32_t* handles, uint64_t* points, uint32_t count) {
    const Guard guard(lock);
    for (uint32_t k = 0; k < count; k++)
        set_fence(handles[k], points[k]);
    return 0;
}

int drmSyncobjWait(int, uint32_t* handles, unsigned count, int64_t, unsigned flags, uint32_t*) {
    const Guard guard(lock);
    return wait_for_fences(handles, nullptr, count, flags);
}

int drmSyncobjTimelineWait(int, uint32_t* handles, uint64_t* points, unsigned count, int64_t, unsigned flags,
                           uint32_t*) {
    const Guard guard(lock);
    return wait_for_fences(handles, points, count, flags);
}

int drmSyncobjQuery2(int, uint32_t* handles, uint64_t* points, uint32_t count, uint32_t) {
    const Guard guard(lock);
    for (uint32_t k = 0; k < count; k++)
        points[k] = fence_point(handles[k]);
    return 0;
}

int drmSyncobjTransfer(int, uint32_t target, uint64_t target_point, uint32_t source, uint64_t source_point, uint32_t) {
    const Guard guard(lock);
    if (!reached(source, source_point ? source_point : 1))
        return -EINVAL;
    set_fence(target, target_point ? target_point : 1);
    return 0;
}

// ---- the rest, by number

int drmIoctl(int, unsigned long request, void* argument) {
    const Guard guard(lock);
    const int status = device::ioctl(_IOC_NR(request), argument);
    if (status >= 0)
        return status;
    errno = -status;
    return -1;
}

int ioctl(int descriptor, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    void* const argument = va_arg(arguments, void*);
    va_end(arguments);
    if (_IOC_TYPE(request) == DRM_IOCTL_BASE)
        return drmIoctl(descriptor, request, argument);
    return static_cast<int>(syscall(SYS_ioctl, descriptor, request, argument));
}

}  // extern "C"
