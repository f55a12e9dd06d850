/* Choose entries of a tensor on the CPU. The reference, and the fallback with equal results, is
 * kernel/select.py. What is compared are keys: the bits of a float32 without its sign, which order as
 * the magnitudes do (a NaN lies above infinity). Ties go to the lower index.
 *
 * The k largest of n. A sample gives two brackets around the k-th key. One pass over the tensor packs
 * what lies above the lower bracket, piece by piece, into scratch (the candidates). Histograms of
 * the candidates between the brackets give the k-th key exactly; then the candidates are counted and
 * written, again piece by piece, so that indices ascend. Where the sample misled (too few candidates, or
 * too many for the scratch) histograms of the whole tensor find the k-th key: a few passes more, the
 * same answer.
 */
#include "segments.h"

#include <omp.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define PIECE 8192   /* values a thread takes at a time: what it packs stays in cache */
#define BINS 4096    /* of a histogram between two brackets */
#define SAMPLES 65536
#define SMALL 1024   /* values; below, a sample saves nothing */
#define SAMPLE_BINS 16384

/* Some values in order, and where they stand in the tensor: at base + offsets[i], or base + i. */
typedef struct {
    const float *values;
    const int32_t *offsets;
    int64_t base;
    int64_t out; /* where the first one that is chosen goes */
    int32_t count, above, equal, ties; /* ties: how many of the equal ones are chosen */
} piece_t;

static inline int32_t key_of(const float *x) {
    int32_t bits;
    memcpy(&bits, x, sizeof bits);
    return bits & 0x7fffffff;
}

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t num_pieces(int64_t n) { return (n + PIECE - 1) / PIECE; }

/* Pack the values with a key beyond `beyond`, and their places; both have room for m + 16. */
static int64_t collect(const float *x, int64_t m, int32_t beyond, float *values, int32_t *places) {
    int64_t found = 0, i = 0;
#if defined(__AVX512F__)
    const __m512i limit = _mm512_set1_epi32(beyond), magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i step = _mm512_set1_epi32(16);
    __m512i place = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (; i < m; i += 16) {
        const __mmask16 valid = m - i >= 16 ? 0xffff : (__mmask16)((1u << (m - i)) - 1);
        const __m512i bits = _mm512_maskz_loadu_epi32(valid, x + i);
        const __mmask16 chosen =
            _mm512_mask_cmpgt_epi32_mask(valid, _mm512_and_si512(bits, magnitude), limit);
        if (chosen) {
            _mm512_storeu_si512(values + found, _mm512_maskz_compress_epi32(chosen, bits));
            _mm512_storeu_si512(places + found, _mm512_maskz_compress_epi32(chosen, place));
            found += __builtin_popcount(chosen);
        }
        place = _mm512_add_epi32(place, step);
    }
#else
    for (; i < m; i += 32) { /* most blocks hold nothing: look for the largest, which is a vector loop */
        const int64_t end = smaller(i + 32, m);
        if (largest_magnitude(x + i, end - i) <= beyond) continue;
        for (int64_t j = i; j < end; j++) {
            values[found] = x[j];
            places[found] = (int32_t)j;
            found += key_of(x + j) > beyond;
        }
    }
#endif
    return found;
}

static inline piece_t piece_of(const float *values, const int32_t *offsets, int64_t base, int64_t count) {
    return (piece_t){.values = values, .offsets = offsets, .base = base, .count = (int32_t)count};
}

/* Cut a tensor into pieces. */
static void cut(const float *x, int64_t n, piece_t *pieces) {
    for (int64_t base = 0; base < n; base += PIECE)
        pieces[base / PIECE] = piece_of(x + base, 0, base, smaller(PIECE, n - base));
}

