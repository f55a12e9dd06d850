/* Quantize to packed k-bit codes and back, on the CPU. The mathematics is kernel/codes.py's, which is
 * the fallback and the reference: both give the same bits (compiled with -ffp-contract=off).
 *
 * Layout: see kernel/codes.py. Rows of `width` values, then tail rows of `tail_width` (filled up to
 * whole groups; the filling has the code of zero). G codes make B bytes; part p of a row shares its
 * bytes with the other parts. Q = 2^(bits-1) - 1.
 */
#include "segments.h"

#define CHUNK 512          /* values of a part handled at a time: codes stay in the first-level cache */
#define MAX_GROUP 8
#define MAX_BYTES 16

typedef struct {
    int64_t n, width, body_rows, tail_rows, tail_width;
    int32_t bits, group_codes, group_bytes, per_row;
} layout_t;

/* Toward zero, a margin keeps values on a step from losing it to rounding (_ON_THE_STEP in codes.py). */
static inline float inverse_of(float scale, int rounding) {
    float inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f;
    return rounding == 1 ? inverse * (1.0f + 0x1p-21f) : inverse;
}

static inline int32_t clamped(float y, float limit) {
    y = y < -limit ? -limit : y;
    y = y > limit ? limit : y;
    return (int32_t)y;
}

/* Codes of m values; rounding: 0 nearest (ties to even), 1 toward zero, 2 stochastic. */
static void code(const float *restrict x, int32_t *restrict codes, int64_t m, float inverse, int32_t q,
                 int32_t levels, int rounding, uint32_t first, uint32_t key) {
    const float limit = (float)levels;
    if (rounding == 0) {
        for (int64_t j = 0; j < m; j++) codes[j] = clamped(rintf(x[j] * inverse), limit) + q;
    } else if (rounding == 1) {
        for (int64_t j = 0; j < m; j++) codes[j] = clamped(truncf(x[j] * inverse), limit) + q;
    } else {
        for (int64_t j = 0; j < m; j++) {
            float y = x[j] * inverse, below = floorf(y);
            float up = uniform(first + (uint32_t)j, key) < y - below ? 1.0f : 0.0f;
            codes[j] = clamped(below + up, limit) + q;
        }
    }
}

static inline __attribute__((always_inline)) void pack_bits(int32_t codes[][CHUNK], uint8_t *const *planes,
                                                            int64_t at, int64_t m, const int bits) {
    const int shared = (bits & -bits) > 8 ? 8 : (bits & -bits);
    const int num_codes = 8 / shared, num_bytes = bits / shared;
#pragma GCC unroll 16
    for (int byte = 0; byte < num_bytes; byte++) {
        uint8_t *restrict plane = planes[byte] + at;
        for (int64_t j = 0; j < m; j++) {
            int32_t value = 0;
#pragma GCC unroll 8
            for (int part = 0; part < num_codes; part++) {
                const int shift = part * bits - byte * 8;
                if (shift >= 8 || shift + bits <= 0) continue;
                value |= shift >= 0 ? codes[part][j] << shift : codes[part][j] >> -shift;
            }
            plane[j] = (uint8_t)value;
        }
    }
}

static inline __attribute__((always_inline)) void unpack_bits(int32_t codes[][CHUNK],
                                                              const uint8_t *const *planes, int64_t at,
                                                              int64_t m, const int bits) {
    const int shared = (bits & -bits) > 8 ? 8 : (bits & -bits);
    const int num_codes = 8 / shared, num_bytes = bits / shared;
#pragma GCC unroll 8
    for (int part = 0; part < num_codes; part++) {
        for (int64_t j = 0; j < m; j++) {
            int32_t value = 0;
#pragma GCC unroll 16
            for (int byte = 0; byte < num_bytes; byte++) {
                const int shift = byte * 8 - part * bits;
                if (shift >= bits || shift + 8 <= 0) continue;
                const int32_t row = planes[byte][at + j];
                value |= shift >= 0 ? row << shift : row >> -shift;
            }
            codes[part][j] = value & ((1 << bits) - 1);
        }
    }
}

#define FOR_BITS(CASE) \
    CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) \
    CASE(14) CASE(15) CASE(16)

