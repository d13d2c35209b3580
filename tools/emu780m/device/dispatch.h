#pragma once
#include <cstdint>

namespace device {

// The registers of the compute shader stage, as packets set them.
class ShaderRegisters {
public:
    void set(uint32_t index, uint32_t value);  // index: in words from SH_BASE
    uint32_t at(uint32_t address) const;       // in bytes, as the drivers' headers name registers

private:
    static constexpr uint32_t COUNT = 0x400;
    uint32_t values_[COUNT] = {};
};

struct Grid {
    uint32_t groups[3];
    uint32_t initiator;  // the dispatch packet's last word
};

// Executes a dispatch. What the interpreter refuses ends the process, with the instruction's text.
void run_dispatch(const ShaderRegisters&, const Grid&);

}  // namespace device
