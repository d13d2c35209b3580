// The rows of magnitudes that a format numbers, its grid: GRID_WORDS words, defined before, which lie ahead of the weights, in shared memory.
// Not an array of constants, which a driver may keep on the stack and fill anew for each look: Mesa's for the CPU does, and takes seconds
// to translate it.
shared uint grid[GRID_WORDS];

#define WEIGHTS_PREPARED
void prepare_weights() {
    const uint size = gl_WorkGroupSize.x * gl_WorkGroupSize.y * gl_WorkGroupSize.z;
    for (uint i = gl_LocalInvocationIndex; i < GRID_WORDS; i += size) grid[i] = w1[w_head * 4u + i];
    barrier();
}
