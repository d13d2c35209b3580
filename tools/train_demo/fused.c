// Training kernels for the CPU: RMS norm, SwiGLU and the gated delta net layer, each with its backward.
// float32 inside, bfloat16 at the borders; key and value heads of 64. Shapes are row-major, letters as in model.py.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DIM 64    // of a key and of a value head
#define CHUNK 32  // tokens between two kept states; the backward recomputes those between
#define TAPS 4    // of the convolution
#define EPS 1e-6f
#define QUERY_SCALE 0.125f  // DIM ** -0.5

typedef float vec16 __attribute__((vector_size(64)));
typedef uint16_t bf16;

static inline float to_float(bf16 x) {
    union { uint32_t bits; float value; } u = {.bits = (uint32_t)x << 16};
    return u.value;
}

static inline bf16 to_bf16(float x) {
    union { float value; uint32_t bits; } u = {.value = x};
    return (bf16)((u.bits + 0x7fffu + ((u.bits >> 16) & 1)) >> 16);
}

static inline vec16 load(const float *p) { vec16 v; memcpy(&v, p, sizeof v); return v; }
static inline void store(float *p, vec16 v) { memcpy(p, &v, sizeof v); }
static inline float lane_sum(vec16 v) {
    float sum = 0;
    for (int i = 0; i < 16; i++) sum += v[i];
    return sum;
}
static inline float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
static inline float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }
static inline float silu_slope(float x) { float s = sigmoid(x); return s * (1.f + x * (1.f - s)); }
static inline float *floats(long count) { return aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64); }

// ---- RMS norm: y = x / rms(x) * weight; inv_rms is kept for the backward

void rms_norm_forward(long rows, int dim, const float *x, const float *weight, bf16 *y, float *inv_rms) {
    for (long t = 0; t < rows; t++) {
        const float *xt = x + t * dim;
        float sum = 0;
        for (int i = 0; i < dim; i++) sum += xt[i] * xt[i];
        inv_rms[t] = 1.f / sqrtf(sum / dim + EPS);
        for (int i = 0; i < dim; i++) y[t * dim + i] = to_bf16(xt[i] * inv_rms[t] * weight[i]);
    }
}

void rms_norm_backward(long rows, int dim, const float *x, const float *weight, const float *inv_rms, const bf16 *dy,
                       float *dx, float *dweight) {
    for (long t = 0; t < rows; t++) {
        const float *xt = x + t * dim, inv = inv_rms[t];
        const bf16 *dyt = dy + t * dim;
        float mean = 0;
        for (int i = 0; i < dim; i++) {
            const float g = to_float(dyt[i]) * xt[i] * inv;
            dweight[i] += g;
            mean += g * weight[i] / dim;
        }
        for (int i = 0; i < dim; i++) dx[t * dim + i] = inv * (to_float(dyt[i]) * weight[i] - xt[i] * inv * mean);
    }
}

// ---- SwiGLU: y = silu(gate) * up, with gate and up side by side in one row

void swiglu_forward(long rows, int dim, const bf16 *gate_up, bf16 *y) {
    for (long t = 0; t < rows; t++) {
        const bf16 *gate = gate_up + t * 2 * dim, *up = gate + dim;
        for (int i = 0; i < dim; i++) {
            const float g = to_float(gate[i]);
            y[t * dim + i] = to_bf16(g * sigmoid(g) * to_float(up[i]));
        }
    }
}

void swiglu_backward(long rows, int dim, const bf16 *gate_up, const bf16 *dy, bf16 *dgate_up) {
    for (long t = 0; t < rows; t++) {
        const bf16 *gate = gate_up + t * 2 * dim, *up = gate + dim;
        bf16 *dgate = dgate_up + t * 2 * dim, *dup = dgate + dim;
        for (int i = 0; i < dim; i++) {
            const float g = to_float(gate[i]), d = to_float(dy[t * dim + i]);
            dgate[i] = to_bf16(d * to_float(up[i]) * silu_slope(g));
            dup[i] = to_bf16(d * g * sigmoid(g));
        }
    }
}

