// A line of text becomes an instruction: the classes are asked in turn.
#include "classes.h"

namespace rdna3::WAVES {

using Select = bool (*)(Text&, Instruction&);

static constexpr Select CLASSES[] = {
    select_branch, select_scalar, select_scalar_float, select_scalar64, select_scalar_memory, select_compare,
    select_lanes, select_wide, select_packed, select_wmma, select_vector, select_lds, select_scratch,
    select_vector_memory,
};

void take_operands(const Text& text, Instruction& to) {
    if (text.operands.size() > 5)
        text.refuse("operands");
    for (size_t k = 0; k < text.operands.size(); k++) {
        if (k == 0)
            to.result = text.operands[k];
        else
            to.source[to.sources++] = text.operands[k];
    }
}

static Instruction parse_pair(const std::string& line, size_t colons) {
    Instruction pair = parse(line.substr(0, colons));
    Instruction second = parse(line.substr(colons + 4));
    pair.text = line;
    make_pair(pair, std::move(second));
    return pair;
}

Instruction parse(const std::string& line) {
    const size_t colons = line.find(" :: ");
    if (colons != std::string::npos)
        return parse_pair(line, colons);
    Instruction instruction;
    instruction.text = trimmed(line);
    if (select_idle(instruction))
        return instruction;
    Text text(line);
    for (const Select select : CLASSES) {
        if (!select(text, instruction))
            continue;
        text.finish();
        return instruction;
    }
    text.refuse("unknown");
}

}  // namespace rdna3::WAVES
