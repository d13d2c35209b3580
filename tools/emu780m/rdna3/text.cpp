// From a line of the disassembler to name, operands and modifiers.
#include "text.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <map>

namespace rdna3 {

std::string trimmed(const std::string& text) {
    const size_t first = text.find_first_not_of(" \t");
    const size_t last = text.find_last_not_of(" \t");
    return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// Cuts at a character outside brackets; empty parts are left out.
static std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> parts;
    std::string part;
    int depth = 0;
    for (const char c : text + at) {
        if (c == '[' || c == '(')
            depth++;
        if (c == ']' || c == ')')
            depth--;
        if (c != at || depth) {
            part += c;
            continue;
        }
        if (!trimmed(part).empty())
            parts.push_back(trimmed(part));
        part.clear();
    }
    return parts;
}

static bool cut_end(std::string& text, const std::string& end) {
    if (text.size() <= end.size() || text.compare(text.size() - end.size(), end.size(), end) != 0)
        return false;
    text.resize(text.size() - end.size());
    return true;
}

static long long integer(const std::string& text, const std::string& whole) {
    char* end = nullptr;
    errno = 0;
    const long long value = strtoll(text.c_str(), &end, 0);
    if (text.empty() || *end || errno || value < INT32_MIN || value > (long long)UINT32_MAX)
        fail("operand " + whole);
    return value;
}

// v7, s[4:7], ttmp2: the first register's number and how many there are. False: no register.
static bool read_registers(const std::string& text, Operand& operand) {
    const bool trap = text.rfind("ttmp", 0) == 0;
    const size_t skip = trap ? 4 : 1;
    if (!trap && text[0] != 'v' && text[0] != 's')
        return false;
    std::string numbers = text.substr(std::min(skip, text.size()));
    if (numbers.empty() || (!isdigit((u8)numbers[0]) && numbers[0] != '['))
        return false;
    const bool range = numbers[0] == '[';
    if (range)
        numbers = numbers.substr(1, numbers.size() - 2);
    const size_t colon = numbers.find(':');
    const long long first = integer(numbers.substr(0, colon), text);
    const long long last = colon == std::string::npos ? first : integer(numbers.substr(colon + 1), text);
    const bool is_vector = text[0] == 'v';
    // The last scalar registers of a range may be VCC's.
    if (last < first || last > (is_vector ? 255 : trap ? 15 : VCC + 1))
        fail("operand " + text);
    operand.kind = is_vector ? Operand::VECTOR : Operand::SCALAR;
    operand.value = (u32)first + (trap ? 108 : 0);
    operand.registers = (u8)(last - first + 1);
    return true;
}

static void read_constant(const std::string& text, const std::string& whole, Operand& operand) {
    operand.kind = Operand::CONSTANT;
    if (text.find('.') == std::string::npos) {
        // A literal written in hexadecimal fills an operand of 64 bits with zeros, a small integer with its sign.
        const long long value = integer(text, whole);
        operand.value = (u32)value;
        operand.wide = (u64)value;
        return;
    }
    char* end = nullptr;
    const double value = strtod(text.c_str(), &end);
    if (*end)
        fail("operand " + whole);
    operand.decimal = true;
    operand.value = as_bits((float)value);
    operand.wide = std::bit_cast<u64>(value);
}

static Operand read_operand(const std::string& whole) {
    static const std::map<std::string, std::pair<u32, int>> named = {
        {"vcc_lo", {VCC, 1}}, {"vcc_hi", {VCC + 1, 1}}, {"vcc", {VCC, 2}},
        {"exec_lo", {EXEC, 1}}, {"exec_hi", {EXEC + 1, 1}}, {"exec", {EXEC, 2}},
        {"m0", {M0, 1}}, {"null", {NUL, 1}}, {"off", {NUL, 1}},
    };
    Operand operand;
    std::string text = whole;
    const auto inside = [&text](const char* open, const char* close) {
        if (text.rfind(open, 0) != 0 || !cut_end(text, close))
            return false;
        text = text.substr(strlen(open));
        return true;
    };
    if (inside("neg(", ")")) {
        operand.negative = true;
    } else if (text.size() > 1 && text[0] == '-' && !isdigit((u8)text[1])) {
        operand.negative = true;
        text = text.substr(1);
    }
    operand.absolute = inside("|", "|") || inside("abs(", ")");
    inside("lit(", ")");  // a literal where LLVM would read the bare number as another encoding
    if (text.rfind("v", 0) == 0 && (cut_end(text, ".l") || cut_end(text, ".h"))) {
        operand.half = true;
        operand.high = whole.find(".h") != std::string::npos;
    }
    const auto name = named.find(text);
    if (name != named.end()) {
        operand.kind = Operand::SCALAR;
        operand.value = name->second.first;
        operand.registers = (u8)name->second.second;
    } else if (text == "scc" || text == "src_scc") {
        operand.kind = Operand::CARRY;
    } else if (!read_registers(text, operand)) {
        read_constant(text, whole, operand);
    }
    return operand;
}

Text::Text(const std::string& whole) : line(trimmed(whole)) {
    const size_t blank = line.find_first_of(" \t");
    name = line.substr(0, blank);
    dpp = cut_end(name, "_dpp");
    cut_end(name, "_e64") || cut_end(name, "_e32");
    if (blank == std::string::npos)
        return;
    std::vector<std::string> parts = split(line.substr(blank), ',');
    if (parts.empty())
        return;
    const std::vector<std::string> words = split(parts.back(), ' ');
    parts.back() = words[0];
    for (size_t k = 1; k < words.size(); k++) {
        const size_t colon = words[k].find(':');
        const std::string value = colon == std::string::npos ? "" : words[k].substr(colon + 1);
        modifiers.emplace_back(words[k].substr(0, colon), value);
    }
    for (const std::string& part : parts)
        operands.push_back(read_operand(part));
}

std::vector<std::pair<std::string, std::string>>::iterator Text::find(const char* key) {
    return std::find_if(modifiers.begin(), modifiers.end(), [key](const auto& modifier) {
        return modifier.first == key;
    });
}

bool Text::has(const char* key) const {
    return const_cast<Text*>(this)->find(key) != modifiers.end();
}

bool Text::word(const char* key) {
    const auto modifier = find(key);
    if (modifier == modifiers.end() || !modifier->second.empty())
        return false;
    modifiers.erase(modifier);
    return true;
}

int Text::number(const char* key, int otherwise) {
    const auto modifier = find(key);
    if (modifier == modifiers.end())
        return otherwise;
    const int value = (int)integer(modifier->second, line);
    modifiers.erase(modifier);
    return value;
}

bool Text::digits(const char* key, u8* four) {
    const auto modifier = find(key);
    if (modifier == modifiers.end())
        return false;
    int found = 0;
    for (const char c : modifier->second) {
        if (!isdigit((u8)c))
            continue;
        if (found == 4)
            refuse("modifier");
        four[found++] = (u8)(c - '0');
    }
    if (found != 4)
        refuse("modifier");
    modifiers.erase(modifier);
    return true;
}

int Text::bits(const char* key, int otherwise, int* places) {
    const auto modifier = find(key);
    if (modifier == modifiers.end())
        return otherwise;
    int value = 0;
    int place = 0;
    for (const char c : modifier->second)
        if (c == '0' || c == '1')
            value |= (c - '0') << place++;
        else if (c != '[' && c != ',' && c != ']')
            refuse("modifier");
    modifiers.erase(modifier);
    if (places)
        *places = place;
    return value;
}

void Text::expect(size_t least, size_t most) {
    if (operands.size() < least || operands.size() > most)
        refuse("operands");
}

void Text::finish() const {
    if (!modifiers.empty())
        fail("modifier " + modifiers[0].first + " of " + line);
    for (const Operand& operand : operands) {
        if ((operand.negative || operand.absolute) && !takes_signs)
            refuse("sign");
        if (operand.half && !takes_halves)
            refuse("half");
    }
}

void Text::refuse(const char* why) const {
    fail(std::string(why) + ": " + line);
}

}  // namespace rdna3
