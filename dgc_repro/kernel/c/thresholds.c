/* What thresholds are made of, on the CPU: samples and moments. The mathematics
 * is kernel/thresholds.py's, which is the fallback and the reference: both give the same bits.
 *
 * Sums are made so that their bits cannot depend on threads or vectors: 4096 values at a time are
 * folded in halves, in float64 (value i and value i + 2048, then i and i + 1024, ...), and the results
 * of all chunks are folded in halves again.
 */
#include "segments.h"

#define FOLD 4096          /* values that are folded into one */
#define PRODUCT 512        /* mantissas in [1/2, 1) that are multiplied before they are split again */

static inline int32_t magnitude(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

#define AHEAD 256 /* places that are fetched at once: what lies there is far apart */

/* m values of x: one of each `width` neighbours, at a hashed place among them; the first neighbour of
 * all is x[offset], the place after x[n - 1] is x[0]. */
static void sample(const float *x, int64_t n, int64_t m, int64_t offset, int32_t key, float *to, int threads) {
    const int64_t width = n / m;
    const int parallel = m >= PARALLEL_FROM / 8 && threads > 1;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t start = 0; start < m; start += AHEAD) {
        int64_t places[AHEAD];
        const int64_t here = m - start < AHEAD ? m - start : AHEAD;
        for (int64_t i = 0; i < here; i++) {
            const uint64_t drawn = hashed((uint32_t)(start + i), (uint32_t)key) >> 9;
            const int64_t at = offset + (start + i) * width + (int64_t)((drawn * (uint64_t)width) >> 23);
            places[i] = at >= n ? at - n : at;
        }
        for (int64_t i = 0; i < here; i++) __builtin_prefetch(x + places[i]);
        for (int64_t i = 0; i < here; i++) to[start + i] = x[places[i]];
    }
}

/* The same of every tensor of which m[s] > 0 values are wanted, to to[starts[s]]. */
void dgc_sample_all(int64_t count, const int64_t *n, const float *const *x, const int64_t *m,
                    const int64_t *offsets, const int32_t *keys, float *to, const int64_t *starts, int threads) {
    EACH_TENSOR(count, n, threads, {
        if (m[s]) sample(x[s], n[s], m[s], offsets[s], keys[s], to + starts[s], inner);
    })
}

/* Halves: count values become one. `count` need not be a power of two: what is missing counts as 0. */
static double folded(double *a, int64_t count) {
    int64_t half = 1;
    while (half < count) half *= 2;
    while (count > 1) {
        half /= 2;
        for (int64_t i = 0; i + half < count; i++) a[i] += a[i + half];
        count = half < count ? half : count;
    }
    return a[0];
}

typedef struct {
    double total, squares, mantissa;
    int64_t exponent, count;
    int32_t largest;
} moments_t;

/* a = mantissa 2^exponent, mantissa in [1/2, 1): the frexp of a positive normal number. */
static inline double split(double a, int64_t *exponent) {
    int64_t bits;
    memcpy(&bits, &a, sizeof bits);
    *exponent += (int64_t)((uint64_t)bits >> 52) - 1022;
    bits = (bits & 0x000fffffffffffff) | 0x3fe0000000000000;
    memcpy(&a, &bits, sizeof a);
    return a;
}

/* The product of `count` mantissas, a power of two of them, by halves; split again at each level
   once PRODUCT of them may be in one. */
static double multiplied(double *restrict a, int64_t count, int64_t inside, int64_t *exponent) {
    for (int64_t half = count / 2; half >= 1; half /= 2) {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) a[i] *= a[i + half];
        inside *= 2;
        if (inside >= PRODUCT)
            for (int64_t i = 0; i < half; i++) a[i] = split(a[i], exponent);
    }
    return a[0];
}

#define STRIPE (FOLD / 8) /* three foldings at once: what is left stays in the first-level cache */
#define EIGHTH(v, op) (((v[0] op v[4]) op (v[2] op v[6])) op ((v[1] op v[5]) op (v[3] op v[7])))

static inline double rest_of(double *restrict a) {
    for (int half = STRIPE / 2; half >= 1; half /= 2)
#pragma omp simd
        for (int i = 0; i < half; i++) a[i] += a[i + half];
    return a[0];
}