static void pack(int32_t codes[][CHUNK], uint8_t *const *planes, int64_t at, int64_t m, int bits) {
    switch (bits) {
#define CASE(b) case b: pack_bits(codes, planes, at, m, b); break;
        FOR_BITS(CASE)
#undef CASE
    }
}

static void unpack(int32_t codes[][CHUNK], const uint8_t *const *planes, int64_t at, int64_t m, int bits) {
    switch (bits) {
#define CASE(b) case b: unpack_bits(codes, planes, at, m, b); break;
        FOR_BITS(CASE)
#undef CASE
    }
}

/* Where row r lies: its first value, how many it has, the length of its parts, its place in a plane. */
typedef struct {
    int64_t start, values, length, at, index;
    int tail;
} row_t;

static inline row_t row_of(const layout_t *layout, int64_t r) {
    row_t row;
    row.tail = r >= layout->body_rows;
    if (!row.tail) {
        row.start = r * layout->width;
        row.values = layout->width;
        row.length = layout->width / layout->group_codes;
        row.at = r * row.length;
        row.index = row.start;
    } else {
        const int64_t t = r - layout->body_rows, body = layout->body_rows * layout->width;
        row.start = body + t * layout->width;
        row.values = layout->n - row.start < layout->width ? layout->n - row.start : layout->width;
        row.length = layout->tail_width / layout->group_codes;
        row.at = t * row.length;
        row.index = body + t * layout->tail_width;
    }
    return row;
}

/* Where the B planes of a row's kind begin: those of the body lie first, then those of the tail. */
static inline void planes_of(const layout_t *layout, int tail, const uint8_t *codes,
                             const uint8_t *planes[MAX_BYTES]) {
    const int64_t body = layout->body_rows * (layout->width / layout->group_codes);
    const int64_t last = layout->tail_rows * (layout->tail_width / layout->group_codes);
    for (int byte = 0; byte < layout->group_bytes; byte++)
        planes[byte] = codes + (tail ? layout->group_bytes * body + byte * last : byte * body);
}

#define LARGEST 0
#define TWO_NORM 1
#define GIVEN 2
#define LARGEST_NORM (0x1.fffffep127 * (1 - 0x1p-22))

/* The scale of a row whose largest magnitude has the bits `largest`: max|x| or ||x||_2, over the number
 * of levels. Squares are taken of x / max|x| and summed as integers: neither overflow nor the order
 * of the sum matters. A norm that float32 cannot hold becomes the largest number that it can: that is
 * above every value still. (Less four steps of float32, so that no code decodes to more.) */
static inline float scale_of(const float *x, int64_t n, int32_t largest, int rule, int32_t levels) {
    const float peak = from_bits(largest) * (float)(1.0 / levels);
    if (rule == LARGEST || largest >= INFINITE || largest < 0x00800000) return peak;
    const float inverse = 1.0f / from_bits(largest);
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const float part = x[i] * inverse;
        sum += (int32_t)rintf(part * part * 0x1p30f);
    }
    const float norm = peak * (float)sqrt((double)sum * 0x1p-30);
    const float most = (float)(LARGEST_NORM / levels);
    return norm > most ? most : norm;
}

/* levels: codes reach from -levels to levels, at most Q. scales: one a row, or one; written, unless
 * `rule` says that they are given. Returns whether it is known that no value is a NaN or an infinity. */
