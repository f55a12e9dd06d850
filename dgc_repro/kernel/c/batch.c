/* Sums, products and energies of all tensors of a batch in one call. */
#include "segments.h"

int dgc_scale(float *to, const float *from, int64_t n, float weight, int threads);
double dgc_energy(const float *x, int64_t n, int threads);

/* a + weight b. torch.add rounds once where the processor multiplies and adds in one step. */
static inline float sum_of(float a, float b, float weight) {
#ifdef __FMA__
    return fmaf(weight, b, a);
#else
    return a + weight * b;
#endif
}

/* to = a + weight * b; returns the bits of max|to|. */
static int32_t add(float *to, const float *a, const float *b, int64_t n, float weight, int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    int32_t largest = 0;
#pragma omp parallel for reduction(max : largest) num_threads(threads) if (parallel) schedule(static)
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

/* The same of every tensor; whether all sums are finite. */
int dgc_add_all(int64_t count, const int64_t *n, float *const *to, const float *const *a,
                const float *const *b, float weight, int threads) {
    int bad = 0;
    EACH_TENSOR(count, n, threads, bad, bad |= add(to[s], a[s], b[s], n[s], weight, inner) >= INFINITE)
    return !bad;
}

/* to = weight * from for every tensor; whether all values of `from` are finite. */
int dgc_scale_all(int64_t count, const int64_t *n, float *const *to, const float *const *from, float weight,
                  int threads) {
    int bad = 0;
    EACH_TENSOR(count, n, threads, bad, bad |= !dgc_scale(to[s], from[s], n[s], weight, inner))
    return !bad;
}

/* Whether no value of any tensor is a NaN or an infinity. */
int dgc_finite_all(int64_t count, const int64_t *n, const float *const *x, int threads) {
    int bad = 0;
    EACH_TENSOR(count, n, threads, bad, bad |= largest_of_all(x[s], n[s], inner) >= INFINITE)
    return !bad;
}

/* The sum of squares of every tensor. */
void dgc_energy_all(int64_t count, const int64_t *n, const float *const *x, double *energies, int threads) {
    int bad = 0;
    EACH_TENSOR(count, n, threads, bad, energies[s] = dgc_energy(x[s], n[s], inner))
}
