// The waves of a workgroup: set up, and run in turn from barrier to barrier.
#pragma once
#include <cstdlib>

#include "program.h"

namespace rdna3::WAVES {

// In which order the waves of a workgroup run between barriers: in their own, or, with a seed, in random ones.
class Order {
public:
    explicit Order(const char* seed) : random(seed != nullptr), state(seed ? (u32)atoi(seed) : 0) {}
    void shuffle(std::vector<u32>& turn);

private:
    bool random;
    u32 state;
};

// Registers and flags as nothing had been written to them; all lanes off.
void clear(Wave& wave);

// Runs all waves to their end. Throws with the instruction's text and number.
void run_group(std::vector<Wave>& waves, const Program& program, Order& order);

// The processor's floats as FLOAT_MODE wants them, until the end of its scope. Throws where this cannot be had.
class FloatMode {
public:
    explicit FloatMode(u32 mode);
    ~FloatMode();

private:
    u32 before;
};

}  // namespace rdna3::WAVES
