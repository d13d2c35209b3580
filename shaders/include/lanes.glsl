// The sum over each LANES consecutive invocations of a workgroup, a power of two of which LOCAL_SIZE is a multiple, for subgroups of any
// power of two, of which LEAST_SUBGROUP is the least that the device makes. Where subgroups are smaller than LANES, in the order of
// workgroup_sum (reduce.glsl, included before) with as many invocations; by halves else, as AMD's driver does there.
// Call in uniform control flow only; a second call may follow at once.
#extension GL_KHR_shader_subgroup_shuffle : require

float sum_of_lanes(float v) {
    const uint size = LOCAL_SIZE / gl_NumSubgroups;  // not gl_SubgroupSize, which may be the device's greatest
    if (LEAST_SUBGROUP >= LANES || size >= LANES) {  // the first is known to the compiler
        [[unroll]] for (uint m = 1; m < LANES; m *= 2u) v += subgroupShuffleXor(v, m);
        return v;
    }
    v = subgroupAdd(v);
    if (subgroupElect()) reduce_slots[gl_SubgroupID] = v;
    barrier();
    const uint parts = LANES / size, first = gl_LocalInvocationID.x / LANES * parts;
    float sum = 0.0;
    for (uint i = 0; i < parts; i++) sum += reduce_slots[first + i];
    barrier();
    return sum;
}