// ---- Gated delta net
//
// A row of the input holds: convolution channels (queries Hk heads, keys Hk, values Hv), gate z (Hv heads), alpha (Hv), beta (Hv).
// conv -> silu -> unit-length q and k -> per value head h (with key head h % Hk) and token:
//     S *= decay;  e = beta * (v - k S);  S += k e;  o = q S;  out = rms_norm(o) * silu(z)
// with decay = exp(A * softplus(alpha + dt)).

typedef struct { int channels, values, width, chunks; } Layout;

static Layout layout(int T, int Hk, int Hv) {
    Layout l = {.channels = (2 * Hk + Hv) * DIM, .values = Hv * DIM, .chunks = (T + CHUNK - 1) / CHUNK};
    l.width = l.channels + l.values + 2 * Hv;
    return l;
}

// One token: S, and o = q S and e before its factor beta where they are wanted.
static void delta_step(float *restrict S, const float *q, const float *k, const float *v, float decay, float beta,
                       float *e, float *o) {
    vec16 e0 = load(v), e1 = load(v + 16), e2 = load(v + 32), e3 = load(v + 48);
    for (int i = 0; i < DIM; i++) {
        float *s = S + i * DIM;
        const vec16 s0 = load(s) * decay, s1 = load(s + 16) * decay, s2 = load(s + 32) * decay, s3 = load(s + 48) * decay;
        store(s, s0), store(s + 16, s1), store(s + 32, s2), store(s + 48, s3);
        e0 -= k[i] * s0, e1 -= k[i] * s1, e2 -= k[i] * s2, e3 -= k[i] * s3;
    }
    if (e) store(e, e0), store(e + 16, e1), store(e + 32, e2), store(e + 48, e3);
    e0 *= beta, e1 *= beta, e2 *= beta, e3 *= beta;
    vec16 o0 = {0}, o1 = {0}, o2 = {0}, o3 = {0};
    for (int i = 0; i < DIM; i++) {
        float *s = S + i * DIM;
        const vec16 s0 = load(s) + k[i] * e0, s1 = load(s + 16) + k[i] * e1;
        const vec16 s2 = load(s + 32) + k[i] * e2, s3 = load(s + 48) + k[i] * e3;
        store(s, s0), store(s + 16, s1), store(s + 32, s2), store(s + 48, s3);
        o0 += q[i] * s0, o1 += q[i] * s1, o2 += q[i] * s2, o3 += q[i] * s3;
    }
    if (o) store(o, o0), store(o + 16, o1), store(o + 32, o2), store(o + 48, o3);
}

// y = silu(conv), its q and k heads scaled to unit length (q also by QUERY_SCALE); inv_norm[T, 2 Hk] is kept.
static void activate(int T, int channels, int Hk, const float *conv, float *y, float *inv_norm) {
    for (long i = 0; i < (long)T * channels; i++) y[i] = conv[i] * sigmoid(conv[i]);
    for (int t = 0; t < T; t++) {
        for (int h = 0; h < 2 * Hk; h++) {
            float *head = y + (long)t * channels + h * DIM, sum = 0;
            for (int i = 0; i < DIM; i++) sum += head[i] * head[i];
            const float inv = inv_norm[t * 2 * Hk + h] = 1.f / sqrtf(sum + EPS);
            for (int i = 0; i < DIM; i++) head[i] *= h < Hk ? inv * QUERY_SCALE : inv;
        }
    }
}

