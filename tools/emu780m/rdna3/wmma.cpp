// v_wmma_f32_16x16x16_f16: D = A * B + C for matrices of 16 x 16, A and B of halves, C and D of floats.
//
// Lane l holds row l % 16 of A and column l % 16 of B in 8 registers, two halves each, the same in every 16 lanes;
// register r of C and D holds in lane l the element of row r * LANES / 16 + l / 16, column l % 16.
#include "classes.h"
#include "halves.h"

namespace rdna3::WAVES {

constexpr int SIZE = 16;
constexpr int ROWS = LANES / SIZE;               // in one register of the sum
constexpr int REGISTERS = SIZE * SIZE / LANES;  // of the sum

static void read_halves(const Wave& wave, const Operand& operand, float (*matrix)[SIZE]) {
    for (int k = 0; k < SIZE / 2; k++) {
        const u32* words = wave.v[operand.value + k].lane;
        for (int lane = 0; lane < LANES; lane++) {
            if (words[lane] != words[lane % SIZE])
                fail("operands differ between groups of 16 lanes");
            if (lane >= SIZE)
                continue;
            matrix[lane][2 * k] = half_to_float(words[lane]);
            matrix[lane][2 * k + 1] = half_to_float(words[lane] >> 16);
        }
    }
}

// The order of the sums is not documented: here one after another, each rounded.
static void run_wmma(Wave& wave, const Instruction& instruction) {
    if (exec(wave) != ALL)
        fail("lanes are off");
    float a[SIZE][SIZE];
    float b[SIZE][SIZE];  // columns
    read_halves(wave, instruction.source[0], a);
    read_halves(wave, instruction.source[1], b);
    Register sums[REGISTERS];
    for (int r = 0; r < REGISTERS; r++) {
        u32 room[LANES];
        Operand addend = instruction.source[2];
        if (addend.is_vector())
            addend.value += r;
        const u32* c = read(wave, addend, room);
        for (int lane = 0; lane < LANES; lane++) {
            float sum = as_float(c[lane]);
            for (int k = 0; k < SIZE; k++)
                sum = __builtin_fmaf(a[r * ROWS + lane / SIZE][k], b[lane % SIZE][k], sum);
            sums[r].lane[lane] = as_bits(sum);
        }
    }
    for (int r = 0; r < REGISTERS; r++)
        wave.v[instruction.result.value + r] = sums[r];
}

bool select_wmma(Text& text, Instruction& to) {
    if (text.name != "v_wmma_f32_16x16x16_f16" || text.dpp)
        return false;
    text.expect(4);
    take_operands(text, to);
    const bool constant = to.source[2].kind == Operand::CONSTANT;
    if (!to.result.is_vector() || to.result.registers != REGISTERS || to.source[0].registers != SIZE / 2 ||
        to.source[1].registers != SIZE / 2 || !to.source[0].is_vector() || !to.source[1].is_vector() ||
        (!constant && (!to.source[2].is_vector() || to.source[2].registers != REGISTERS)))
        text.refuse("operands");
    to.execute = run_wmma;
    to.issue = 32;
    to.stat = VALU;
    return true;
}

}  // namespace rdna3::WAVES
