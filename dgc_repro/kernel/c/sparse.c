/* Code the places of chosen entries, and add entries to a tensor, on the CPU. The reference, and the
 * fallback with equal bits, is kernel/sparse.py, which says how places are coded.
 *
 * What arrived may be broken: nothing is written outside the tensor whatever the codes say, and a
 * payload whose codes do not name as many places as it has values is reported.
 */
#include "segments.h"

enum { INT32, INT64, DELTA16, BITMAP };

#define BLOCK 16384     /* values of the tensor that stay in cache while all payloads are added to them */
#define BATCH 256       /* entries decoded at a time */
#define ESCAPE 65535    /* as a gap: go on by so many places, no entry */

typedef struct {
    const void *places;
    const float *values; /* one for all entries where `shared` says so */
    int64_t k;
    int64_t num_codes; /* of DELTA16 */
    int32_t coding, shared;
} sparse_t;

/* How far a payload has been read: entries, codes (or bits), and the place of the last entry. */
typedef struct {
    int64_t entry, code, last;
} cursor_t;

static inline int64_t at_least(int64_t a, int64_t b) { return a < b ? b : a; }
static inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t place(const sparse_t *source, int64_t i) {
    return source->coding == INT32 ? ((const int32_t *)source->places)[i]
                                   : ((const int64_t *)source->places)[i];
}

static inline uint64_t word_at(const sparse_t *source, int64_t bit, int64_t n) {
    uint64_t word = 0; /* the bitmap is filled up to 4 bytes only */
    memcpy(&word, (const uint8_t *)source->places + bit / 8, at_most(8, (n - bit + 31) / 32 * 4));
    return word;
}

/* The cursor before the first entry whose place is at least `start`, a multiple of 64. */
static cursor_t seek(const sparse_t *source, int64_t start, int64_t n) {
    cursor_t cursor = {0, 0, -1};
    if (start == 0) return cursor;
    if (source->coding == BITMAP) {
        for (int64_t bit = 0; bit < start; bit += 64) cursor.entry += __builtin_popcountll(word_at(source, bit, n));
        cursor.code = start;
    } else if (source->coding == DELTA16) {
        const uint16_t *codes = source->places;
        while (cursor.code < source->num_codes) {
            const int64_t next = cursor.last + codes[cursor.code] + (codes[cursor.code] != ESCAPE);
            if (next >= start) break;
            cursor.entry += codes[cursor.code++] != ESCAPE;
            cursor.last = next;
        }
    } else {
        int64_t end = source->k;
        while (cursor.entry < end) {
            const int64_t middle = cursor.entry + (end - cursor.entry) / 2;
            if (place(source, middle) < start)
                cursor.entry = middle + 1;
            else
                end = middle;
        }
    }
    return cursor;
}

/* The next places below `end`, at most BATCH of them. The entries begin at the cursor's before the call. */
static int next_places(const sparse_t *source, cursor_t *cursor, int64_t end, int64_t n, int64_t *places) {
    int found = 0;
    if (source->coding == BITMAP) {
        while (cursor->code < end && found <= BATCH - 64) {
            for (uint64_t word = word_at(source, cursor->code, n); word; word &= word - 1) {
                const int64_t bit = cursor->code + __builtin_ctzll(word);
                if (bit < end) places[found++] = bit;
            }
            cursor->code += 64;
        }
    } else if (source->coding == DELTA16) {
        const uint16_t *codes = source->places;
        int64_t code = cursor->code, last = cursor->last;
        while (code < source->num_codes && found < BATCH) {
            const int64_t next = last + codes[code] + (codes[code] != ESCAPE);
            if (next >= end) break;
            places[found] = last = next;
            found += codes[code++] != ESCAPE;
        }
        cursor->code = code;
        cursor->last = last;
    } else if (source->coding == INT32) {
        const int32_t *from = (const int32_t *)source->places + cursor->entry;
        const int64_t left = at_most(BATCH, source->k - cursor->entry);
        int64_t last = cursor->entry ? from[-1] : -1; /* what does not ascend ends it: broken */
        for (; found < left && from[found] < end && from[found] > last; found++) places[found] = last = from[found];
    } else {
        const int64_t *from = (const int64_t *)source->places + cursor->entry;
        const int64_t left = at_most(BATCH, source->k - cursor->entry);
        int64_t last = cursor->entry ? from[-1] : -1; /* what does not ascend ends it: broken */
        for (; found < left && from[found] < end && from[found] > last; found++) places[found] = last = from[found];
    }
    cursor->entry += found;
    return found;
}

