/* Entries at the first places of a keyed permutation, of every tensor of a batch: gather, scatter. The fallbacks
 * and references, kernel/permute.py and payload/keyed.py, give the same places and the same bits.
 */
#include "segments.h"

#define BLOCK 512 /* places computed together */
#define ROUNDS 8        /* of a network on more than SMALL bits */
#define SMALL_ROUNDS 24 /* halves of one or two bits mix slowly */
#define SMALL 6

typedef struct {
    int64_t n;
    int32_t low_bits, high_bits; /* 2^(low + high) is the smallest power of two not below n */
    int32_t rounds;
    uint32_t keys[SMALL_ROUNDS];
} permutation_t;

static permutation_t permutation_of(int64_t n, int32_t key) {
    permutation_t permutation = {.n = n};
    int bits = 0;
    while (bits < 62 && ((int64_t)1 << bits) < n) bits++;
    permutation.high_bits = bits / 2;
    permutation.low_bits = bits - bits / 2;
    permutation.rounds = bits <= SMALL ? SMALL_ROUNDS : ROUNDS;
    for (int round = 0; round < permutation.rounds; round++) permutation.keys[round] = hashed((uint32_t)round, (uint32_t)key);
    return permutation;
}

static inline __attribute__((always_inline)) void scramble_rounds(const permutation_t *permutation,
                                                                  const int64_t *from, int64_t *to, int count,
                                                                  const int rounds) {
    const uint32_t low_mask = (uint32_t)(((int64_t)1 << permutation->low_bits) - 1);
    const uint32_t high_mask = (uint32_t)(((int64_t)1 << permutation->high_bits) - 1);
    const int shift = permutation->low_bits;
    for (int i = 0; i < count; i++) {
        uint32_t low = (uint32_t)from[i] & low_mask, high = (uint32_t)(from[i] >> shift);
#pragma GCC unroll 24
        for (int round = 0; round < rounds; round += 2) {
            high ^= hashed(low, permutation->keys[round]) & high_mask;
            low ^= hashed(high, permutation->keys[round + 1]) & low_mask;
        }
        to[i] = (int64_t)high << shift | low;
    }
}

/* to[i] = the permuted from[i] of the power of two; from and to may be one. */
static void scramble(const permutation_t *permutation, const int64_t *from, int64_t *to, int count) {
    if (permutation->rounds == ROUNDS) scramble_rounds(permutation, from, to, count, ROUNDS);
    else scramble_rounds(permutation, from, to, count, SMALL_ROUNDS);
}

/* The places of count numbers from `first` on. What falls outside walks on along its cycle. */
static void places_of(const permutation_t *permutation, int64_t first, int count, int64_t *places) {
    int64_t outside[BLOCK];
    int32_t owner[BLOCK];
    for (int i = 0; i < count; i++) places[i] = first + i;
    scramble(permutation, places, places, count);
    int left = 0;
    for (int i = 0; i < count; i++) {
        outside[left] = places[i];
        owner[left] = i;
        left += places[i] >= permutation->n;
    }
    while (left) {
        scramble(permutation, outside, outside, left);
        int still = 0;
        for (int i = 0; i < left; i++) {
            const int64_t place = outside[i];
            const int32_t whose = owner[i];
            places[whose] = place;
            outside[still] = place;
            owner[still] = whose;
            still += place >= permutation->n;
        }
        left = still;
    }
}

void dgc_places(int64_t n, int32_t key, int64_t k, int64_t *places, int threads) {
    const permutation_t permutation = permutation_of(n, key);
#pragma omp parallel for num_threads(threads) if (k >= PARALLEL_FROM && threads > 1) schedule(static)
    for (int64_t first = 0; first < k; first += BLOCK)
        places_of(&permutation, first, k - first < BLOCK ? (int)(k - first) : BLOCK, places + first);
}

