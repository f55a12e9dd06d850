/* Signs packed to one bit a value, decoded, and put to the vote. kernel/signs.py says how they lie:
 * rows of 4096 values in words of 32 bits, bit p of word j of a row belonging to value p L + j, where L
 * is the row's number of words (128; fewer in the last, shorter row).
 */
#include "segments.h"
#include "words.h"

#define SIGN 0x80000000u
#define ONE 0x3f800000u

/* A bit is set where x < 0, and with `zero_too` where x = 0. Returns the bits of max|x|. */
static int32_t pack(const float *x, int64_t n, uint32_t *words, int zero_too, int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    int32_t largest = 0;
#pragma omp parallel for reduction(max : largest) num_threads(threads) if (parallel) schedule(static)
    for (int64_t start = 0; start < n; start += ROW) {
        const int64_t left = n - start, length = words_of(left);
        uint32_t row[WORDS] = {0};
        int32_t here[WORDS] = {0};
        for (int part = 0; part < BITS; part++) {
            const float *restrict values = x + start + part * length;
            const int64_t m = present(left, length, part);
            const uint32_t bit = 1u << part;
            for (int64_t j = 0; j < m; j++) {
                int32_t bits;
                memcpy(&bits, values + j, sizeof bits);
                bits &= 0x7fffffff;
                here[j] = bits > here[j] ? bits : here[j];
            }
            if (zero_too)
                for (int64_t j = 0; j < m; j++) row[j] |= values[j] <= 0.0f ? bit : 0;
            else
                for (int64_t j = 0; j < m; j++) row[j] |= values[j] < 0.0f ? bit : 0;
        }
        for (int64_t j = 0; j < length; j++) largest = here[j] > largest ? here[j] : largest;
        memcpy(words + start / BITS, row, length * sizeof *row);
    }
    return largest;
}

/* to = or += level * weight of the values whose bits are `bits >> part`. */
static inline __attribute__((always_inline)) void put(float *restrict to, const uint32_t *restrict bits,
                                                      const float *restrict high, const float *restrict low,
                                                      int64_t m, int part, float weight, const int add) {
    for (int64_t j = 0; j < m; j++) {
        const float value = ((bits[j] >> part) & 1 ? low[j] : high[j]) * weight;
        to[j] = add ? to[j] + value : value;
    }
}

static inline __attribute__((always_inline)) void put_one(float *restrict to, const uint32_t *restrict bits,
                                                          float high, float low, int64_t m, int part,
                                                          const int add) {
    uint32_t first, second;
    memcpy(&first, &high, 4), memcpy(&second, &low, 4);
    const uint32_t flip = first ^ second;
    for (int64_t j = 0; j < m; j++) {
        const uint32_t chosen = first ^ (flip & -((bits[j] >> part) & 1));
        float value;
        memcpy(&value, &chosen, 4);
        to[j] = add ? to[j] + value : value;
    }
}

/* x = or += the sum of weight * decoded over `count` payloads, in their order. In each buffer the levels and
 * the words of this tensor begin at the given bytes. Levels: of 2 columns, `columns` values of a bit that is
 * not set, then as many of a set bit (value i is of column i % columns); one level s means s and -s; none 1
 * and -1. */
static void decode(float *x, int64_t n, int64_t num_levels, int64_t levels_at, int64_t words_at, int count,
                   const uint8_t *const *buffers, float weight, int accumulate, int threads) {
    const int64_t columns = num_levels > 1 ? num_levels / 2 : 1;
    const int parallel = n >= PARALLEL_FROM && threads > 1;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t start = 0; start < n; start += ROW) {
        const int64_t left = n - start, length = words_of(left);
        for (int source = 0; source < count; source++) {
            const uint32_t *bits = (const uint32_t *)(buffers[source] + words_at) + start / BITS;
            const float *levels = (const float *)(buffers[source] + levels_at);
            const float one = num_levels ? levels[0] : 1.0f, pair[2] = {one, -one};
            const float *high = num_levels > 1 ? levels : pair, *low = high + columns;
            const int add = accumulate || source;
            float repeated[2][2 * WORDS]; /* levels of few columns, one after another */
            if (columns > 1 && columns < WORDS)
                for (int64_t i = 0; i < length + columns; i++)
                    repeated[0][i] = high[i % columns], repeated[1][i] = low[i % columns];
            for (int part = 0; part < BITS; part++) {
                const int64_t m = present(left, length, part);
                float *to = x + start + part * length;
                if (columns == 1) {
                    if (add) put_one(to, bits, high[0] * weight, low[0] * weight, m, part, 1);
                    else put_one(to, bits, high[0] * weight, low[0] * weight, m, part, 0);
                    continue;
                }
                int64_t column = (start + part * length) % columns;
                for (int64_t j = 0; j < m;) {
                    const int few = columns < WORDS;
                    const float *h = few ? repeated[0] : high, *l = few ? repeated[1] : low;
                    const int64_t run = few || m - j < columns - column ? m - j : columns - column;
                    if (add) put(to + j, bits + j, h + column, l + column, run, part, weight, 1);
                    else put(to + j, bits + j, h + column, l + column, run, part, weight, 0);
                    j += run;
                    column = 0;
                }
            }
        }
    }
}

