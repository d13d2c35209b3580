#pragma once
#include "../rdna3.h"

// Buffers, and the addresses at which the GPU sees them. All lie in one sparse file: the driver maps parts of it as it
// would map parts of the device node, and the GPU's side is a map of the whole. Callers take care of threads (drm.cpp).
namespace device {

const char* node();  // the file's path, in place of /dev/dri/renderD128

// Buffers go by a handle from 1, which comes again once its buffer is freed. Contents are zeros at first.
uint32_t create_buffer(uint64_t bytes, bool own_memory);  // of the GPU's own, or of the CPU's
void free_buffer(uint32_t handle);
uint64_t buffer_offset(uint32_t handle);  // in the file
uint64_t bytes_in_use(bool own_memory);

void map_address(uint64_t address, uint64_t bytes, uint32_t handle, uint64_t offset);
void unmap_address(uint64_t address);

const rdna3::Memory& gpu_memory();

// For packets: nothing at the address ends the process, with `what` in the message.
uint8_t* bytes_at(uint64_t address, uint32_t size, bool write, const char* what);
uint32_t word_at(uint64_t address, const char* what);

}  // namespace device
