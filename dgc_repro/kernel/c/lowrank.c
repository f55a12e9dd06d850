/* Tall, thin products for low-rank methods: each reads or writes the large matrix once. The mathematics
 * is kernel/lowrank.py's, whose matrix products round in another order.
 *
 * Every sum has one order, whatever the alignment of its operands and the number of threads: a BLAS may
 * give two placements of one matrix different bits.
 *
 * Letters: m = matrix, rows x cols; r = rank; p = r x rows; q = r x cols, all contiguous.
 */
#include "segments.h"

/* Unlike the other kernels these may fuse products into sums (1.6 times faster): torch's matrix products, the
   fallback, have other bits anyway. */
#ifdef __clang__
#pragma clang fp contract(fast)
#else
#pragma GCC optimize("fp-contract=fast")
#endif

#define LANES 16      /* sums side by side of a product, on every processor */
#define RUN 8192      /* columns summed lane by lane before the lanes are added up */
#define TILE 1024     /* columns of q that stay in the first-level cache */
#define MOST_CHUNKS 16
#define LEAST_ROWS 64 /* of a chunk of rows that is summed by itself */

/* WIDTH: the values of a register. BLOCK: how many rows and ranks of products the registers hold at once. GCC
   keeps a vector that is wider than a register in memory, and the product takes five times as long. */
#ifdef __AVX512F__
#define WIDTH 16
#define BLOCK 4
#else
#ifdef __AVX__
#define WIDTH 8
#else
#define WIDTH 4
#endif
#define BLOCK 2
#endif
#define PARTS (LANES / WIDTH)

/* Loads need no alignment. */
typedef float vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

static inline vector load(const float *x) { return *(const vector *)x; }

/* Zeros from `count` on, which may be below 0 or above WIDTH. */
static inline vector load_some(const float *x, int64_t count) {
    vector value = {0};
    if (count > 0) memcpy(&value, x, (size_t)(count < WIDTH ? count : WIDTH) * sizeof(float));
    return value;
}

/* Half and half: lane i and lane i + 8, then i and i + 4, and so on. */
static inline float sum_of_lanes(const vector *parts) {
    float x[LANES];
    memcpy(x, parts, sizeof x);
    for (int width = LANES / 2; width; width /= 2)
        for (int l = 0; l < width; l++) x[l] += x[l + width];
    return x[0];
}

/* Calls a function with 1 or BLOCK rows and 1 to BLOCK ranks, as numbers that the compiler knows. */
#define IF_RANKS(number, FUNCTION, height, width, ...) \
    if (width == number) height == 1 ? FUNCTION(__VA_ARGS__, 1, number) : FUNCTION(__VA_ARGS__, BLOCK, number);
#define UP_TO_2(...) IF_RANKS(1, __VA_ARGS__) else IF_RANKS(2, __VA_ARGS__)
#if BLOCK == 2
#define FOR_BLOCK UP_TO_2
#else
#define FOR_BLOCK(...) UP_TO_2(__VA_ARGS__) else IF_RANKS(3, __VA_ARGS__) else IF_RANKS(4, __VA_ARGS__)
#endif

/* p[k][i] for `height` rows i and `width` ranks k, both known to the compiler. */
static inline __attribute__((always_inline)) void dots(const float *m, int64_t cols, const float *q, float *p,
                                                       int64_t rows, const int height, const int width) {
    float total[BLOCK][BLOCK] = {{0}};
    for (int64_t start = 0; start < cols; start += RUN) {
        const int64_t end = cols - start < RUN ? cols : start + RUN;
        vector sums[BLOCK][BLOCK][PARTS];
        for (int i = 0; i < height; i++)
            for (int k = 0; k < width; k++)
                for (int l = 0; l < PARTS; l++) sums[i][k][l] = (vector){0};
        int64_t j = start;
        for (; j + LANES <= end; j += LANES) {
#pragma GCC unroll 4
            for (int l = 0; l < PARTS; l++) {
                vector x[BLOCK];
#pragma GCC unroll 4
                for (int i = 0; i < height; i++) x[i] = load(m + i * cols + j + l * WIDTH);
#pragma GCC unroll 4
                for (int k = 0; k < width; k++) {
                    const vector y = load(q + k * cols + j + l * WIDTH);
#pragma GCC unroll 4
                    for (int i = 0; i < height; i++) sums[i][k][l] += x[i] * y;
                }
            }
        }
        if (j < end)
            for (int l = 0; l < PARTS; l++, j += WIDTH)
                for (int k = 0; k < width; k++) {
                    const vector y = load_some(q + k * cols + j, end - j);
                    for (int i = 0; i < height; i++) sums[i][k][l] += load_some(m + i * cols + j, end - j) * y;
                }
        for (int i = 0; i < height; i++)
            for (int k = 0; k < width; k++) total[i][k] += sum_of_lanes(sums[i][k]);
    }
    for (int i = 0; i < height; i++)
        for (int k = 0; k < width; k++) p[k * rows + i] = total[i][k];
}