/* x = the sign of the sum of signs of `count` payloads, 0 at a tie. Counted 32 values at a time: the
 * number of set bits is kept as `digits` words, one a binary digit. */
static void vote(float *x, int64_t n, int64_t words_at, int count, const uint8_t *const *buffers, int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1, half = count / 2;
    int digits = 0;
    while (count >> digits) digits++;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t start = 0; start < n; start += ROW) {
        const int64_t left = n - start, length = words_of(left);
        uint32_t sums[BITS][WORDS];
        memset(sums, 0, digits * sizeof sums[0]);
        for (int source = 0; source < count; source++) {
            uint32_t carry[WORDS];
            memcpy(carry, (const uint32_t *)(buffers[source] + words_at) + start / BITS, length * sizeof *carry);
            for (int digit = 0; digit < digits && (source + 1) >> digit; digit++) {
                uint32_t *restrict sum = sums[digit];
                for (int64_t j = 0; j < length; j++) {
                    const uint32_t next = sum[j] & carry[j];
                    sum[j] ^= carry[j];
                    carry[j] = next;
                }
            }
        }
        uint32_t more[WORDS], equal[WORDS]; /* more than half, exactly half of the bits are set */
        for (int64_t j = 0; j < length; j++) more[j] = 0, equal[j] = 0xffffffffu;
        for (int digit = digits - 1; digit >= 0; digit--) {
            const uint32_t *restrict sum = sums[digit];
            if (half >> digit & 1)
                for (int64_t j = 0; j < length; j++) equal[j] &= sum[j];
            else
                for (int64_t j = 0; j < length; j++) more[j] |= equal[j] & sum[j], equal[j] &= ~sum[j];
        }
        const uint32_t can_tie = count % 2 == 0 ? 0xffffffffu : 0;
        for (int part = 0; part < BITS; part++) {
            const int64_t m = present(left, length, part);
            float *to = x + start + part * length;
            for (int64_t j = 0; j < m; j++) {
                const uint32_t tie = (equal[j] & can_tie) >> part & 1;
                const uint32_t bits = (more[j] << (BITS - 1 - part) & SIGN) | (ONE & (tie - 1));
                memcpy(to + j, &bits, sizeof bits);
            }
        }
    }
}

/* The same for all tensors of a batch. Packing returns whether no value is a NaN or an infinity. */
int dgc_pack_signs_all(int64_t count, const int64_t *n, const float *const *x, const int64_t *words_at,
                       uint8_t *buffer, int zero_too, int threads) {
    EACH_TENSOR(count, n, threads,
                bad |= pack(x[s], n[s], (uint32_t *)(buffer + words_at[s]), zero_too, inner) >= INFINITE)
    return !bad;
}

void dgc_decode_signs_all(int64_t count, const int64_t *n, float *const *x, const int64_t *num_levels,
                          const int64_t *levels_at, const int64_t *words_at, int sources,
                          const uint8_t *const *buffers, float weight, int accumulate, int threads) {
    EACH_TENSOR(count, n, threads,
                decode(x[s], n[s], num_levels[s], levels_at[s], words_at[s], sources, buffers, weight,
                       accumulate, inner))
}

void dgc_vote_all(int64_t count, const int64_t *n, float *const *x, const int64_t *words_at, int sources,
                  const uint8_t *const *buffers, int threads) {
    EACH_TENSOR(count, n, threads, vote(x[s], n[s], words_at[s], sources, buffers, inner))
}
