// A register tile of TT rows and TN columns for each invocation: acc[i * TN + c] is row i, column c LOCAL_SIZE + lane.
// The rows are the same for the whole workgroup. SHARE 1: everyone loads them, at addresses of gl_WorkGroupID and loop counters
// only, which a GPU reads once per wave into scalar registers. Otherwise SHARE neighbouring invocations, of one subgroup, load
// every SHARE-th row each and take the others from each other: fewer loads, for devices that repeat them for every invocation.
// SHARE: a power of two that divides TT and LOCAL_SIZE, at most the size of a subgroup.
#extension GL_KHR_shader_subgroup_shuffle : require

const uint HELD = TT / SHARE;  // rows that an invocation loads: row n * SHARE + shared_lane for n < HELD

uint lane, shared_lane;
float acc[TT * TN];

void start_tiles() {
    lane = gl_LocalInvocationID.x;
    shared_lane = lane % SHARE;
}

void clear_tile() {
    [[unroll]] for (uint i = 0; i < TT * TN; i++) acc[i] = 0.0;
}

// Row i of the tile, of which everyone holds HELD.
vec4 row_of(vec4 held[HELD], uint i) {
    return SHARE == 1u ? held[i] : subgroupShuffle(held[i / SHARE], gl_SubgroupInvocationID - shared_lane + i % SHARE);
}

// acc += rows . columns, over the 4 places of a word
void add_products(vec4 held[HELD], vec4 x[TN]) {
    [[unroll]] for (uint i = 0; i < TT; i++) {
        const vec4 row = row_of(held, i);
        [[unroll]] for (uint c = 0; c < TN; c++) {
            float s = acc[i * TN + c];
            s = fma(row.x, x[c].x, s); s = fma(row.y, x[c].y, s); s = fma(row.z, x[c].z, s); s = fma(row.w, x[c].w, s);
            acc[i * TN + c] = s;
        }
    }
}