/* How the entries of every tensor lie in the buffer of a payload, in bytes. Where keys do not travel, header_at
 * means nothing. */
typedef struct {
    const int64_t *k, *header_at, *values_at;
    int32_t travels;
} keyed_t;

/* weight * x at the first k places. */
static void gather(const float *x, int64_t n, int32_t key, float weight, int64_t k, float *values, int threads) {
    const permutation_t permutation = permutation_of(n, key);
#pragma omp parallel for num_threads(threads) if (k >= PARALLEL_FROM && threads > 1) schedule(static)
    for (int64_t first = 0; first < k; first += BLOCK) {
        const int count = k - first < BLOCK ? (int)(k - first) : BLOCK;
        int64_t places[BLOCK];
        places_of(&permutation, first, count, places);
        for (int i = 0; i < count; i++) __builtin_prefetch(x + places[i], 0, 0);
        for (int i = 0; i < count; i++) values[first + i] = x[places[i]] * weight;
    }
}

/* Write headers and values of every tensor into the buffer of a payload; `scaled`: n / k times the values. */
void dgc_keyed_gather_all(int64_t count, const int64_t *n, const float *const *x, const int32_t *keys,
                          const keyed_t *layout, int scaled, uint8_t *buffer, int threads) {
    EACH_TENSOR(count, layout->k, threads, {
        const int64_t k = layout->k[s];
        const int64_t header = keys[s];
        const float weight = scaled && k ? (float)((double)n[s] / (double)k) : 1.0f;
        if (layout->travels) memcpy(buffer + layout->header_at[s], &header, sizeof header);
        gather(x[s], n[s], keys[s], weight, k, (float *)(buffer + layout->values_at[s]), inner);
    })
}

/* x[place of i] += weight * value i; places are distinct, so threads do not meet. */
static void scatter(float *x, int64_t n, int32_t key, float weight, int64_t k, const float *values,
                    int threads) {
    const permutation_t permutation = permutation_of(n, key);
#pragma omp parallel for num_threads(threads) if (k >= PARALLEL_FROM && threads > 1) schedule(static)
    for (int64_t first = 0; first < k; first += BLOCK) {
        const int count = k - first < BLOCK ? (int)(k - first) : BLOCK;
        int64_t places[BLOCK];
        places_of(&permutation, first, count, places);
        for (int i = 0; i < count; i++) __builtin_prefetch(x + places[i], 1, 0);
        for (int i = 0; i < count; i++) x[places[i]] += values[first + i] * weight;
    }
}

/* x += weight * every worker's entries, in their order, for every tensor; zeroed first where `zero` says so.
 * keys, buffers: one pointer a worker. */
void dgc_keyed_scatter_all(int64_t count, const int64_t *n, float *const *x, int64_t workers,
                           const int32_t *const *keys, const keyed_t *layout, const uint8_t *const *buffers,
                           float weight, int zero, int threads) {
    EACH_TENSOR(count, n, threads, {
        if (zero) memset(x[s], 0, n[s] * sizeof **x);
        for (int64_t w = 0; w < workers; w++)
            scatter(x[s], n[s], keys[w][s], weight, layout->k[s], (const float *)(buffers[w] + layout->values_at[s]),
                    inner);
    })
}

/* x[first places] = 0 for every tensor. */
void dgc_keyed_zero_all(int64_t count, const int64_t *n, float *const *x, const int32_t *keys,
                        const keyed_t *layout, int threads) {
    EACH_TENSOR(count, n, threads, {
        const permutation_t permutation = permutation_of(n[s], keys[s]);
        for (int64_t first = 0; first < layout->k[s]; first += BLOCK) {
            const int m = layout->k[s] - first < BLOCK ? (int)(layout->k[s] - first) : BLOCK;
            int64_t places[BLOCK];
            places_of(&permutation, first, m, places);
            for (int i = 0; i < m; i++) x[s][places[i]] = 0.0f;
        }
    })
}
