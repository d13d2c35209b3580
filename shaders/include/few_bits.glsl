// Formats of few bits for a weight; see weights.glsl.
#if defined(WEIGHT_Q2_K)
#include "quant_q2_k.glsl"
#elif defined(WEIGHT_Q3_K)
#include "quant_q3_k.glsl"
#elif defined(WEIGHT_MXFP4)
#include "quant_mxfp4.glsl"
#endif