// conv_weight [TAPS, channels]; kept for the backward: conv [B, T, channels], o [B, T, values], states [B, Hv, chunks, DIM, DIM]
void delta_net_forward(int B, int T, int Hk, int Hv, const bf16 *in, const float *conv_weight, const float *dt,
                       const float *A, const float *norm_weight, bf16 *out, float *conv, float *o, float *states) {
    const Layout l = layout(T, Hk, Hv);
    float *y = floats((long)T * l.channels), *inv_norm = floats(T * 2 * Hk), *S = floats(DIM * DIM);
    for (int b = 0; b < B; b++) {
        const bf16 *x = in + (long)b * T * l.width;
        float *c = conv + (long)b * T * l.channels;
        memset(c, 0, (long)T * l.channels * sizeof(float));
        for (int t = 0; t < T; t++) {
            for (int tap = 0; tap < TAPS; tap++) {
                const int source = t - (TAPS - 1) + tap;
                if (source < 0) continue;
                const bf16 *xs = x + (long)source * l.width;
                const float *w = conv_weight + tap * l.channels;
                float *ct = c + (long)t * l.channels;
                for (int i = 0; i < l.channels; i++) ct[i] += w[i] * to_float(xs[i]);
            }
        }
        activate(T, l.channels, Hk, c, y, inv_norm);
        for (int h = 0; h < Hv; h++) {
            const int kh = h % Hk;
            memset(S, 0, DIM * DIM * sizeof(float));
            for (int t = 0; t < T; t++) {
                if (t % CHUNK == 0) {
                    float *kept = states + (((long)b * Hv + h) * l.chunks + t / CHUNK) * DIM * DIM;
                    memcpy(kept, S, DIM * DIM * sizeof(float));
                }
                const float *yt = y + (long)t * l.channels;
                const bf16 *xt = x + (long)t * l.width, *z = xt + l.channels + h * DIM, *alpha = xt + l.channels + l.values;
                const float decay = expf(A[h] * softplus(to_float(alpha[h]) + dt[h])), beta = sigmoid(to_float(alpha[Hv + h]));
                const long row = ((long)b * T + t) * l.values + h * DIM;
                delta_step(S, yt + kh * DIM, yt + (Hk + kh) * DIM, yt + (2 * Hk + h) * DIM, decay, beta, 0, o + row);
                float sum = 0;
                for (int i = 0; i < DIM; i++) sum += o[row + i] * o[row + i];
                const float inv_rms = 1.f / sqrtf(sum / DIM + EPS);
                for (int i = 0; i < DIM; i++) {
                    const float gate = to_float(z[i]);
                    out[row + i] = to_bf16(o[row + i] * inv_rms * norm_weight[i] * gate * sigmoid(gate));
                }
            }
        }
    }
    free(y), free(inv_norm), free(S);
}

// Gradients through out = rms_norm(o) * silu(z) for one head and token: fills do and dz, adds to dnorm_weight.
static void output_backward(const float *o, const bf16 *z, const bf16 *dout, const float *norm_weight, float *d_o,
                            bf16 *dz, float *dnorm_weight) {
    float sum = 0, mean = 0;
    for (int i = 0; i < DIM; i++) sum += o[i] * o[i];
    const float inv_rms = 1.f / sqrtf(sum / DIM + EPS);
    for (int i = 0; i < DIM; i++) {
        const float gate = to_float(z[i]), unit = o[i] * inv_rms, d = to_float(dout[i]), dnormed = d * gate * sigmoid(gate);
        dz[i] = to_bf16(d * unit * norm_weight[i] * silu_slope(gate));
        dnorm_weight[i] += dnormed * unit;
        d_o[i] = dnormed * norm_weight[i];
        mean += d_o[i] * unit / DIM;
    }
    for (int i = 0; i < DIM; i++) d_o[i] = inv_rms * (d_o[i] - o[i] * inv_rms * mean);
}