/* p = (m q^T)^T */
static void times(const float *m, int64_t rows, int64_t cols, const float *q, int r, float *p, int threads) {
    const int parallel = rows * cols >= PARALLEL_FROM && threads > 1;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t block = 0; block < (rows + BLOCK - 1) / BLOCK; block++) {
        const int64_t first = BLOCK * block, last = first + BLOCK <= rows ? first + BLOCK : rows;
        const int height = last - first == BLOCK ? BLOCK : 1;
        for (int k = 0; k < r; k += BLOCK) {
            const int width = r - k < BLOCK ? r - k : BLOCK;
            for (int64_t i = first; i < last; i += height)
                FOR_BLOCK(dots, height, width, m + i * cols, cols, q + k * cols, p + k * rows + i, rows)
        }
    }
}

/* sums[k][j] (+)= sum over `height` rows of m[i][j] p[k][i], for j < count, rows in their order. */
static inline __attribute__((always_inline)) void gather_rows(const float *m, int64_t rows, int64_t cols,
                                                              const float *p, float *sums, int64_t stride,
                                                              int64_t count, int fresh, const int height,
                                                              const int width) {
    vector factor[BLOCK][BLOCK]; /* stays in registers */
#pragma GCC unroll 4
    for (int i = 0; i < height; i++)
#pragma GCC unroll 4
        for (int k = 0; k < width; k++) factor[i][k] = (vector){0} + p[k * rows + i];
    int64_t j = 0;
    for (; j + WIDTH <= count; j += WIDTH) {
        vector sum[BLOCK];
#pragma GCC unroll 4
        for (int k = 0; k < width; k++) sum[k] = fresh ? (vector){0} : load(sums + k * stride + j);
#pragma GCC unroll 4
        for (int i = 0; i < height; i++) {
            const vector x = load(m + i * cols + j);
#pragma GCC unroll 4
            for (int k = 0; k < width; k++) sum[k] += x * factor[i][k];
        }
#pragma GCC unroll 4
        for (int k = 0; k < width; k++) *(vector *)(sums + k * stride + j) = sum[k];
    }
    for (; j < count; j++)
        for (int k = 0; k < width; k++) {
            float sum = fresh ? 0 : sums[k * stride + j];
            for (int i = 0; i < height; i++) sum += m[i * cols + j] * p[k * rows + i];
            sums[k * stride + j] = sum;
        }
}

/* Rows are summed in chunks, by shape alone, so that the order does not depend on the threads. */
static int64_t rows_of_chunk(int64_t rows) {
    int64_t height = (rows + MOST_CHUNKS - 1) / MOST_CHUNKS;
    height = height < LEAST_ROWS ? LEAST_ROWS : height;
    return (height + 7) / 8 * 8;
}

/* q = p m; partial: f32[chunks][r][cols] where there are several chunks
 * (_num_partial in kernel/lowrank.py). */
