/* Sums of a whole tensor in float64 whose order is fixed: it depends neither on the number of threads
 * nor on the width of the vector unit, and kernel/sums.py makes it with tensor operations.
 *
 * A block of BLOCK values is added up in LANES lanes (value i into lane i % LANES, in order of i), and
 * the lanes are folded by halves.
 */
#include "segments.h"

#define BLOCK 4096
#define LANES 512

/* The sum of `count` rows of `width` values by halves, into the first: kernel/sums.py's `folded`. */
static void fold(double *rows, int64_t count, int64_t width) {
    while (count > 1) {
        const int64_t half = (count + 1) / 2;
        for (int64_t i = 0; i < (count - half) * width; i++) rows[i] += rows[half * width + i];
        count = half;
    }
}

static double fold_lanes(double *lanes) {
    fold(lanes, LANES, 1);
    return lanes[0];
}

/* sum |x|, or sum x^2 where `squared`; sums has a place for each block. *largest: the bits of max|x|. */
static double sum_up(const float *x, int64_t n, double *sums, int squared, int32_t *largest, int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    int32_t peak = 0;
#pragma omp parallel for reduction(max : peak) num_threads(threads) if (parallel) schedule(static)
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t m = n - start < BLOCK ? n - start : BLOCK;
        double lanes[LANES] = {0};
        int32_t here = largest_magnitude(x + start, m);
        peak = here > peak ? here : peak;
        for (int64_t j = 0; j < m; j += LANES) {
            const float *restrict values = x + start + j;
            const int64_t width = m - j < LANES ? m - j : LANES;
            if (squared)
                for (int64_t i = 0; i < width; i++) lanes[i] += (double)values[i] * (double)values[i];
            else
                for (int64_t i = 0; i < width; i++) lanes[i] += (double)fabsf(values[i]);
        }
        sums[start / BLOCK] = fold_lanes(lanes);
    }
    fold(sums, (n + BLOCK - 1) / BLOCK, 1);
    *largest = peak;
    return n ? sums[0] : 0.0;
}

/* totals, and peaks = max|x|, of every tensor of a batch. Its blocks have places in `sums` from at[s]. Returns whether no value
 * is a NaN or an infinity. */
int dgc_sums_all(int64_t count, const int64_t *n, const float *const *x, int squared, const int64_t *at,
                 double *sums, double *totals, float *peaks, int threads) {
    EACH_TENSOR(count, n, threads, {
        int32_t largest;
        totals[s] = sum_up(x[s], n[s], sums + at[s], squared, &largest, inner);
        peaks[s] = from_bits(largest);
        bad |= largest >= INFINITE;
    })
    return !bad;
}

/* max|x| of every tensor of a batch; whether no value is a NaN or an infinity. */
int dgc_peaks_all(int64_t count, const int64_t *n, const float *const *x, float *peaks, int threads) {
    EACH_TENSOR(count, n, threads, {
        const int32_t largest = largest_of_all(x[s], n[s], inner);
        peaks[s] = from_bits(largest);
        bad |= largest >= INFINITE;
    })
    return !bad;
}

#define TILE 256  /* columns handled at a time */
#define TALL 256  /* rows of a block */
#define WIDE 256  /* a matrix of fewer columns is seen as one of nearly so many */
#define AHEAD 2   /* rows */

/* Of every column of a matrix: the sum of x >= 0 (a NaN counts there), the sum of x < 0, and how many of
 * the latter. `joined` rows are seen as one of columns = joined x their length, the last one perhaps
 * shorter; of each block of TALL such rows they are added in order into sums[block][3][columns], then
 * folded. What counts stands in sums[0][...][0 ... columns / joined - 1]. Returns the bits of max|x|. */
static int32_t column_parts(const float *x, int64_t n, int64_t columns, int64_t joined, double *sums,
                            int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    const int64_t rows = (n + columns - 1) / columns, tiles = (columns + TILE - 1) / TILE;
    const int64_t tasks = (rows + TALL - 1) / TALL * tiles;
    int32_t largest = 0;
#pragma omp parallel for reduction(max : largest) num_threads(threads) if (parallel) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        const int64_t first = task / tiles * TALL, column = task % tiles * TILE;
        const int64_t last = first + TALL < rows ? first + TALL : rows;
        const int64_t width = columns - column < TILE ? columns - column : TILE;
        double above[TILE] = {0}, below[TILE] = {0};
        int32_t negative[TILE] = {0}, peak[TILE] = {0};
        for (int64_t row = first; row < last; row++) {
            const int64_t left = n - (row * columns + column), m = left < width ? left : width;
            const float *restrict values = x + row * columns + column;
            /* The next rows lie elsewhere: no prefetcher sees them coming. */
            if (row + AHEAD < last)
                for (int64_t i = 0; i < m; i += 16) __builtin_prefetch(values + AHEAD * columns + i);
            for (int64_t i = 0; i < m; i++) {
                int32_t bits;
                memcpy(&bits, values + i, sizeof bits);
                bits &= 0x7fffffff;
                peak[i] = bits > peak[i] ? bits : peak[i];
                negative[i] += values[i] < 0.0f;
            }
            for (int64_t i = 0; i < m; i++) {
                const double value = (double)values[i];
                above[i] += value < 0.0 ? 0.0 : value;
                below[i] += value < 0.0 ? value : 0.0;
            }
        }
        double *to = sums + (task / tiles * 3) * columns + column;
        for (int64_t i = 0; i < width; i++) {
            to[i] = above[i], to[columns + i] = below[i], to[2 * columns + i] = (double)negative[i];
            largest = peak[i] > largest ? peak[i] : largest;
        }
    }
    fold(sums, tasks / tiles, 3 * columns);
    for (int kind = 0; kind < 3; kind++) fold(sums + kind * columns, joined, columns / joined);
    return largest;
}

/* parts[3][all columns]: of every tensor of a batch, from its column starts[s]. Its blocks have places in
 * `sums` from at[s]. Returns whether no value is a NaN or an infinity. */
int dgc_column_parts_all(int64_t count, const int64_t *n, const float *const *x, const int64_t *columns,
                         const int64_t *at, double *sums, const int64_t *starts, double *parts, int threads) {
    const int64_t total = count ? starts[count - 1] + columns[count - 1] : 0;
    EACH_TENSOR(count, n, threads, if (n[s]) {
        const int64_t joined = columns[s] < WIDE ? WIDE / columns[s] : 1;
        const int64_t wide = joined * columns[s];
        bad |= column_parts(x[s], n[s], wide, joined, sums + at[s], inner) >= INFINITE;
        for (int kind = 0; kind < 3; kind++)
            memcpy(parts + kind * total + starts[s], sums + at[s] + kind * wide, columns[s] * sizeof *parts);
    })
    return !bad;
}
