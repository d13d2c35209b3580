// The convolution state as it is once the waiting rows are part of it. Taken from what the including shader has: step, state, kept, C.
#include "kept_rows.glsl"

// The four channels from 4 c on of row i (0 to 2) of the three that end at the last accepted one; offsets of the layer, in floats.
vec4 committed(uint i, uint c, uint state_at, uint kept_at) {
    const uint row = step[WAITING] + i;  // of the three in the state and then those that wait
    return row < 3u ? state[(state_at + row * C) / 4u + c] : kept[raw_at(kept_at, row - 3u) + c];
}