static void transposed_times(const float *m, int64_t rows, int64_t cols, const float *p, int r, float *q,
                          float *partial, int threads) {
    const int parallel = rows * cols >= PARALLEL_FROM && threads > 1;
    const int64_t height = rows_of_chunk(rows), chunks = (rows + height - 1) / height;
    const int64_t tiles = (cols + TILE - 1) / TILE, size = (int64_t)r * cols;
#pragma omp parallel num_threads(threads) if (parallel)
    {
#pragma omp for schedule(static)
        for (int64_t work = 0; work < chunks * tiles; work++) {
            const int64_t chunk = work / tiles, start = work % tiles * TILE;
            const int64_t count = cols - start < TILE ? cols - start : TILE;
            const int64_t last = rows < (chunk + 1) * height ? rows : (chunk + 1) * height;
            float *sums = (chunks > 1 ? partial + chunk * size : q) + start;
            for (int64_t i = chunk * height; i < last;) {
                const int step = last - i >= BLOCK ? BLOCK : 1;
                for (int k = 0; k < r; k += BLOCK) {
                    const int width = r - k < BLOCK ? r - k : BLOCK;
                    FOR_BLOCK(gather_rows, step, width, m + i * cols + start, rows, cols, p + k * rows + i,
                              sums + k * cols, cols, count, i == chunk * height)
                }
                i += step;
            }
        }
        if (chunks > 1) {
#pragma omp for schedule(static)
            for (int64_t start = 0; start < size; start += TILE) {
                const int64_t end = size - start < TILE ? size : start + TILE;
                for (int64_t j = start; j < end; j++) {
                    float sum = partial[j];
                    for (int64_t chunk = 1; chunk < chunks; chunk++) sum += partial[chunk * size + j];
                    q[j] = sum;
                }
            }
        }
    }
}

/* x = or += weight * p^T q: the terms of a value are added up first, in the order of ranks. */
static inline __attribute__((always_inline)) void outer_row(float *x, const float *p, int64_t rows, const float *q,
                                                            int64_t cols, int r, int64_t count, float weight,
                                                            const int accumulate) {
    int64_t j = 0;
    for (; j + 4 * WIDTH <= count; j += 4 * WIDTH) {
        vector sum[4];
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) sum[u] = load(q + j + u * WIDTH) * p[0];
        for (int k = 1; k < r; k++) {
            const float factor = p[k * rows];
#pragma GCC unroll 4
            for (int u = 0; u < 4; u++) sum[u] += load(q + k * cols + j + u * WIDTH) * factor;
        }
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) {
            vector *to = (vector *)(x + j + u * WIDTH);
            *to = accumulate ? *to + sum[u] * weight : sum[u] * weight;
        }
    }
    for (; j < count; j++) {
        float sum = q[j] * p[0];
        for (int k = 1; k < r; k++) sum += q[k * cols + j] * p[k * rows];
        x[j] = accumulate ? x[j] + sum * weight : sum * weight;
    }
}

static void outer(float *x, int64_t rows, int64_t cols, const float *p, const float *q, int r, float weight,
               int accumulate, int threads) {
    const int parallel = rows * cols >= PARALLEL_FROM && threads > 1;
    const int64_t tiles = (cols + TILE - 1) / TILE, blocks = (rows + 31) / 32;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t work = 0; work < blocks * tiles; work++) {
        const int64_t first = work / tiles * 32, last = rows < first + 32 ? rows : first + 32;
        const int64_t start = work % tiles * TILE, count = cols - start < TILE ? cols - start : TILE;
        for (int64_t i = first; i < last; i++) {
            float *to = x + i * cols + start;
            if (accumulate) outer_row(to, p + i, rows, q + start, cols, r, count, weight, 1);
            else outer_row(to, p + i, rows, q + start, cols, r, count, weight, 0);
        }
    }
}

/* Rows of q times powers of two, so that sum |q| <= 1. Returns 0, and nothing is done, where a row is zero
 * or not finite: it has no direction. */
static int scale_rows(const float *q, int r, int64_t cols, float *scaled) {
    int margin = 0;
    while (((int64_t)1 << margin) < cols) margin++;
    for (int k = 0; k < r; k++) {
        const int32_t largest = largest_magnitude(q + k * cols, cols);
        if (largest == 0 || largest >= INFINITE) return 0;
    }
    for (int k = 0; k < r; k++) {
        int exponent;
        frexpf(from_bits(largest_magnitude(q + k * cols, cols)), &exponent);
        const double factor = ldexp(1.0, -exponent - margin);
        for (int64_t j = 0; j < cols; j++) scaled[k * cols + j] = (float)(q[k * cols + j] * factor);
    }
    return 1;
}

