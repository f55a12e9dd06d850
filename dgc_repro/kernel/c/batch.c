/* Sums, products and energies of all tensors of a batch in one call. */
#include "segments.h"

#define PART 65536 /* values whose squares are summed one after another */

static int64_t num_parts(int64_t n) { return (n + PART - 1) / PART; }
static int64_t part_size(int64_t n, int64_t part) { return n - part * PART < PART ? n - part * PART : PART; }

/* The sum of squares of a part. Not inlined, so that all callers add in one order. */
__attribute__((noinline)) static double energy_of_part(const float *x, int64_t m) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < m; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

static double total(const double *parts, int64_t count) {
    double sum = 0;
    for (int64_t p = 0; p < count; p++) sum += parts[p];
    return sum;
}

/* The sum of squares, in the same order whatever the number of threads. */
static double energy_of(const float *x, int64_t n, int threads) {
    const int64_t parts = num_parts(n);
    const int parallel = parts > 1 && threads > 1;
    double sums[parts + 1];
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t p = 0; p < parts; p++) sums[p] = energy_of_part(x + p * PART, part_size(n, p));
    return total(sums, parts);
}

/* a + weight b. torch.add rounds once where the processor multiplies and adds in one step. */
static inline float sum_of(float a, float b, float weight) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return fmaf(weight, b, a);
#else
    return a + weight * b;
#endif
}

/* to = a + weight * b; returns the bits of max|to|. */
static int32_t add_few(float *to, const float *a, const float *b, int64_t n, float weight) {
    int32_t largest = 0;
    for (int64_t start = 0; start < n; start += 4096) {
        const int64_t m = n - start < 4096 ? n - start : 4096;
        const float *x = a + start, *y = b + start;
        float *z = to + start;
        if (weight == 1.0f)
            for (int64_t i = 0; i < m; i++) z[i] = x[i] + y[i];
        else
            for (int64_t i = 0; i < m; i++) z[i] = sum_of(x[i], y[i], weight);
        const int32_t here = largest_magnitude(z, m);
        largest = here > largest ? here : largest;
    }
    return largest;
}

/* The same by all threads; *energy: the sum of squares of `to`, while each part of it is in the cache. */
static int32_t add(float *to, const float *a, const float *b, int64_t n, float weight, double *energy,
                   int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    double sums[num_parts(n) + 1];
    int32_t largest = 0;
#pragma omp parallel for reduction(max : largest) num_threads(threads) if (parallel) schedule(static)
    for (int64_t p = 0; p < num_parts(n); p++) {
        const int64_t start = p * PART, m = part_size(n, p);
        const int32_t here = add_few(to + start, a + start, b + start, m, weight);
        largest = here > largest ? here : largest;
        if (energy) sums[p] = energy_of_part(to + start, m);
    }
    if (energy) *energy = total(sums, num_parts(n));
    return largest;
}

/* The same of every tensor; whether all sums are finite. energies: of every tensor, or NULL. */
int dgc_add_all(int64_t count, const int64_t *n, float *const *to, const float *const *a,
                const float *const *b, float weight, double *energies, int threads) {
    EACH_TENSOR(count, n, threads,
                bad |= add(to[s], a[s], b[s], n[s], weight, energies ? energies + s : 0, inner) >= INFINITE)
    return !bad;
}

/* to = weight * from (both may be one), or, if it adds, to += weight * from with the product rounded first;
 * whether no value of `from` is a NaN or an infinity. */
static int scale(float *to, const float *from, int64_t n, float weight, int adds, int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    int32_t largest = 0;
#pragma omp parallel for reduction(max : largest) num_threads(threads) if (parallel) schedule(static)
    for (int64_t start = 0; start < n; start += 4096) {
        const int64_t m = n - start < 4096 ? n - start : 4096;
        int32_t here = largest_magnitude(from + start, m);
        largest = here > largest ? here : largest;
        if (adds)
            for (int64_t i = start; i < start + m; i++) to[i] += from[i] * weight;
        else
            for (int64_t i = start; i < start + m; i++) to[i] = from[i] * weight;
    }
    return largest < INFINITE;
}

/* to = weight * from for every tensor; whether all values of `from` are finite. */
int dgc_scale_all(int64_t count, const int64_t *n, float *const *to, const float *const *from, float weight,
                  int threads) {
    EACH_TENSOR(count, n, threads, bad |= !scale(to[s], from[s], n[s], weight, 0, inner))
    return !bad;
}

/* to += weight * from for every tensor; whether all values of `from` are finite. */
int dgc_add_scaled_all(int64_t count, const int64_t *n, float *const *to, const float *const *from,
                       float weight, int threads) {
    EACH_TENSOR(count, n, threads, bad |= !scale(to[s], from[s], n[s], weight, 1, inner))
    return !bad;
}

/* Whether no value is a NaN or an infinity. */
int dgc_all_finite(const float *x, int64_t n, int threads) {
    return largest_of_all(x, n, threads) < INFINITE;
}

/* Whether no value of any tensor is a NaN or an infinity. */
int dgc_finite_all(int64_t count, const int64_t *n, const float *const *x, int threads) {
    EACH_TENSOR(count, n, threads, bad |= largest_of_all(x[s], n[s], inner) >= INFINITE)
    return !bad;
}

/* The sum of squares of every tensor. */
void dgc_energy_all(int64_t count, const int64_t *n, const float *const *x, double *energies, int threads) {
    EACH_TENSOR(count, n, threads, energies[s] = energy_of(x[s], n[s], inner))
}
