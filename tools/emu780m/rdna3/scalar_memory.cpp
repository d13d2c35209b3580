// Scalar memory: loads into consecutive scalar registers, by address or through a buffer descriptor.
#include "classes.h"
#include "memory.h"

namespace rdna3::WAVES {

// An offset in a register is unsigned, one in the text has a sign.
static i64 offset_of(const Wave& wave, const Instruction& load) {
    const Operand& operand = load.source[1];
    const i64 offset = operand.kind == Operand::CONSTANT ? (i64)(i32)operand.value : (i64)read_scalar(wave, operand);
    return offset + load.offset;
}

static void keep(Wave& wave, const Instruction& load, const u32* words) {
    memcpy(&wave.s[load.result.value], words, 4 * load.width);
    wave.stats->smem_bytes += 4 * load.width;
}

static void run_load(Wave& wave, const Instruction& load) {
    const u64 base = canonical(read_scalar64(wave, load.source[0]));
    const u64 address = (base + offset_of(wave, load)) & ~3ull;
    u32 words[16];
    memcpy(words, memory_at(wave, address, 4 * load.width, false), 4 * load.width);
    keep(wave, load, words);
}

static void run_buffer_load(Wave& wave, const Instruction& load) {
    const Buffer buffer = read_buffer(wave, load.source[0]);
    const u64 offset = (u64)offset_of(wave, load) & ~3ull;
    u32 words[16];
    for (int k = 0; k < load.width; k++) {
        const u64 at = offset + 4 * k;
        words[k] = 0;
        if (at + 4 > buffer.size())
            wave.stats->out_of_bounds++;
        else
            memcpy(&words[k], memory_at(wave, buffer.base + at, 4, false), 4);
    }
    keep(wave, load, words);
}

bool select_scalar_memory(Text& text, Instruction& to) {
    const bool buffer = text.starts("s_buffer_load_");
    if (!buffer && !text.starts("s_load_"))
        return false;
    to.width = words_of(text.name);
    if (!to.width || text.name.rfind("_load_b") != text.name.rfind("_load_"))
        return false;
    text.expect(3);
    take_operands(text, to);
    if (to.result.kind != Operand::SCALAR || to.source[0].kind != Operand::SCALAR || to.source[1].is_vector())
        text.refuse("operands");
    to.offset = text.number("offset");
    text.word("glc");  // caches have nothing to do here
    text.word("dlc");
    to.execute = buffer ? run_buffer_load : run_load;
    to.stat = SMEM;
    return true;
}

}  // namespace rdna3::WAVES
