// Vector ALU, the common part: types of operands, one operation on all lanes, pairs (VOPD).
#include "vector.h"

#include "classes.h"

namespace rdna3::WAVES {

void half_constant(Operand& source) {
    if (source.decimal)
        source.value = round_to_half(std::bit_cast<double>(source.wide), NEAREST);
    source.decimal = false;
}

void as_type(const Text& text, Operand& source, Type type, bool high) {
    const bool is_half = type == Type::HALF || type == Type::SHORT;
    if ((source.half || high) && !is_half)
        text.refuse("half");
    // What a constant with a point means to an integer in a half, and to two halves, is not documented.
    if (source.decimal && (type == Type::SHORT || type == Type::HALVES))
        text.refuse("operand");
    if (type == Type::HALF)
        half_constant(source);
    if (is_half && !source.half) {
        source.half = true;
        source.high = high;
    }
}

static bool is_float(Type type) {
    return type == Type::FLOAT || type == Type::HALF;
}

// The sources' lanes, DPP aside. `room` holds what is not in a register as it is.
static void gather(const Wave& wave, const Instruction& instruction, u32 (*room)[LANES], const u32** from) {
    for (int k = 0; k < instruction.sources; k++) {
        from[k] = room[k];
        if (k == 2 && instruction.mask_operand)
            spread_mask(read_mask(wave, instruction.source[2]), room[2]);
        else
            from[k] = read(wave, instruction.source[k], room[k]);
    }
}

static void clamp_halves(u32* values) {
    for (int lane = 0; lane < LANES; lane++) {
        const float x = half_to_float(values[lane]);
        values[lane] = x > 0 ? (x < 1 ? values[lane] : 0x3c00u) : 0;
    }
}

static void finish_result(const Instruction& instruction, u32* values) {
    if (instruction.half_result) {
        if (instruction.clamp)
            clamp_halves(values);
        return;
    }
    scale_and_clamp(instruction, values);
}

static void compute(const Wave& wave, const Instruction& instruction, u32* values) {
    alignas(64) u32 room[3][LANES];
    const u32* from[3] = {room[0], room[1], room[2]};
    gather(wave, instruction, room, from);
    instruction.lanes(from[0], from[1], from[2], values);
    finish_result(instruction, values);
}

static void run_vector(Wave& wave, const Instruction& instruction) {
    alignas(64) u32 values[LANES];
    compute(wave, instruction, values);
    write(wave, instruction.result, values);
}

static void run_dpp(Wave& wave, const Instruction& instruction) {
    alignas(64) u32 room[3][LANES];
    alignas(64) u32 shuffled[LANES];
    alignas(64) u32 values[LANES];
    const u32* from[3] = {room[0], room[1], room[2]};
    gather(wave, instruction, room, from);
    const Mask kept = shuffle(wave, instruction.dpp, from[0], shuffled);
    instruction.lanes(shuffled, from[1], from[2], values);
    finish_result(instruction, values);
    write_lanes(wave.v[instruction.result.value], instruction.result, values, exec(wave) & ~kept);
}

static void run_pair(Wave& wave, const Instruction& pair) {
    alignas(64) u32 first[LANES];
    alignas(64) u32 second[LANES];
    compute(wave, pair, first);
    compute(wave, *pair.second, second);
    write(wave, pair.result, first);
    write(wave, pair.second->result, second);
}

void make_pair(Instruction& first, Instruction second) {
    if (first.execute != run_vector || second.execute != run_vector)
        fail("unknown: " + first.text);
    first.second = std::make_shared<const Instruction>(std::move(second));
    first.execute = run_pair;
    first.stat = PAIR;
}

static const VectorOperation* operation_of(const std::string& name) {
    for (const VectorTable* table : {&float_operations(), &half_operations(), &integer_operations()}) {
        const auto found = table->find(name);
        if (found != table->end())
            return &found->second;
    }
    return nullptr;
}

static void take_result_modifiers(Text& text, Type result, Instruction& to) {
    if (is_float(result))
        to.clamp = text.word("clamp");
    if (result == Type::FLOAT)
        to.multiply = (float)text.number("mul", 1) / (float)text.number("div", 1);
}

// Which halves the operands are: written with them (v0.h), or in op_sel, the result last.
static void take_types(Text& text, const VectorOperation& operation, Instruction& to) {
    int places = 0;
    const int select = text.bits("op_sel", 0, &places);
    for (int k = 0; k < to.sources; k++) {
        const Type type = operation.source[k];
        if (type == Type::MASK)
            continue;
        if ((to.source[k].negative || to.source[k].absolute) && !is_float(type) && !operation.signs)
            text.refuse("sign");
        as_type(text, to.source[k], type, select >> k & 1);
    }
    const bool high = places > to.sources && select >> (places - 1) & 1;
    as_type(text, to.result, operation.result, high);
    text.takes_signs = text.takes_halves = true;
}

bool select_vector(Text& text, Instruction& to) {
    const std::string name = text.starts("v_dual_") ? "v_" + text.name.substr(7) : text.name;
    const VectorOperation* operation = operation_of(name);
    if (!operation)
        return false;
    const int written = operation->sources - (operation->accumulates ? 1 : 0);
    to.mask_operand = operation->source[operation->sources - 1] == Type::MASK;
    text.expect(written + (to.mask_operand ? 0 : 1), written + 1);
    take_operands(text, to);
    if (!to.result.is_vector() || to.result.negative || to.result.absolute)
        text.refuse("operands");
    if (to.mask_operand && to.sources == 2)
        to.source[to.sources++] = {.kind = Operand::SCALAR, .value = VCC};
    take_types(text, *operation, to);
    if (operation->accumulates)
        to.source[to.sources++] = to.result;
    take_result_modifiers(text, operation->result, to);
    to.half_result = operation->result == Type::HALF;
    to.execute = take_dpp(text, to.dpp) ? run_dpp : run_vector;
    to.lanes = operation->lanes;
    to.stat = VALU;
    to.issue = operation->issue;
    return true;
}

}  // namespace rdna3::WAVES
