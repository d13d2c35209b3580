// Scratch: memory of each lane's own, for registers that did not fit.
#include "classes.h"
#include "memory.h"

namespace rdna3::WAVES {

constexpr u32 WORDS = 1 << 14;  // of a lane

// Load: result, address or off, scalar register or off. Store: address or off, data, scalar register or off.
template <bool STORE>
static void run_scratch(Wave& wave, const Instruction& instruction) {
    const Operand& address = STORE ? instruction.result : instruction.source[0];
    const u32 first = STORE ? instruction.source[0].value : instruction.result.value;
    if (wave.scratch.empty())
        wave.scratch.assign((size_t)LANES * WORDS, POISON);
    const Mask on = exec(wave);
    for (int lane = 0; lane < LANES; lane++) {
        if (!is_on(on, lane))
            continue;
        u32 at = read_scalar(wave, instruction.source[1]) + instruction.offset;
        if (address.is_vector())
            at += wave.v[address.value].lane[lane];
        if (at % 4 || at / 4 + instruction.width > WORDS)
            fail("scratch address " + std::to_string(at));
        for (int k = 0; k < instruction.width; k++) {
            u32& word = wave.scratch[(size_t)(at / 4 + k) * LANES + lane];
            u32& lanes = wave.v[first + k].lane[lane];
            if (STORE)
                word = lanes;
            else
                lanes = word;
        }
    }
}

bool select_scratch(Text& text, Instruction& to) {
    const bool store = text.starts("scratch_store_b");
    if (!store && !text.starts("scratch_load_b"))
        return false;
    to.width = words_of(text.name);
    if (!to.width)
        return false;
    text.expect(3);
    take_operands(text, to);
    if (!(store ? to.source[0] : to.result).is_vector() || to.source[1].kind != Operand::SCALAR)
        text.refuse("operands");
    to.offset = text.number("offset");
    to.execute = store ? run_scratch<true> : run_scratch<false>;
    to.stat = VMEM;
    return true;
}

}  // namespace rdna3::WAVES