/* Values first .. first + count - 1; beyond the end of a broken payload they are zero. */
static void next_values(const sparse_t *source, int64_t first, int count, float *values) {
    const int valid = (int)at_most(count, at_least(0, source->k - first));
    if (source->shared)
        for (int i = 0; i < valid; i++) values[i] = source->values[0];
    else
        memcpy(values, source->values + first, valid * sizeof *values);
    for (int i = valid; i < count; i++) values[i] = 0;
}

/* x[0..n) += weight * every payload, in their order, after zeroing it where `zero` says so. The first
 * payload whose codes do not name its k places, or -1. */
static int scatter(float *x, int64_t n, int count, const sparse_t *sources, float weight, int zero, int threads) {
    const int64_t num_blocks = (n + BLOCK - 1) / BLOCK;
    const int parts = n >= PARALLEL_FROM && threads > 1 ? (int)at_most(threads, num_blocks) : 1;
    int64_t placed[count];
    for (int s = 0; s < count; s++) placed[s] = 0;
#pragma omp parallel for num_threads(parts) if (parts > 1) schedule(static, 1)
    for (int part = 0; part < parts; part++) {
        const int64_t start = num_blocks * part / parts * BLOCK;
        const int64_t end = at_most(n, num_blocks * (part + 1) / parts * BLOCK);
        cursor_t cursors[count];
        int64_t own[count];
        for (int s = 0; s < count; s++) {
            cursors[s] = seek(sources + s, start, n);
            own[s] = 0;
        }
        for (int64_t low = start; low < end; low += BLOCK) {
            const int64_t high = at_most(end, low + BLOCK);
            if (zero) memset(x + low, 0, (high - low) * sizeof *x);
            for (int s = 0; s < count; s++) {
                int64_t places[BATCH];
                float values[BATCH];
                for (;;) {
                    const int64_t first = cursors[s].entry, code = cursors[s].code;
                    const int found = next_places(sources + s, cursors + s, high, n, places);
                    next_values(sources + s, first, found, values);
                    for (int i = 0; i < found; i++) {
                        if (places[i] < low) continue; /* not ascending: broken */
                        x[places[i]] += values[i] * weight;
                        own[s]++;
                    }
                    if (!found && cursors[s].code == code) break;
                }
            }
        }
        for (int s = 0; s < count; s++) {
#pragma omp atomic
            placed[s] += own[s];
        }
    }
    for (int s = 0; s < count; s++)
        if (placed[s] != sources[s].k) return s;
    return -1;
}

/* Places (64 bits where `wide`) and values of the k entries. Whether there are exactly k. */
static int decode(const sparse_t *source, int64_t n, int wide, void *indices, float *values) {
    cursor_t cursor = {0, 0, -1};
    int64_t places[BATCH], total = 0;
    for (;;) {
        const int64_t code = cursor.code;
        const int found = next_places(source, &cursor, n, n, places);
        if (total + found > source->k) return 0;
        next_values(source, total, found, values + total);
        for (int i = 0; i < found; i++) {
            if (places[i] < 0) return 0;
            if (wide)
                ((int64_t *)indices)[total++] = places[i];
            else
                ((int32_t *)indices)[total++] = (int32_t)places[i];
        }
        if (!found && cursor.code == code) return total == source->k;
    }
}

/* Code k ascending places of n: `codes` has room for exactly what the coding takes, in whole words of 4
 * bytes (num_words). */
static void encode_places(const void *indices, int wide, int64_t k, int64_t n, int coding, void *codes,
                          int64_t num_words, int threads) {
    const sparse_t source = {indices, 0, k, 0, wide ? INT64 : INT32, 0};
    if (coding == DELTA16) {
        uint16_t *to = codes, *const end = to + 2 * num_words; /* places that do not ascend need more */
        int64_t last = -1;
        for (int64_t i = 0; i < k && to < end; i++) {
            const int64_t here = place(&source, i);
            int64_t gap = here - last - 1;
            for (; gap >= ESCAPE && to < end - 1; gap -= ESCAPE) *to++ = ESCAPE;
            *to++ = (uint16_t)gap;
            last = here;
        }
        memset(to, 0xff, (uint8_t *)end - (uint8_t *)to);
        return;
    }
    uint32_t *words = codes;
    const int parts = n >= PARALLEL_FROM && threads > 1 ? threads : 1;
#pragma omp parallel for num_threads(parts) if (parts > 1) schedule(static, 1)
    for (int part = 0; part < parts; part++) {
        const int64_t from = num_words * part / parts, end = num_words * (part + 1) / parts;
        int64_t i = seek(&source, from * 32, n).entry;
        memset(words + from, 0, (end - from) * sizeof *words);
        for (; i < k; i++) {
            const int64_t here = place(&source, i);
            if (here >= end * 32) break;
            words[here / 32] |= (uint32_t)1 << (here & 31);
        }
    }
}