static int quantize(const float *x, const layout_t *layout, int rounding, int32_t key, int32_t levels,
                    int rule, float *scales, uint8_t *packed, int threads) {
    const int32_t q = (1 << (layout->bits - 1)) - 1;
    const float share = (float)(1.0 / levels);
    const int64_t rows = layout->body_rows + layout->tail_rows, n = layout->n;
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    int32_t largest = rule == GIVEN ? INFINITE : 0; /* given scales: the values are not looked at */
    if (!layout->per_row && rule != GIVEN) {
        largest = largest_of_all(x, n, threads);
        scales[0] = from_bits(largest) * share;
    }
#pragma omp parallel for reduction(max : largest) num_threads(threads) if (parallel) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int32_t codes[MAX_GROUP][CHUNK];
        const row_t row = row_of(layout, r);
        const float *values = x + row.start;
        const uint8_t *planes[MAX_BYTES];
        planes_of(layout, row.tail, packed, planes);
        if (layout->per_row && rule != GIVEN) {
            const int32_t here = largest_magnitude(values, row.values);
            largest = here > largest ? here : largest;
            scales[r] = scale_of(values, row.values, here, rule, levels);
        }
        const float inverse = inverse_of(scales[layout->per_row ? r : 0], rounding);
        for (int64_t j = 0; j < row.length; j += CHUNK) {
            const int64_t m = row.length - j < CHUNK ? row.length - j : CHUNK;
            for (int part = 0; part < layout->group_codes; part++) {
                const int64_t from = part * row.length + j;
                int64_t valid = row.values - from;
                valid = valid < 0 ? 0 : valid > m ? m : valid;
                code(values + from, codes[part], valid, inverse, q, levels, rounding,
                     (uint32_t)(row.index + from), (uint32_t)key);
                for (int64_t i = valid; i < m; i++) codes[part][i] = q;
            }
            pack(codes, (uint8_t *const *)planes, row.at + j, m, layout->bits);
        }
    }
    return largest < INFINITE;
}

/* x = sum of weight * decoded, or x += it, over `count` payloads of one layout, added in their order.
 * A row of x stays in cache while all payloads are added to it. buffers: one a payload; in each, the scales
 * and the packed codes of this tensor begin at the given bytes. */
static void dequantize(float *x, const layout_t *layout, int64_t scales_at, int64_t packed_at, int count,
                       const uint8_t *const *buffers, float weight, int accumulate, int threads) {
    const int32_t q = (1 << (layout->bits - 1)) - 1;
    const int64_t rows = layout->body_rows + layout->tail_rows;
    const int parallel = layout->n >= PARALLEL_FROM && threads > 1;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int32_t codes[MAX_GROUP][CHUNK];
        const row_t row = row_of(layout, r);
        float *values = x + row.start;
        for (int64_t j = 0; j < row.length; j += CHUNK) {
            const int64_t m = row.length - j < CHUNK ? row.length - j : CHUNK;
            for (int source = 0; source < count; source++) {
                const uint8_t *planes[MAX_BYTES];
                planes_of(layout, row.tail, buffers[source] + packed_at, planes);
                const float *scales = (const float *)(buffers[source] + scales_at);
                const float factor = scales[layout->per_row ? r : 0] * weight;
                unpack(codes, planes, row.at + j, m, layout->bits);
                for (int part = 0; part < layout->group_codes; part++) {
                    const int64_t from = part * row.length + j;
                    int64_t valid = row.values - from;
                    valid = valid < 0 ? 0 : valid > m ? m : valid;
                    float *restrict to = values + from;
                    const int32_t *restrict c = codes[part];
                    if (accumulate || source)
                        for (int64_t i = 0; i < valid; i++) to[i] += (float)(c[i] - q) * factor;
                    else
                        for (int64_t i = 0; i < valid; i++) to[i] = (float)(c[i] - q) * factor;
                }
            }
        }
    }
}

/* Quantize all tensors of a batch into one buffer; keys: NULL where nothing is drawn. Returns whether it is
 * known that no value is a NaN or an infinity. */
int dgc_quantize_all(int64_t count, const int64_t *n, const float *const *x, const layout_t *layouts,
                     const int64_t *scales_at, const int64_t *packed_at, int rounding, const int32_t *keys,
                     int32_t levels, int rule, uint8_t *buffer, int threads) {
    EACH_TENSOR(count, n, threads,
                bad |= n[s] && !quantize(x[s], layouts + s, rounding, keys ? keys[s] : 0, levels, rule,
                                             (float *)(buffer + scales_at[s]), buffer + packed_at[s], inner))
    return !bad;
}

/* x = or += the sum of weight * decoded over `sources` payloads, of all tensors of a batch. */
void dgc_dequantize_all(int64_t count, const int64_t *n, float *const *x, const layout_t *layouts,
                        const int64_t *scales_at, const int64_t *packed_at, int sources,
                        const uint8_t *const *buffers, float weight, int accumulate, int threads) {
    EACH_TENSOR(count, n, threads,
                dequantize(x[s], layouts + s, scales_at[s], packed_at[s], sources, buffers, weight, accumulate,
                           inner))
}