// delta_step backwards: G is dS after the token on entry, before it on return. Adds to dq and dk, fills dv.
// S_before and S_after are the token's states, e its error before the factor beta.
static void delta_step_backward(float *restrict G, const float *S_before, const float *S_after, const float *q,
                                const float *k, const float *e, float decay, float beta, const float *d_o, float *dq,
                                float *dk, float *dv, float *ddecay, float *dbeta) {
    const vec16 g0 = load(d_o), g1 = load(d_o + 16), g2 = load(d_o + 32), g3 = load(d_o + 48);
    const vec16 e0 = load(e), e1 = load(e + 16), e2 = load(e + 32), e3 = load(e + 48);
    vec16 r0 = {0}, r1 = {0}, r2 = {0}, r3 = {0};  // k dS: the gradient of beta * e
    for (int i = 0; i < DIM; i++) {
        float *Gi = G + i * DIM;
        const float *s = S_after + i * DIM;
        const vec16 G0 = load(Gi) + q[i] * g0, G1 = load(Gi + 16) + q[i] * g1;
        const vec16 G2 = load(Gi + 32) + q[i] * g2, G3 = load(Gi + 48) + q[i] * g3;
        store(Gi, G0), store(Gi + 16, G1), store(Gi + 32, G2), store(Gi + 48, G3);
        dq[i] += lane_sum(load(s) * g0 + load(s + 16) * g1 + load(s + 32) * g2 + load(s + 48) * g3);
        dk[i] += beta * lane_sum(G0 * e0 + G1 * e1 + G2 * e2 + G3 * e3);
        r0 += k[i] * G0, r1 += k[i] * G1, r2 += k[i] * G2, r3 += k[i] * G3;
    }
    *dbeta = lane_sum(r0 * e0 + r1 * e1 + r2 * e2 + r3 * e3);
    r0 *= beta, r1 *= beta, r2 *= beta, r3 *= beta;
    store(dv, r0), store(dv + 16, r1), store(dv + 32, r2), store(dv + 48, r3);
    vec16 decay_sum = {0};
    for (int i = 0; i < DIM; i++) {
        float *Gi = G + i * DIM;
        const float *s = S_before + i * DIM;
        const vec16 G0 = load(Gi) - k[i] * r0, G1 = load(Gi + 16) - k[i] * r1;
        const vec16 G2 = load(Gi + 32) - k[i] * r2, G3 = load(Gi + 48) - k[i] * r3;
        const vec16 p0 = load(s) * decay, p1 = load(s + 16) * decay, p2 = load(s + 32) * decay, p3 = load(s + 48) * decay;
        dk[i] -= lane_sum(p0 * r0 + p1 * r1 + p2 * r2 + p3 * r3);
        decay_sum += G0 * p0 + G1 * p1 + G2 * p2 + G3 * p3;
        store(Gi, G0 * decay), store(Gi + 16, G1 * decay), store(Gi + 32, G2 * decay), store(Gi + 48, G3 * decay);
    }
    *ddecay = lane_sum(decay_sum);  // of log(decay)
}

// From dy back through unit length, silu and convolution: adds to dconv_weight, fills the channels of din's rows.
static void activate_backward(int T, int Hk, Layout l, const bf16 *x, const float *conv, const float *y, const float *inv_norm,
                              const float *conv_weight, float *dy, float *dx, bf16 *din, float *dconv_weight) {
    for (int t = 0; t < T; t++) {
        for (int h = 0; h < 2 * Hk; h++) {
            const float *head = y + (long)t * l.channels + h * DIM;
            float *d = dy + (long)t * l.channels + h * DIM, dot = 0;
            const float scale = h < Hk ? QUERY_SCALE : 1.f, inv = inv_norm[t * 2 * Hk + h];
            for (int i = 0; i < DIM; i++) dot += d[i] * head[i];
            for (int i = 0; i < DIM; i++) d[i] = inv * (d[i] * scale - head[i] / scale * dot);
        }
    }
    for (long i = 0; i < (long)T * l.channels; i++) dy[i] *= silu_slope(conv[i]);
    memset(dx, 0, (long)T * l.channels * sizeof(float));
    for (int t = 0; t < T; t++) {
        for (int tap = 0; tap < TAPS; tap++) {
            const int source = t - (TAPS - 1) + tap;
            if (source < 0) continue;
            const bf16 *xs = x + (long)source * l.width;
            const float *w = conv_weight + tap * l.channels, *d = dy + (long)t * l.channels;
            float *dxs = dx + (long)source * l.channels, *dw = dconv_weight + tap * l.channels;
            for (int i = 0; i < l.channels; i++) dxs[i] += w[i] * d[i], dw[i] += to_float(xs[i]) * d[i];
        }
    }
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < l.channels; i++) din[(long)t * l.width + i] = to_bf16(dx[(long)t * l.channels + i]);
    }
}

