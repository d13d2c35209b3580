// Lines of text as a program: instructions whose branches know where they go.
#include "program.h"

#include <map>
#include <unordered_map>

#include "classes.h"

namespace rdna3::WAVES {

constexpr size_t REPORTED = 300;  // characters of an error

Program make_program(const std::vector<Line>& lines) {
    Program program;
    std::unordered_map<u32, int> number_at;
    std::string unknown;
    for (const Line& line : lines) {
        number_at[line.position] = (int)program.size();
        program.emplace_back();
        try {
            program.back() = parse(line.text);
        } catch (std::exception& error) {
            if (unknown.size() < REPORTED)
                unknown += (unknown.empty() ? "" : " | ") + std::string(error.what());
        }
        program.back().words = (int)line.words;
    }
    if (!unknown.empty())
        fail(unknown);
    if (!lines.empty())
        number_at[lines.back().position + 4 * lines.back().words] = (int)program.size();
    for (size_t k = 0; k < program.size(); k++) {
        Instruction& branch = program[k];
        if (!branch.condition)
            continue;
        const auto target = number_at.find(lines[k].position + 4 * (1 + branch.target));
        if (target == number_at.end())
            fail("branch out of the code: " + branch.text);
        branch.target = target->second;
    }
    return program;
}

const Program& program_of(const u8* code, size_t most) {
    static std::map<std::string, Program> known;
    const size_t size = code_size(code, most);
    const std::string key((const char*)code, size);
    auto found = known.find(key);
    if (found == known.end())
        found = known.emplace(key, make_program(disassemble(code, size))).first;
    return found->second;
}

}  // namespace rdna3::WAVES
