// Lines about dispatches: instructions by kind, passes of shared memory, lines of memory, accesses out of bounds, lower
// bounds in cycles. EMU_LOG=1: for people, on standard error; EMU_STATS=FILE: JSON, with a hash of the machine code.
#include "statistics.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace statistics {
namespace {

constexpr double SIMDS = 24;
constexpr double COMPUTE_UNITS = 12;
constexpr uint32_t CODE_END = 0xbf9f0000;  // s_code_end, which RADV puts behind each program
constexpr uint32_t LINE_BYTES = 128;

const char* const KINDS[rdna3::NUM_STATS] = {"valu", "pairs", "salu",     "smem", "vmem",
                                             "lds",  "barriers", "nops", "other"};

// Bits of the lines touched since begin(), one bit for each line of the device's memory.
class Lines {
public:
    void clear() {
        for (const uint64_t word : words_)
            bits_[word] = 0;
        words_.clear();
        count_ = 0;
    }

    void add(uint64_t line) {
        const uint64_t word = line / 64;
        const uint64_t bit = 1ull << line % 64;
        if (word >= bits_.size())
            bits_.resize(2 * word + 1024);
        if (bits_[word] & bit)
            return;
        if (!bits_[word])
            words_.push_back(word);
        bits_[word] |= bit;
        count_++;
    }

    uint64_t count() const { return count_; }

private:
    std::vector<uint64_t> bits_;
    std::vector<uint64_t> words_;  // that are not zero
    uint64_t count_ = 0;
};

Lines lines_read;
Lines lines_written;
uint64_t number = 0;  // of dispatches so far

const char* path() {
    static const char* const value = getenv("EMU_STATS");
    return value && *value ? value : nullptr;
}

bool log_wanted() {
    static const char* const value = getenv("EMU_LOG");
    return value && atoi(value) >= 1;
}

struct Code {
    uint64_t hash;  // FNV-1a, 64 bits
    uint64_t bytes;
};

Code code_of(const rdna3::Dispatch& d, const rdna3::Memory& memory) {
    size_t most = 0;
    const uint8_t* at = memory.rest(d.code, most);
    Code code{0xcbf29ce484222325ull, 0};
    if (!at)
        return code;
    for (; code.bytes + 4 <= most; code.bytes += 4) {
        uint32_t word;
        memcpy(&word, at + code.bytes, 4);
        if (word == CODE_END)
            break;
        for (int k = 0; k < 4; k++)
            code.hash = (code.hash ^ at[code.bytes + k]) * 0x100000001b3ull;
    }
    return code;
}

// Writes one JSON object.
class Object {
public:
    template <typename T> Object& add(const char* name, T value) { return put(name, std::to_string(value)); }
    Object& add(const char* name, const std::string& text) { return put(name, '"' + text + '"'); }
    Object& add(const char* name, const Object& object) { return put(name, object.text()); }
    Object& add(const char* name, const uint32_t (&x)[3]) {
        return put(name, "[" + std::to_string(x[0]) + ", " + std::to_string(x[1]) + ", " + std::to_string(x[2]) + "]");
    }
    std::string text() const { return "{" + text_ + "}"; }

private:
    Object& put(const char* name, const std::string& value) {
        text_ += std::string(text_.empty() ? "\"" : ", \"") + name + "\": " + value;
        return *this;
    }
    std::string text_;
};

Object counts_of(const rdna3::Stats& s) {
    Object counts;
    for (int k = 0; k < rdna3::NUM_STATS; k++)
        counts.add(KINDS[k], s.count[k]);
    return counts;
}

uint64_t issue_of(const rdna3::Stats& s) { return s.issue[rdna3::VALU] + s.issue[rdna3::PAIR]; }

uint32_t float_mode(const rdna3::Dispatch& d) { return d.rsrc1 >> 12 & 255; }

// Granted in eights to waves of 32, in fours to waves of 64.
uint32_t vgprs(const rdna3::Dispatch& d) { return ((d.rsrc1 & 63) + 1) * (d.wave32 ? 8 : 4); }

uint32_t lds_bytes(const rdna3::Dispatch& d) { return (d.rsrc2 >> 15 & 0x1ff) * 512; }

std::string json(const rdna3::Dispatch& d, const rdna3::Memory& memory, const rdna3::Stats& s, double seconds) {
    const Code code = code_of(d, memory);
    const Bounds b = bounds(d, s);
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, code.hash);
    Object line;
    line.add("dispatch", number).add("grid", d.groups).add("local", d.local).add("wave", d.wave32 ? 32 : 64);
    line.add("code", std::string(hash)).add("code_bytes", code.bytes).add("float_mode", float_mode(d));
    line.add("vgprs", vgprs(d)).add("lds_bytes", lds_bytes(d)).add("groups", s.groups).add("waves", s.waves);
    line.add("instructions", counts_of(s)).add("issue", issue_of(s)).add("branches", s.branches);
    line.add("lds_passes", s.lds_passes).add("lds_least", s.lds_least).add("lines", s.vmem_lines);
    line.add("vmem_bytes", s.vmem_bytes).add("smem_bytes", s.smem_bytes);
    line.add("lines_read", lines_read.count()).add("lines_written", lines_written.count());
    line.add("outside", s.out_of_bounds);
    line.add("cycles", Object().add("issue", b.issue).add("lds", b.lds).add("lines", b.lines));
    line.add("seconds", seconds);
    return line.text() + "\n";
}

void print(const rdna3::Dispatch& d, const rdna3::Stats& s, double seconds) {
    const Bounds b = bounds(d, s);
    uint64_t all = 0;
    for (const uint64_t n : s.count)
        all += n;
    fprintf(stderr, "dispatch %" PRIu64 " mode %#x %ux%ux%u of %ux%ux%u %s", number, float_mode(d), d.groups[0],
            d.groups[1], d.groups[2], d.local[0], d.local[1], d.local[2], counts_of(s).text().c_str());
    fprintf(stderr, " lds passes %" PRIu64 " (least %" PRIu64 ") lines %" PRIu64 " outside %" PRIu64, s.lds_passes,
            s.lds_least, s.vmem_lines, s.out_of_bounds);
    fprintf(stderr, "; cycles issue %.0f lds %.0f lines %.0f; %.3f s, %.1f M instructions/s\n", b.issue, b.lds,
            b.lines, seconds, all / seconds / 1e6);
}

}  // namespace

Bounds bounds(const rdna3::Dispatch& d, const rdna3::Stats& s) {
    const double issue = issue_of(s);
    return {issue * (d.wave32 ? 1 : 2) / SIMDS, s.lds_passes / COMPUTE_UNITS, s.vmem_lines / COMPUTE_UNITS};
}

bool footprint_wanted() { return path() != nullptr; }

void touch(uint64_t offset, uint32_t size, bool write) {
    Lines& lines = write ? lines_written : lines_read;
    for (uint64_t line = offset / LINE_BYTES; line <= (offset + size - 1) / LINE_BYTES; line++)
        lines.add(line);
}

void begin() {
    lines_read.clear();
    lines_written.clear();
}

void end(const rdna3::Dispatch& d, const rdna3::Memory& memory, const rdna3::Stats& s, double seconds) {
    if (log_wanted())
        print(d, s, seconds);
    if (path()) {
        static FILE* const file = fopen(path(), "a");
        const std::string line = json(d, memory, s, seconds);
        if (!file || fputs(line.c_str(), file) < 0 || fflush(file))
            throw std::runtime_error(std::string("EMU_STATS: cannot write ") + path());
    }
    number++;
}

}  // namespace statistics