// dA_log is the gradient of log(-A). All gradients but din are added to.
void delta_net_backward(int B, int T, int Hk, int Hv, const bf16 *in, const float *conv_weight, const float *dt,
                        const float *A, const float *norm_weight, const float *conv, const float *o, const float *states,
                        const bf16 *dout, bf16 *din, float *dconv_weight, float *ddt, float *dA_log, float *dnorm_weight) {
    const Layout l = layout(T, Hk, Hv);
    const long size = (long)T * l.channels;
    float *y = floats(size), *dy = floats(size), *dx = floats(size), *inv_norm = floats(T * 2 * Hk);
    float *S = floats((CHUNK + 1) * DIM * DIM), *G = floats(DIM * DIM);
    float e[CHUNK][DIM], decay[CHUNK], beta[CHUNK];
    for (int b = 0; b < B; b++) {
        const bf16 *x = in + (long)b * T * l.width;
        const float *c = conv + b * size;
        bf16 *dxb = din + (long)b * T * l.width;
        activate(T, l.channels, Hk, c, y, inv_norm);
        memset(dy, 0, size * sizeof(float));
        for (int h = 0; h < Hv; h++) {
            const int kh = h % Hk;
            memset(G, 0, DIM * DIM * sizeof(float));
            for (int chunk = l.chunks - 1; chunk >= 0; chunk--) {
                const int first = chunk * CHUNK, end = first + CHUNK < T ? first + CHUNK : T;
                memcpy(S, states + (((long)b * Hv + h) * l.chunks + chunk) * DIM * DIM, DIM * DIM * sizeof(float));
                for (int t = first; t < end; t++) {
                    const int i = t - first;
                    float *after = S + (i + 1) * DIM * DIM;
                    memcpy(after, after - DIM * DIM, DIM * DIM * sizeof(float));
                    const float *yt = y + (long)t * l.channels;
                    const bf16 *alpha = x + (long)t * l.width + l.channels + l.values;
                    decay[i] = expf(A[h] * softplus(to_float(alpha[h]) + dt[h]));
                    beta[i] = sigmoid(to_float(alpha[Hv + h]));
                    delta_step(after, yt + kh * DIM, yt + (Hk + kh) * DIM, yt + (2 * Hk + h) * DIM, decay[i], beta[i], e[i], 0);
                }
                for (int t = end - 1; t >= first; t--) {
                    const int i = t - first;
                    const long row = ((long)b * T + t) * l.values + h * DIM;
                    const bf16 *xt = x + (long)t * l.width, *alpha = xt + l.channels + l.values;
                    const float *yt = y + (long)t * l.channels, *before = S + i * DIM * DIM;
                    float *dyt = dy + (long)t * l.channels, d_o[DIM], dlog_decay, dbeta;
                    bf16 *dxt = dxb + (long)t * l.width, *dalpha = dxt + l.channels + l.values;
                    output_backward(o + row, xt + l.channels + h * DIM, dout + row, norm_weight, d_o,
                                    dxt + l.channels + h * DIM, dnorm_weight);
                    delta_step_backward(G, before, before + DIM * DIM, yt + kh * DIM, yt + (Hk + kh) * DIM, e[i], decay[i],
                                        beta[i], d_o, dyt + kh * DIM, dyt + (Hk + kh) * DIM, dyt + (2 * Hk + h) * DIM,
                                        &dlog_decay, &dbeta);
                    const float u = to_float(alpha[h]) + dt[h], du = dlog_decay * A[h] * sigmoid(u);
                    dalpha[h] = to_bf16(du);
                    ddt[h] += du;
                    dA_log[h] += dlog_decay * A[h] * softplus(u);
                    dalpha[Hv + h] = to_bf16(dbeta * beta[i] * (1.f - beta[i]));
                }
            }
        }
        activate_backward(T, Hk, l, x, c, y, inv_norm, conv_weight, dy, dx, dxb, dconv_weight);
    }
    free(y), free(dy), free(dx), free(inv_norm), free(S), free(G);
}
