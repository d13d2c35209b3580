// Vector operations as rows of a table: a function of one lane's values, whose types say what the operands are.
//
// float: a float; Half: one half of a register; u32, i32: a word; u16, i16: an integer in one half; Halves: both;
// bool: the lane's bit of a mask (third operand, else VCC). `operation` makes from it a loop over all lanes.
#pragma once
#include <map>

#include "halves.h"
#include "wave.h"

namespace rdna3::WAVES {

enum class Type : u8 { WORD, FLOAT, HALF, SHORT, HALVES, MASK };

struct Halves {
    u32 bits;
};

struct VectorOperation {
    LaneFunction lanes = nullptr;
    Type result = Type::WORD;
    Type source[3] = {};
    int sources = 0;
    int issue = 1;
    bool signs = false;        // the sources' signs can be changed though they are no floats: moves
    bool accumulates = false;  // the result is the last source as well, and not written in the text
};

using VectorTable = std::map<std::string, VectorOperation>;

template <class T>
constexpr Type type_of() {
    if constexpr (std::is_same_v<T, float>)
        return Type::FLOAT;
    else if constexpr (std::is_same_v<T, Half>)
        return Type::HALF;
    else if constexpr (std::is_same_v<T, bool>)
        return Type::MASK;
    else if constexpr (std::is_same_v<T, Halves>)
        return Type::HALVES;
    else
        return sizeof(T) == 2 ? Type::SHORT : Type::WORD;
}

template <class T>
inline T from_bits(u32 bits) {
    if constexpr (std::is_same_v<T, float>)
        return as_float(bits);
    else if constexpr (std::is_same_v<T, Half>)
        return Half{(u16)bits};
    else if constexpr (std::is_same_v<T, Halves>)
        return Halves{bits};
    else
        return (T)bits;
}

inline u32 to_bits(float value) { return as_bits(value); }
inline u32 to_bits(Half value) { return value.bits; }
inline u32 to_bits(u16 value) { return value; }
inline u32 to_bits(i16 value) { return (u16)value; }
inline u32 to_bits(u32 value) { return value; }
inline u32 to_bits(i32 value) { return (u32)value; }

template <class F, class R, class A>
VectorOperation make_operation(R (F::*)(A) const) {
    const LaneFunction lanes = [](const u32* a, const u32*, const u32*, u32* result) {
        for (int lane = 0; lane < LANES; lane++)
            result[lane] = to_bits(F{}(from_bits<A>(a[lane])));
    };
    return {lanes, type_of<R>(), {type_of<A>()}, 1};
}

template <class F, class R, class A, class B>
VectorOperation make_operation(R (F::*)(A, B) const) {
    const LaneFunction lanes = [](const u32* a, const u32* b, const u32*, u32* result) {
        for (int lane = 0; lane < LANES; lane++)
            result[lane] = to_bits(F{}(from_bits<A>(a[lane]), from_bits<B>(b[lane])));
    };
    return {lanes, type_of<R>(), {type_of<A>(), type_of<B>()}, 2};
}

template <class F, class R, class A, class B, class C>
VectorOperation make_operation(R (F::*)(A, B, C) const) {
    const LaneFunction lanes = [](const u32* a, const u32* b, const u32* c, u32* result) {
        for (int lane = 0; lane < LANES; lane++)
            result[lane] = to_bits(F{}(from_bits<A>(a[lane]), from_bits<B>(b[lane]), from_bits<C>(c[lane])));
    };
    return {lanes, type_of<R>(), {type_of<A>(), type_of<B>(), type_of<C>()}, 3};
}

template <class F>
VectorOperation operation(F) {
    return make_operation(&F::operator());
}

// Issued over four cycles: the special functions, 32-bit products.
template <class F>
VectorOperation slow(F function) {
    VectorOperation made = operation(function);
    made.issue = 4;
    return made;
}

// Moves bits; where these are a float's, its sign can be changed.
template <class F>
VectorOperation moving(F function) {
    VectorOperation made = operation(function);
    made.signs = true;
    return made;
}

// The third operand is the result's register.
template <class F>
VectorOperation accumulating(F function) {
    VectorOperation made = operation(function);
    made.accumulates = true;
    return made;
}

const VectorTable& float_operations();
const VectorTable& half_operations();
const VectorTable& integer_operations();

// Gives a source the type that an operation wants: the half, the bits of a constant.
void as_type(const Text& text, Operand& source, Type type, bool high);
// The bits of a constant in an operand of halves.
void half_constant(Operand& source);

// Lane masks as words of 0 and 1.
inline void spread_mask(Mask mask, u32* words) {
    for (int lane = 0; lane < LANES; lane++)
        words[lane] = is_on(mask, lane);
}

// A float result times `multiply`, clamped.
inline void scale_and_clamp(const Instruction& instruction, u32* values) {
    if (instruction.multiply != 1)
        for (int lane = 0; lane < LANES; lane++)
            values[lane] = as_bits(as_float(values[lane]) * instruction.multiply);
    if (!instruction.clamp)
        return;
    for (int lane = 0; lane < LANES; lane++) {
        const float x = as_float(values[lane]);
        values[lane] = as_bits(x > 0 ? (x < 1 ? x : 1.0f) : 0.0f);  // a NaN becomes 0
    }
}

// Takes DPP's modifiers. False: the line has none.
bool take_dpp(Text& text, Dpp& dpp);
// What the lanes read under DPP, and which of them keep their old result.
Mask shuffle(const Wave& wave, const Dpp& dpp, const u32* from, u32* to);

}  // namespace rdna3::WAVES
