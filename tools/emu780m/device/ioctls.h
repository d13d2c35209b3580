#pragma once

namespace device {

// A call of the kernel's by its number; 0, or what errno would be, negative. A call that is not known ends the process.
int ioctl(unsigned number, void* argument);

}  // namespace device
