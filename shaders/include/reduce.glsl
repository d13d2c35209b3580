// Sums and maxima over a workgroup of LOCAL_SIZE invocations, for any subgroup size.
// Call in uniform control flow only; a second call may follow at once.
#extension GL_KHR_shader_subgroup_arithmetic : require

shared float reduce_slots[LOCAL_SIZE];  // one for each subgroup: at most one for each invocation

float workgroup_sum(float v) {
    v = subgroupAdd(v);
    if (gl_NumSubgroups == 1u) return v;
    if (subgroupElect()) reduce_slots[gl_SubgroupID] = v;
    barrier();
    float sum = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i++) sum += reduce_slots[i];
    barrier();
    return sum;
}

float workgroup_max(float v) {
    v = subgroupMax(v);
    if (gl_NumSubgroups == 1u) return v;
    if (subgroupElect()) reduce_slots[gl_SubgroupID] = v;
    barrier();
    float best = reduce_slots[0];
    for (uint i = 1; i < gl_NumSubgroups; i++) best = max(best, reduce_slots[i]);
    barrier();
    return best;
}