/* Pack all values beyond `beyond`, as pieces. How many there are; above `capacity` they are not all there. */
static int64_t pack_candidates(const float *x, int64_t n, int32_t beyond, piece_t *pieces, float *values,
                               int32_t *offsets, int64_t capacity, int threads) {
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    int64_t used = 0;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t p = 0; p < num_pieces(n); p++) {
        float own_values[PIECE + 16];
        int32_t own_offsets[PIECE + 16];
        const int64_t base = p * PIECE;
        const int64_t count = collect(x + base, smaller(PIECE, n - base), beyond, own_values, own_offsets);
        int64_t at;
#pragma omp atomic capture
        { at = used; used += count; }
        pieces[p] = piece_of(values + at, offsets + at, base, count);
        if (at + count <= capacity) {
            memcpy(values + at, own_values, count * sizeof *values);
            memcpy(offsets + at, own_offsets, count * sizeof *offsets);
        }
    }
    return used;
}

/* Count keys in bins of 2^shift from `from`; keys from from + width on are counted as `above`. */
static int64_t tally(const piece_t *pieces, int64_t num, int32_t from, int64_t width, int shift,
                     int64_t *bins, int parallel, int threads) {
    int64_t above = 0;
    const uint32_t span = (uint32_t)width;
    const int used = (int)((width - 1) >> shift) + 1;
    memset(bins, 0, used * sizeof *bins);
#pragma omp parallel num_threads(threads) if (parallel) reduction(+ : above)
    {
        int64_t own[BINS];
        memset(own, 0, used * sizeof *own);
#pragma omp for schedule(static)
        for (int64_t p = 0; p < num; p++) {
            const float *x = pieces[p].values;
            const int32_t count = pieces[p].count;
            int32_t i = 0, beyond = 0;
#if defined(__AVX512F__)
            const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), first = _mm512_set1_epi32(from);
            const __m512i wide = _mm512_set1_epi32((int32_t)span);
            for (; i + 16 <= count; i += 16) {
                const __m512i keys = _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude);
                const __m512i apart = _mm512_sub_epi32(keys, first);
                __mmask16 inside = _mm512_cmplt_epu32_mask(apart, wide);
                beyond += __builtin_popcount(_mm512_cmpge_epi32_mask(apart, _mm512_setzero_si512()) & ~inside);
                if (!inside) continue;
                int32_t place[16];
                _mm512_storeu_si512(place, _mm512_srl_epi32(apart, _mm_cvtsi32_si128(shift)));
                for (; inside; inside &= inside - 1) own[place[__builtin_ctz(inside)]]++;
            }
#endif
            for (; i < count; i++) {
                const int32_t apart = key_of(x + i) - from;
                if ((uint32_t)apart < span)
                    own[apart >> shift]++;
                else
                    beyond += apart >= 0;
            }
            above += beyond;
        }
#pragma omp critical
        for (int i = 0; i < used; i++) bins[i] += own[i];
    }
    return above;
}

/* The k-th largest key of all values in the pieces, if it lies in [from, from + width): then 1, with the
 * number of values of that key that belong to the k largest. */
static int find_kth(const piece_t *pieces, int64_t num, int64_t k, int32_t from, int64_t width, int parallel,
                    int threads, int32_t *kth, int64_t *ties) {
    int64_t bins[BINS];
    const int bits = num > 8 ? 12 : 8; /* of the number of bins */
    int shift = 0;
    while ((width - 1) >> shift >= 1 << bits) shift++;
    int64_t rank = k - tally(pieces, num, from, width, shift, bins, parallel, threads);
    for (;;) {
        int bin = (int)((width - 1) >> shift);
        if (rank < 1) return 0;
        for (; bin >= 0 && rank > bins[bin]; bin--) rank -= bins[bin];
        if (bin < 0) return 0;
        from += bin << shift;
        if (shift == 0) {
            *kth = from;
            *ties = rank;
            return 1;
        }
        width = smaller((int64_t)1 << shift, width - ((int64_t)bin << shift)); /* the last bin may be cut */
        shift = shift > bits ? shift - bits : 0;
        tally(pieces, num, from, width, shift, bins, parallel, threads);
    }
}

