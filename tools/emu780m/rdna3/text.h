// A line of the disassembler, taken apart: name, operands, modifiers. Whoever runs the instruction takes the modifiers
// it knows; `finish` refuses the line if one is left, so that none is ignored.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base.h"

namespace rdna3 {

// Numbers of the scalar registers that have names.
enum { VCC = 106, NUL = 124, M0 = 125, EXEC = 126 };

struct Operand {
    enum Kind : u8 { NONE, VECTOR, SCALAR, CONSTANT, CARRY };  // CARRY: the bit SCC
    Kind kind = NONE;
    bool negative = false;
    bool absolute = false;
    bool half = false;      // one half of a register: its sign is bit 15
    bool high = false;      // which
    bool decimal = false;   // a constant written with a point; its bits depend on the operand's type
    u8 registers = 1;       // how many the text names
    u32 value = 0;          // a register's number; a constant's bits (of a float, where decimal)
    u64 wide = 0;           // the constant in an operand of 64 bits (of a double, where decimal)

    bool is_vector() const { return kind == VECTOR; }
    bool is_off() const { return kind == SCALAR && value == NUL; }
};

class Text {
public:
    explicit Text(const std::string& line);

    bool starts(const char* prefix) const { return name.rfind(prefix, 0) == 0; }
    bool contains(const char* part) const { return name.find(part) != std::string::npos; }

    // Take a modifier: a word (`offen`), a number (`offset:16`), bits from the lowest on (`op_sel:[0,1]`), digits.
    bool word(const char* key);
    int number(const char* key, int otherwise = 0);
    int bits(const char* key, int otherwise = 0, int* places = nullptr);
    bool digits(const char* key, u8* four);
    bool has(const char* key) const;

    // Refuses another number of operands.
    void expect(size_t least, size_t most);
    void expect(size_t count) { expect(count, count); }
    // Refuses the line if a modifier, or an operand's sign or half, was not asked for.
    void finish() const;
    [[noreturn]] void refuse(const char* why) const;

    std::string line;
    std::string name;  // without the encoding (_e32, _e64, _dpp)
    std::vector<Operand> operands;
    bool dpp = false;           // in the encoding's name
    bool takes_signs = false;   // the instruction heeds `negative` and `absolute`
    bool takes_halves = false;  // ... `half`

private:
    std::vector<std::pair<std::string, std::string>>::iterator find(const char* key);
    std::vector<std::pair<std::string, std::string>> modifiers;
};

// What stands between blanks, without what LLVM adds behind `;`.
std::string trimmed(const std::string& text);

}  // namespace rdna3