/* How the tensors of a batch lie in the buffer of a payload: for each tensor, in bytes, and in numbers. */
typedef struct {
    const int64_t *k, *header_at, *words_at, *values_at, *num_words, *headers;
    const int32_t *coding;
} layout_t;

static sparse_t source_of(const layout_t *layout, int64_t s, const uint8_t *buffer, int shared) {
    return (sparse_t){
        buffer + layout->words_at[s], (const float *)(buffer + layout->values_at[s]), layout->k[s],
        layout->coding[s] == DELTA16 ? 2 * layout->num_words[s] : 0, layout->coding[s], shared,
    };
}

/* x += weight * every worker's entries, in their order, for every tensor of a batch; zeroed first where
 * `zero` says so. layouts, buffers: one a worker. Whether a payload is broken: another header than announced,
 * or places that are none. */
int dgc_scatter_all(int64_t count, const int64_t *n, float *const *x, int64_t workers,
                        const layout_t *layouts, const uint8_t *const *buffers, int shared, float weight,
                        int zero, int threads) {
    EACH_TENSOR(count, n, threads, {
        sparse_t sources[workers];
        int wrong = 0;
        for (int64_t w = 0; w < workers; w++) {
            sources[w] = source_of(layouts + w, s, buffers[w], shared);
            wrong |= memcmp(buffers[w] + layouts[w].header_at[s], layouts[w].headers + s, 8) != 0;
        }
        bad |= wrong || scatter(x[s], n[s], (int)workers, sources, weight, zero, inner) >= 0;
    })
    return bad;
}

/* x[places of the entries] = 0 for every tensor. */
void dgc_zero_at_all(int64_t count, const int64_t *n, float *const *x, const layout_t *layout,
                     const uint8_t *buffer, int threads) {
    EACH_TENSOR(count, n, threads, {
        const sparse_t source = source_of(layout, s, buffer, 0);
        cursor_t cursor = {0, 0, -1};
        for (;;) {
            int64_t places[BATCH];
            const int64_t code = cursor.code;
            const int found = next_places(&source, &cursor, n[s], n[s], places);
            for (int i = 0; i < found; i++) x[s][places[i]] = 0.0f;
            if (!found && cursor.code == code) break;
        }
    })
}

/* Places and values of the entries of every tensor, those of tensor s from starts[s] on. Whether the places
 * of a tensor are broken. */
int dgc_sparse_decode_all(int64_t count, const int64_t *n, const layout_t *layout, int shared, const uint8_t *buffer,
                          const int64_t *starts, int wide, void *indices, float *values, int threads) {
    EACH_TENSOR(count, layout->k, threads, {
        const sparse_t source = source_of(layout, s, buffer, shared);
        bad |= !decode(&source, n[s], wide, (uint8_t *)indices + starts[s] * (wide ? 8 : 4), values + starts[s]);
    })
    return bad;
}

/* Write headers, places and values of the chosen entries of every tensor into the buffer of a payload.
 * values, indices (64 bits where `wide`): of all tensors, the first of tensor s at starts[s]. */
void dgc_sparse_encode_all(int64_t count, const int64_t *n, const layout_t *layout, int shared,
                           const float *values, const void *indices, int wide, const int64_t *starts,
                           uint8_t *buffer, int threads) {
    EACH_TENSOR(count, n, threads, {
        const int64_t k = layout->k[s];
        const float *from = values + starts[s];
        const void *places = (const uint8_t *)indices + starts[s] * (wide ? 8 : 4);
        uint8_t *words = buffer + layout->words_at[s];
        memcpy(buffer + layout->header_at[s], layout->headers + s, 8);
        if (layout->coding[s] == (wide ? INT64 : INT32))
            memcpy(words, places, k * (wide ? 8 : 4));
        else if (layout->coding[s] == INT32)
            for (int64_t i = 0; i < k; i++) ((int32_t *)words)[i] = (int32_t)((const int64_t *)places)[i];
        else
            encode_places(places, wide, k, n[s], layout->coding[s], words, layout->num_words[s], inner);
        float *to = (float *)(buffer + layout->values_at[s]);
        if (shared)
            *to = k ? *from : 0;
        else
            memcpy(to, from, k * sizeof *to);
    })
}