/* The same of at most SMALL values, a byte of the key after another. */
static void find_kth_of_few(const float *x, int64_t n, int64_t k, int32_t *kth, int64_t *ties) {
    int32_t keys[SMALL], found = 0;
    for (int64_t i = 0; i < n; i++) keys[i] = key_of(x + i);
    for (int shift = 24; shift >= 0; shift -= 8) {
        int32_t bins[256] = {0}, byte = 255;
        int64_t left = 0;
        for (int64_t i = 0; i < n; i++) bins[keys[i] >> shift & 255]++;
        for (; k > bins[byte]; byte--) k -= bins[byte];
        for (int64_t i = 0; i < n; i++) {
            keys[left] = keys[i];
            left += (keys[i] >> shift & 255) == byte;
        }
        n = left;
        found |= byte << shift;
    }
    *kth = found;
    *ties = k;
}

/* Write the chosen values of one piece and their places in the tensor, through `through` where given. */
static void write_piece(const piece_t *piece, int32_t kth, const void *through, int wide, float *values,
                        void *indices) {
    float own_values[PIECE + 16];
    int32_t own[PIECE + 16];
    const int32_t beyond = piece->ties == piece->equal ? kth - 1 : kth;
    int64_t count;
    if (piece->ties == 0 || piece->ties == piece->equal) {
        count = collect(piece->values, piece->count, beyond, own_values, own);
    } else {
        int32_t left = piece->ties;
        count = 0;
        for (int32_t i = 0; i < piece->count; i++) {
            const int32_t key = key_of(piece->values + i);
            if (key > kth || (key == kth && left-- > 0)) {
                own_values[count] = piece->values[i];
                own[count++] = i;
            }
        }
    }
    if (piece->offsets)
        for (int64_t i = 0; i < count; i++) own[i] = piece->offsets[own[i]];
    memcpy(values + piece->out, own_values, count * sizeof *values);
    if (wide) {
        int64_t *to = (int64_t *)indices + piece->out;
        const int64_t *from = through ? (const int64_t *)through + piece->base : 0;
        for (int64_t i = 0; i < count; i++) to[i] = from ? from[own[i]] : piece->base + own[i];
    } else {
        int32_t *to = (int32_t *)indices + piece->out;
        const int32_t *from = through ? (const int32_t *)through + piece->base : 0;
        if (from)
            for (int64_t i = 0; i < count; i++) to[i] = from[own[i]];
        else
            for (int64_t i = 0; i < count; i++) to[i] = (int32_t)piece->base + own[i];
    }
}

/* How many keys of each piece are above `limit`, and how many equal to it; of all pieces too. */
static void weigh(piece_t *pieces, int64_t num, int32_t limit, int64_t *all_above, int64_t *all_equal,
                  int parallel, int threads) {
    int64_t above = 0, equal = 0;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static) reduction(+ : above, equal)
    for (int64_t p = 0; p < num; p++) {
        int32_t own_above = 0, own_equal = 0;
        const float *x = pieces[p].values;
        for (int32_t i = 0; i < pieces[p].count; i++) {
            own_above += key_of(x + i) > limit;
            own_equal += key_of(x + i) == limit;
        }
        above += pieces[p].above = own_above;
        equal += pieces[p].equal = own_equal;
    }
    *all_above = above;
    *all_equal = equal;
}

/* Write all values above `limit`, and the first `ties` of those equal to it, from weighed pieces. */
static void write_all(piece_t *pieces, int64_t num, int32_t limit, int64_t ties, const void *through, int wide,
                      float *values, void *indices, int parallel, int threads) {
    int64_t out = 0;
    for (int64_t p = 0; p < num; p++) {
        pieces[p].out = out;
        pieces[p].ties = (int32_t)smaller(pieces[p].equal, ties);
        ties -= pieces[p].ties;
        out += pieces[p].above + pieces[p].ties;
    }
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t p = 0; p < num; p++)
        if (pieces[p].above + pieces[p].ties) write_piece(pieces + p, limit, through, wide, values, indices);
}

/* How many values are looked at beforehand. */
static int64_t num_samples(int64_t n) { return larger(256, smaller(SAMPLES, n / 16)); }

/* The rank in the sample that lies surely (5 standard deviations) below the k-th largest of all, and the
 * one that lies surely above. */
