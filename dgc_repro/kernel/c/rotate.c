/* The Walsh-Hadamard transform. kernel/rotate.py is the reference: the same sums in the same order. */
#include "common.h"

/* One stage: each value and the one `half` places on become their sum and their difference. */
static inline __attribute__((always_inline)) void butterflies(float *restrict x, int64_t d, const int64_t half) {
    for (int64_t start = 0; start < d; start += 2 * half)
        for (int64_t i = start; i < start + half; i++) {
            const float low = x[i], high = x[i + half];
            x[i] = low + high;
            x[i + half] = low - high;
        }
}

/* Every row of d values, a power of two from 8 on, in place and without a factor. */
void dgc_hadamard(float *x, int64_t rows, int64_t d, int threads) {
    const int parallel = rows * d >= PARALLEL_FROM && threads > 1;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float *own = x + row * d;
        butterflies(own, d, 1);
        butterflies(own, d, 2);
        butterflies(own, d, 4);
        for (int64_t half = 8; half < d; half *= 2) butterflies(own, d, half);
    }
}

/* How many of the `count` edges lie below each value times the ratio of its row. */
void dgc_nearest_levels(const float *x, int64_t rows, int64_t d, const float *ratios, const float *edges, int count,
                        int32_t *codes, int threads) {
    const int parallel = rows * d >= PARALLEL_FROM && threads > 1;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *restrict own = x + row * d;
        int32_t *restrict code = codes + row * d;
        const float ratio = ratios[row];
        for (int64_t i = 0; i < d; i++) {
            const float y = own[i] * ratio;
            int32_t below = 0;
            for (int edge = 0; edge < count; edge++) below += y > edges[edge];
            code[i] = below;
        }
    }
}