#define WIDE 8 /* doubles summed side by side */

static double dot(const double *x, const double *y, int64_t n) {
    double sums[WIDE] = {0};
    int64_t i = 0;
    for (; i + WIDE <= n; i += WIDE)
        for (int l = 0; l < WIDE; l++) sums[l] += x[i + l] * y[i + l];
    for (; i < n; i++) sums[0] += x[i] * y[i];
    for (int width = WIDE / 2; width; width /= 2)
        for (int l = 0; l < width; l++) sums[l] += sums[l + width];
    return sums[0];
}

/* The r rows of p (f32[r][n]) made orthonormal, in their order, twice each; a row that depends on those before
 * becomes zero. work: f64[r][n]. */
static void orthonormal(const float *p, int r, int64_t n, double tolerance, double *work, float *unit) {
    for (int k = 0; k < r; k++) {
        double *row = work + k * n;
        int exponent = 0;
        const int32_t largest = largest_magnitude(p + k * n, n);
        if (largest < INFINITE) frexpf(from_bits(largest), &exponent);
        const double factor = ldexp(1.0, -exponent);
        for (int64_t i = 0; i < n; i++) row[i] = p[k * n + i] * factor;
        const double before = sqrt(dot(row, row, n));
        for (int pass = 0; pass < 2; pass++)
            for (int l = 0; l < k; l++) {
                const double *other = work + l * n, along = dot(row, other, n);
                for (int64_t i = 0; i < n; i++) row[i] -= along * other[i];
            }
        const double after = sqrt(dot(row, row, n));
        const double inverse = after <= tolerance * before ? 0.0 : 1.0 / after; /* a NaN stays one */
        for (int64_t i = 0; i < n; i++) {
            row[i] *= inverse;
            unit[k * n + i] = (float)row[i];
        }
    }
}

/* The matrices of a batch, all of rank r: sizes, and where the factors of each begin in a buffer of all.
 * Where several are worked on side by side (segments.h), their places in `partial` differ. */
typedef struct {
    int64_t count;
    const int64_t *n, *rows, *cols, *p_at, *q_at, *partial_at;
} matrices_t;

/* `scale_rows` of each matrix, to its place; lost: those of which a row has no direction. */
void dgc_scale_rows_all(const matrices_t *of, int r, const float *const *q, float *scaled, uint8_t *lost, int threads) {
    EACH_TENSOR(of->count, of->cols, threads,
                lost[s] = !scale_rows(q[s], r, of->cols[s], scaled + of->q_at[s]))
}

void dgc_times_all(const matrices_t *of, int r, const float *const *m, const float *q, float *p, int threads) {
    EACH_TENSOR(of->count, of->n, threads,
                times(m[s], of->rows[s], of->cols[s], q + of->q_at[s], r, p + of->p_at[s], inner))
}

void dgc_orthonormal_all(const matrices_t *of, int r, const float *p, double tolerance, double *work, float *unit,
                         int threads) {
    EACH_TENSOR(of->count, of->rows, threads, {
        const int64_t at = of->p_at[s];
        orthonormal(p + at, r, of->rows[s], tolerance, work + at, unit + at);
    })
}

void dgc_transposed_times_all(const matrices_t *of, int r, const float *const *m, const float *p, float *q,
                              float *partial, int threads) {
    EACH_TENSOR(of->count, of->n, threads,
                transposed_times(m[s], of->rows[s], of->cols[s], p + of->p_at[s], r, q + of->q_at[s],
                                     partial + of->partial_at[s], inner))
}

void dgc_outer_all(const matrices_t *of, int r, float *const *x, const float *p, const float *q, float weight,
                   int accumulate, int threads) {
    EACH_TENSOR(of->count, of->n, threads,
                outer(x[s], of->rows[s], of->cols[s], p + of->p_at[s], q + of->q_at[s], r, weight, accumulate,
                          inner))
}
