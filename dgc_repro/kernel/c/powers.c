/* Round to powers of two at random: a sign and eight exponent bits a value. kernel/powers.py has the
 * mathematics. Signs lie as in signs.c (sign bits here, so that -0 keeps its own), exponents in order.
 */
#include "segments.h"
#include "words.h"

/* Returns the bits of max|x|. */
static int32_t pack(const float *x, int64_t n, int32_t key, uint32_t *words, uint8_t *exponents,
                    int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    int32_t largest = 0;
#pragma omp parallel for reduction(max : largest) num_threads(threads) if (parallel) schedule(static)
    for (int64_t start = 0; start < n; start += ROW) {
        const int64_t left = n - start, length = words_of(left);
        uint32_t row[WORDS] = {0};
        int32_t here = 0;
        for (int part = 0; part < BITS; part++) {
            const int64_t m = present(left, length, part), from = start + part * length;
            const float *restrict values = x + from;
            uint8_t *restrict to = exponents + from;
            int32_t powers[WORDS];
            for (int64_t j = 0; j < m; j++) {
                uint32_t bits;
                memcpy(&bits, values + j, sizeof bits);
                row[j] |= bits >> (BITS - 1) << part;
                const int32_t size = (int32_t)(bits & 0x7fffffffu);
                here = size > here ? size : here;
                const uint32_t random = hashed((uint32_t)(from + j), (uint32_t)key) >> 9;
                const int32_t power = (int32_t)(((uint32_t)size + random) >> 23);
                powers[j] = size >= INFINITE ? 255 : power > 254 ? 254 : power;
            }
            for (int64_t j = 0; j < m; j++) to[j] = (uint8_t)powers[j];
        }
        largest = here > largest ? here : largest;
        memcpy(words + start / BITS, row, length * sizeof *row);
    }
    return largest;
}

/* x = or += the sum of weight * decoded over `count` payloads, in their order. In each buffer the signs and
 * the exponents of this tensor begin at the given bytes. */
static void decode(float *x, int64_t n, int64_t words_at, int64_t exponents_at, int count,
                   const uint8_t *const *buffers, float weight, int accumulate, int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t start = 0; start < n; start += ROW) {
        const int64_t left = n - start, length = words_of(left);
        for (int source = 0; source < count; source++) {
            const uint32_t *restrict row = (const uint32_t *)(buffers[source] + words_at) + start / BITS;
            const int add = accumulate || source;
            for (int part = 0; part < BITS; part++) {
                const int64_t m = present(left, length, part), from = start + part * length;
                const uint8_t *restrict power = buffers[source] + exponents_at + from;
                float *restrict to = x + from;
                float values[WORDS];
                for (int64_t j = 0; j < m; j++) {
                    const uint32_t bits = (uint32_t)power[j] << 23 | row[j] >> part << (BITS - 1);
                    memcpy(values + j, &bits, sizeof bits);
                }
                if (add)
                    for (int64_t j = 0; j < m; j++) to[j] += values[j] * weight;
                else
                    for (int64_t j = 0; j < m; j++) to[j] = values[j] * weight;
            }
        }
    }
}

/* The same for all tensors of a batch. Packing returns whether no value is a NaN or an infinity. */
int dgc_pack_powers_all(int64_t count, const int64_t *n, const float *const *x, const int64_t *words_at,
                        const int64_t *exponents_at, const int32_t *keys, uint8_t *buffer, int threads) {
    EACH_TENSOR(count, n, threads,
                bad |= pack(x[s], n[s], keys[s], (uint32_t *)(buffer + words_at[s]), buffer + exponents_at[s],
                            inner) >= INFINITE)
    return !bad;
}

void dgc_decode_powers_all(int64_t count, const int64_t *n, float *const *x, const int64_t *words_at,
                           const int64_t *exponents_at, int sources, const uint8_t *const *buffers, float weight,
                           int accumulate, int threads) {
    EACH_TENSOR(count, n, threads,
                decode(x[s], n[s], words_at[s], exponents_at[s], sources, buffers, weight, accumulate, inner))
}