static int64_t rank_below(int64_t n, int64_t k, int64_t samples) {
    const double rank = (double)k / (double)n * (double)samples;
    return (int64_t)(rank + 4.0 + 5.0 * sqrt(rank * (1.0 - (double)k / (double)n)));
}

static int64_t rank_above(int64_t n, int64_t k, int64_t samples) {
    const double rank = (double)k / (double)n * (double)samples;
    return (int64_t)(rank - 4.0 - 5.0 * sqrt(rank * (1.0 - (double)k / (double)n)));
}

/* A histogram of the keys at hashed places, one in each of `samples` equal parts of the tensor. */
static void sample(const float *x, int64_t n, int64_t samples, int shift, int32_t *bins, int threads) {
    const int parallel = samples >= 16384 && threads > 1, used = (0x7fffffff >> shift) + 1;
    memset(bins, 0, used * sizeof *bins);
#pragma omp parallel num_threads(threads) if (parallel)
    {
        int32_t own[SAMPLE_BINS];
        memset(own, 0, used * sizeof *own);
        const double stride = (double)n / (double)samples;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < samples; i++) {
            const double within = (double)hashed((uint32_t)i, 0x9E3779B9u) * 0x1p-32;
            const int64_t at = smaller(n - 1, (int64_t)(((double)i + within) * stride));
            own[key_of(x + at) >> shift]++;
        }
#pragma omp critical
        for (int i = 0; i < used; i++) bins[i] += own[i];
    }
}

/* The lower edge of the bin that holds this rank of the sample, counted from the largest (from 1). */
static int64_t edge(const int32_t *bins, int shift, int64_t rank) {
    int bin = 0x7fffffff >> shift;
    for (; bin > 0 && rank > bins[bin]; bin--) rank -= bins[bin];
    return (int64_t)bin << shift;
}

/* How much of the scratch holds pieces, and how many candidates the rest has room for. */
static int64_t candidates_for(int64_t n, int64_t k) {
    if (n <= SMALL || k > n / 6) return 0; /* the tensor itself is read again instead */
    const int64_t samples = num_samples(n);
    return smaller(n, n / samples * (rank_below(n, k, samples) * 4 / 3 + 16) + PIECE);
}

/* Bytes of scratch to find the k largest of n. */
int64_t dgc_topk_scratch(int64_t n, int64_t k) {
    return n <= SMALL ? 0 : num_pieces(n) * (int64_t)sizeof(piece_t) + 8 * candidates_for(n, k);
}

/* Where the k-th key most likely is: in [low, high). */
typedef struct {
    int64_t low, high;
} bracket_t;

static bracket_t bracket_of(const int32_t *bins, int shift, int64_t n, int64_t k, int64_t samples) {
    const int64_t rank = rank_above(n, k, samples);
    return (bracket_t){
        edge(bins, shift, rank_below(n, k, samples)),
        rank < 1 ? (int64_t)1 << 31 : edge(bins, shift, rank) + ((int64_t)1 << shift),
    };
}

/* One rung: the k largest of x[n], in order of place (1 <= k < n). */
static void choose(const float *x, int64_t n, int64_t k, bracket_t bracket, int64_t capacity,
                   const void *through, int wide, float *values, void *indices, void *scratch, int threads) {
    piece_t only, *pieces = n <= SMALL ? &only : scratch;
    const int64_t num = num_pieces(n), width = bracket.high - bracket.low;
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    const int32_t low = (int32_t)bracket.low;
    int found = 0;
    int32_t kth = 0;
    int64_t ties = 0;
    if (n <= SMALL) {
        cut(x, n, pieces);
        find_kth_of_few(x, n, k, &kth, &ties);
        found = 1;
    } else if (capacity == 0) {
        cut(x, n, pieces);
        found = find_kth(pieces, num, k, low, width, parallel, threads, &kth, &ties);
    } else {
        float *own_values = (float *)(pieces + num);
        int32_t *own_offsets = (int32_t *)(own_values + capacity);
        const int64_t count =
            pack_candidates(x, n, low - 1, pieces, own_values, own_offsets, capacity, threads);
        found = count >= k && count <= capacity &&
                find_kth(pieces, num, k, low, width, parallel, threads, &kth, &ties);
    }
    if (!found) {
        cut(x, n, pieces);
        find_kth(pieces, num, k, 0, (int64_t)1 << 31, parallel, threads, &kth, &ties);
    }
    int64_t above, equal;
    weigh(pieces, num, kth, &above, &equal, parallel, threads);
    write_all(pieces, num, kth, ties, through, wide, values, indices, parallel, threads);
}