/* Sums over the FOLD values with |x| > above of |x| - above, of its square (second), and the product
   of |x| as a mantissa and an exponent (logs). */
static inline __attribute__((always_inline)) moments_t chunk_moments(const float *restrict x, float above,
                                                                     const int second, const int logs) {
    double total[STRIPE], squares[STRIPE], mantissas[STRIPE];
    moments_t found = {0, 0, 1, 0, 0, 0};
    int32_t count = 0, largest = 0;
    int64_t exponent = 0;
    const double shift = above;
#pragma omp simd reduction(+ : count, exponent) reduction(max : largest)
    for (int i = 0; i < STRIPE; i++) {
        double y[8], z[8], p[8];
#pragma GCC unroll 8
        for (int b = 0; b < 8; b++) {
            const float value = x[i + b * STRIPE], m = fabsf(value);
            const int32_t bits = magnitude(value);
            count += m > above;
            largest = bits > largest ? bits : largest;
            y[b] = m > above ? (double)m - shift : 0.0;
            if (second) z[b] = y[b] * y[b];
            if (logs) p[b] = split(m > above ? (double)m : 0.5, &exponent); /* a half: exponent 0 */
        }
        total[i] = EIGHTH(y, +);
        if (second) squares[i] = EIGHTH(z, +);
        if (logs) mantissas[i] = EIGHTH(p, *);
    }
    found.total = rest_of(total);
    if (second) found.squares = rest_of(squares);
    found.count = count;
    found.largest = largest;
    if (logs) {
        exponent += FOLD - count; /* those left out count as one: a half times two */
        found.mantissa = multiplied(mantissas, STRIPE, 8, &exponent);
        found.exponent = exponent;
    }
    return found;
}

/* `chunks`: f64[3 * ceil(n / FOLD)] of scratch. second: squares are wanted; logs: the product too. */
static void moments(const float *x, int64_t n, float above, int second, int logs, double *chunks,
                    moments_t *found, int threads) {
    const int64_t num = (n + FOLD - 1) / FOLD;
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    double *totals = chunks, *squares = chunks + num, *mantissas = chunks + 2 * num;
    int64_t count = 0, exponent = 0;
    int32_t largest = 0;
#pragma omp parallel for reduction(+ : count, exponent) reduction(max : largest) num_threads(threads) \
    if (parallel) schedule(static)
    for (int64_t c = 0; c < num; c++) {
        float rest[FOLD];
        const float *values = x + c * FOLD;
        if (n - c * FOLD < FOLD) { /* zeros are never above */
            memset(rest, 0, sizeof rest);
            memcpy(rest, values, (size_t)(n - c * FOLD) * sizeof(float));
            values = rest;
        }
        moments_t here;
        if (logs)
            here = second ? chunk_moments(values, above, 1, 1) : chunk_moments(values, above, 0, 1);
        else
            here = second ? chunk_moments(values, above, 1, 0) : chunk_moments(values, above, 0, 0);
        totals[c] = here.total;
        squares[c] = here.squares;
        mantissas[c] = here.mantissa;
        count += here.count;
        exponent += here.exponent;
        largest = here.largest > largest ? here.largest : largest;
    }
    found->total = num ? folded(totals, num) : 0;
    found->squares = num && second ? folded(squares, num) : 0;
    double product = 1;
    if (logs && num) {
        int64_t left = num, half = 1;
        while (half < num) half *= 2;
        while (left > 1) {
            half /= 2;
            for (int64_t i = 0; i + half < left; i++)
                mantissas[i] = split(mantissas[i] * mantissas[i + half], &exponent);
            left = half < left ? half : left;
        }
        product = mantissas[0];
    }
    found->mantissa = product;
    found->exponent = exponent;
    found->count = count;
    found->largest = largest;
}

/* The same of every tensor; its chunks are noted from starts[s]. */
void dgc_moments_all(int64_t count, const int64_t *n, const float *const *x, const float *above, int second,
                     int logs, double *chunks, const int64_t *starts, moments_t *found, int threads) {
    EACH_TENSOR(count, n, threads, {
        moments(x[s], n[s], above[s], second, logs, chunks + starts[s], found + s, inner);
    })
}
