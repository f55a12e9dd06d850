/* float32 to fp16 or bf16, rounded to nearest (ties to even), and back. A finite value beyond the
 * narrow type's range becomes its largest one. kernel/narrow.py is the reference. Written in plain
 * integer and float steps, so that any vector unit runs it, and where there is one with x86's instruction.
 */
#include "segments.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#define CHUNK 4096
#define FP16 0

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A finite value within the range; what is not finite as it is. */
static inline float saturated(float value, float limit) {
    const float kept = value > limit ? limit : value < -limit ? -limit : value;
    return (bits_of(value) & 0x7fffffffu) < INFINITE ? kept : value;
}

/* Scaled up and down again, a float32 addition rounds where fp16 ends, below its normal range too. */
static inline uint16_t fp16_of(float value) {
    const uint32_t word = bits_of(value), twice = word + word;
    float base = fabsf(value) * 0x1p+112f * 0x1p-110f;
    uint32_t bias = twice & 0xff000000u;
    bias = bias < 0x71000000u ? 0x71000000u : bias;
    base = from_bits((int32_t)((bias >> 1) + 0x07800000u)) + base;
    const uint32_t bits = bits_of(base);
    const uint32_t magnitude = (bits >> 13 & 0x7c00u) + (bits & 0x0fffu);
    return (uint16_t)((word >> 16 & 0x8000u) | (twice > 0xff000000u ? 0x7e00u : magnitude));
}

static inline float of_fp16(uint16_t half) {
    const uint32_t word = (uint32_t)half << 16, twice = word + word;
    const float normal = from_bits((int32_t)((twice >> 4) + (0xe0u << 23))) * 0x1p-112f;
    const float denormal = from_bits((int32_t)(twice >> 17 | 126u << 23)) - 0.5f;
    return from_bits((int32_t)((word & 0x80000000u) | bits_of(twice < 1u << 27 ? denormal : normal)));
}

static inline void to_fp16(const float *restrict x, uint16_t *restrict half, int64_t n, float limit) {
    int64_t i = 0;
#ifdef __F16C__
    const __m256 most = _mm256_set1_ps(limit), least = _mm256_set1_ps(-limit);
    const __m256 without_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256 infinite = _mm256_castsi256_ps(_mm256_set1_epi32(INFINITE));
    for (; i + 8 <= n; i += 8) {
        const __m256 value = _mm256_loadu_ps(x + i);
        const __m256 finite = _mm256_cmp_ps(_mm256_and_ps(value, without_sign), infinite, _CMP_LT_OQ);
        const __m256 kept = _mm256_min_ps(_mm256_max_ps(value, least), most);
        _mm_storeu_si128((__m128i *)(half + i), _mm256_cvtps_ph(_mm256_blendv_ps(value, kept, finite), 0));
    }
#endif
    for (; i < n; i++) half[i] = fp16_of(saturated(x[i], limit));
}

static inline uint16_t bf16_of(float value) {
    const uint32_t word = bits_of(value);
    const uint32_t rounded = (word + 0x7fffu + (word >> 16 & 1)) >> 16;
    return (uint16_t)((word & 0x7fffffffu) > INFINITE ? 0x7fc0u : rounded);
}

/* Returns the bits of max|x|. */
int dgc_narrow(const float *x, int64_t n, uint16_t *to, int kind, float limit, int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    int32_t largest = 0;
#pragma omp parallel for reduction(max : largest) num_threads(threads) if (parallel) schedule(static)
    for (int64_t start = 0; start < n; start += CHUNK) {
        const int64_t m = n - start < CHUNK ? n - start : CHUNK;
        const float *restrict from = x + start;
        uint16_t *restrict half = to + start;
        int32_t here = largest_magnitude(from, m);
        largest = here > largest ? here : largest;
        if (kind == FP16) to_fp16(from, half, m, limit);
        else
            for (int64_t i = 0; i < m; i++) half[i] = bf16_of(saturated(from[i], limit));
    }
    return largest;
}

static inline __attribute__((always_inline)) void widen(float *restrict x, const uint16_t *restrict half,
                                                        int64_t m, float weight, float limit,
                                                        const int kind, const int add) {
    for (int64_t i = 0; i < m; i++) {
        float value = kind == FP16 ? of_fp16(half[i]) : from_bits((int32_t)((uint32_t)half[i] << 16));
        value = value > limit ? limit : value < -limit ? -limit : value;
        x[i] = add ? x[i] + value * weight : value * weight;
    }
}

/* x = or += weight * half; what lies beyond `limit` (an infinity: nothing) counts as the limit. */
void dgc_widen(const uint16_t *half, float *x, int64_t n, int kind, float weight, float limit,
               int accumulate, int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t start = 0; start < n; start += CHUNK) {
        const int64_t m = n - start < CHUNK ? n - start : CHUNK;
        if (kind == FP16 && accumulate) widen(x + start, half + start, m, weight, limit, FP16, 1);
        else if (kind == FP16) widen(x + start, half + start, m, weight, limit, FP16, 0);
        else if (accumulate) widen(x + start, half + start, m, weight, limit, 1, 1);
        else widen(x + start, half + start, m, weight, limit, 1, 0);
    }
}

/* Every tensor of a batch to its place in `to`; whether all values are finite. */
int dgc_narrow_all(int64_t count, const int64_t *n, const float *const *x, const int64_t *starts, uint16_t *to,
                   int kind, float limit, int threads) {
    EACH_TENSOR(count, n, threads,
                bad |= dgc_narrow(x[s], n[s], to + starts[s], kind, limit, inner) >= INFINITE)
    return !bad;
}

/* And back. */
void dgc_widen_all(int64_t count, const int64_t *n, const uint16_t *half, const int64_t *starts, float *const *x,
                   int kind, float weight, float limit, int accumulate, int threads) {
    EACH_TENSOR(count, n, threads,
                dgc_widen(half + starts[s], x[s], n[s], kind, weight, limit, accumulate, inner))
}