/* Rungs of a ladder: the ks[0] largest by magnitude of x[n], of those the ks[1] largest, and so on, in
 * order of place; n > ks[0] >= ks[1] ... >= 1. One sample serves all rungs, and only the first reads x.
 * through: the indices to give for the places 0, 1, ..., or NULL for the places themselves. wide: indices
 * are 64 bits. */
void dgc_topk(const float *x, int64_t n, int rungs, const int64_t *ks, const void *through, int wide,
              float *const *values, void *const *indices, void *scratch, int threads) {
    int32_t bins[SAMPLE_BINS];
    const int64_t samples = num_samples(n), all = n;
    const int shift = samples >= 16384 ? 17 : 20;
    if (n > SMALL) sample(x, n, samples, shift, bins, threads);
    for (int rung = 0; rung < rungs; rung++) {
        const int64_t k = ks[rung];
        if (k == n) {
            memcpy(values[rung], x, k * sizeof *x);
            memcpy(indices[rung], through, k * (wide ? 8 : 4));
        } else {
            const bracket_t bracket = n <= SMALL ? (bracket_t){0, 0} : bracket_of(bins, shift, all, k, samples);
            choose(x, n, k, bracket, candidates_for(all, k), through, wide, values[rung], indices[rung],
                   scratch, threads);
        }
        x = values[rung];
        through = indices[rung];
        n = k;
    }
}

/* Every k-th of a tensor, down a ladder: rungs that keep all of it, then the others. */
static void topk_of_one(const float *x, int64_t n, int rungs, const int64_t *ks, float *const *values,
                        int32_t *const *indices, void *scratch, int threads) {
    int rung = 0;
    for (; rung < rungs && ks[rung] >= n; rung++) {
        memcpy(values[rung], x, n * sizeof *x);
        for (int64_t i = 0; i < n; i++) indices[rung][i] = (int32_t)i;
    }
    if (rung < rungs)
        dgc_topk(x, n, rungs - rung, ks + rung, 0, 0, values + rung, (void *const *)(indices + rung), scratch, threads);
}

/* The same of every tensor of a batch (with 32-bit places). ks: rungs of each tensor; values, indices: of all
 * tensors, rung after rung; of tensor s and this rung the first one stands at starts[s * rungs + rung].
 * scratch: room for a large tensor, or `small` bytes a thread. */
void dgc_topk_all(int64_t count, const int64_t *n, const float *const *x, int rungs, const int64_t *ks,
                  float *values, int32_t *indices, const int64_t *starts, uint8_t *scratch, int64_t small,
                  int threads) {
    EACH_TENSOR(count, n, threads, {
        float *own_values[rungs];
        int32_t *own_indices[rungs];
        for (int rung = 0; rung < rungs; rung++) {
            own_values[rung] = values + starts[s * rungs + rung];
            own_indices[rung] = indices + starts[s * rungs + rung];
        }
        uint8_t *own = inner < threads ? scratch + omp_get_thread_num() * small : scratch;
        topk_of_one(x[s], n[s], rungs, ks + s * rungs, own_values, own_indices, own, inner);
    })
}

/* Where the scratch of each tensor begins if so many values are to be packed, and how large all of it is. */
int64_t dgc_reach_scratch(int64_t count, const int64_t *n, const int64_t *capacity, int64_t *starts) {
    int64_t size = 0;
    for (int64_t s = 0; s < count; s++) {
        starts[s] = size;
        size += num_pieces(n[s]) * (int64_t)sizeof(piece_t) + 8 * capacity[s];
    }
    return size;
}

