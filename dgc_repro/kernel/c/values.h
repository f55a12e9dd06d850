/* How the values of chosen entries travel (kernel/sparse.py): whole, as halves, as 8-bit codes with a scale for
 * each SCALE_WIDTH values, or one value for all.
 */
#ifndef DGC_VALUES_H
#define DGC_VALUES_H

#include "segments.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

enum { FP32, FP16, INT8, SHARED };

#define SCALE_WIDTH 2048
#define ZERO_CODE 127
#define LARGEST_HALF 65504.0f

int dgc_narrow(const float *x, int64_t n, uint16_t *to, int kind, float limit, int threads);
int dgc_quantize_bytes(const float *x, int64_t n, int64_t width, float *scales, uint8_t *codes, int threads);

static inline float half_to_float(uint16_t half) {
#if defined(__F16C__)
    return _cvtsh_ss(half);
#else
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return from_bits((int32_t)(sign | 0x7f800000 | (rest & 0x3ff) << 13));
    if (rest >= 0x0400) return from_bits((int32_t)(sign | ((rest << 13) + 0x38000000)));
    const float value = (float)rest * 0x1p-24f;
    return sign ? -value : value;
#endif
}

/* k values as they travel. */
static inline void code_values(const float *from, int64_t k, int kind, float *scales, void *coded, int threads) {
    if (kind == FP32) {
        memcpy(coded, from, k * sizeof *from);
    } else if (kind == SHARED) {
        const float none = 0;
        memcpy(coded, k ? from : &none, sizeof none);
    } else if (kind == INT8) {
        dgc_quantize_bytes(from, k, SCALE_WIDTH, scales, coded, threads);
    } else {
        for (int64_t start = 0; start < k; start += 256) {
            float limited[256];
            const int64_t m = k - start < 256 ? k - start : 256;
            for (int64_t i = 0; i < m; i++) { /* a NaN stays one */
                const float value = from[start + i];
                limited[i] = value > LARGEST_HALF ? LARGEST_HALF : value < -LARGEST_HALF ? -LARGEST_HALF : value;
            }
            dgc_narrow(limited, m, (uint16_t *)coded + start, 0, LARGEST_HALF, 1);
        }
    }
}

/* Values first .. first + count - 1. */
static inline void decode_values(int kind, const float *scales, const void *coded, int64_t first, int count,
                                 float *values) {
    const uint8_t *bytes = (const uint8_t *)coded + first;
    if (kind == SHARED)
        for (int i = 0; i < count; i++) values[i] = *(const float *)coded;
    else if (kind == FP32)
        memcpy(values, (const float *)coded + first, count * sizeof *values);
    else if (kind == FP16)
        for (int i = 0; i < count; i++) values[i] = half_to_float(((const uint16_t *)coded)[first + i]);
    else
        for (int i = 0; i < count; i++)
            values[i] = (float)((int32_t)bytes[i] - ZERO_CODE) * scales[(first + i) / SCALE_WIDTH];
}

#endif