/* How many keys of each tensor are above its limit, and how many equal to it. Values that reach the limit
 * are packed into scratch, where there is room for them. */
void dgc_reach_all(int64_t count, const int64_t *n, const float *const *x, const int32_t *limits,
                   uint8_t *scratch, const int64_t *starts, const int64_t *capacity, int64_t *above,
                   int64_t *equal, int threads) {
    EACH_TENSOR(count, n, threads, {
        piece_t *pieces = (piece_t *)(scratch + starts[s]);
        const int64_t num = num_pieces(n[s]), room = capacity[s];
        float *values = (float *)(pieces + num);
        int32_t *offsets = (int32_t *)(values + room);
        if (pack_candidates(x[s], n[s], limits[s] - 1, pieces, values, offsets, room, inner) > room)
            cut(x[s], n[s], pieces);
        weigh(pieces, num, limits[s], above + s, equal + s, n[s] >= PARALLEL_FROM && inner > 1, inner);
    })
}

/* Write what `dgc_reach_all` has found: all above the limit, and the first `ties` of those equal to it.
 * through: indices to give for the places of a tensor, from through_starts, or NULL; wide: indices are 64
 * bits. Those of tensor s go to to[s]. */
void dgc_reach_write_all(int64_t count, const int64_t *n, const int32_t *limits, const int64_t *ties,
                         uint8_t *scratch, const int64_t *starts, const uint8_t *through,
                         const int64_t *through_starts, int wide, float *values, uint8_t *indices,
                         const int64_t *to, int threads) {
    const int64_t width = wide ? 8 : 4;
    EACH_TENSOR(count, n, threads, {
        const uint8_t *own = through ? through + through_starts[s] * width : 0;
        write_all((piece_t *)(scratch + starts[s]), num_pieces(n[s]), limits[s], ties[s], own, wide,
                  values + to[s], indices + to[s] * width, n[s] >= PARALLEL_FROM && inner > 1, inner);
    })
}

/* The bits of the k-th largest magnitude, k from 1: bins of 11, 10 and 10 bits. */
static int32_t kth_of(const float *x, int64_t n, int64_t k) {
    static const int shifts[3] = {20, 10, 0}, sizes[3] = {2048, 1024, 1024};
    int32_t found = 0;
    for (int level = 0; level < 3; level++) {
        int64_t bins[4][2048];
        const int shift = shifts[level], size = sizes[level];
        memset(bins, 0, sizeof bins);
        if (level == 0) {
            int64_t i = 0; /* four sets of bins: equal neighbours do not wait for each other */
            for (; i + 4 <= n; i += 4)
                for (int lane = 0; lane < 4; lane++) bins[lane][key_of(x + i + lane) >> shift]++;
            for (; i < n; i++) bins[0][key_of(x + i) >> shift]++;
        } else {
            const int above = shifts[level - 1];
            for (int64_t i = 0; i < n; i++) {
                const int32_t bits = key_of(x + i);
                if (bits >> above == found >> above) bins[i & 3][(bits >> shift) & (size - 1)]++;
            }
        }
        for (int bin = size - 1; bin >= 0; bin--) {
            const int64_t here = bins[0][bin] + bins[1][bin] + bins[2][bin] + bins[3][bin];
            if (here >= k) {
                found |= bin << shift;
                break;
            }
            k -= here;
        }
    }
    return found;
}

/* The bits of the ks[s]-th largest magnitude of each tensor, ks[s] from 1 to n[s]; 0 of an empty one. */
void dgc_kth_all(int64_t count, const int64_t *n, const float *const *x, const int64_t *ks, int32_t *found,
                 int threads) {
    EACH_TENSOR(count, n, threads, {
        int64_t ties;
        if (n[s] == 0)
            found[s] = 0;
        else if (n[s] <= SMALL)
            find_kth_of_few(x[s], n[s], ks[s], found + s, &ties);
        else
            found[s] = kth_of(x[s], n[s], ks[s]);
    })
}
