/* Narrow floating-point numbers with scales of blocks. kernel/floats.py is the reference: the same bits. */
#include "segments.h"

#define ROW 32 /* values that are worked on together where blocks have no scales; no block has more */

typedef struct {
    int32_t bits, mantissa, low, highest, last;
} element_t;

/* `scale`: all 0 where scales are powers of two; `block`: values that share one, 0 for one scale a tensor. */
typedef struct {
    element_t number, scale;
    int32_t block;
} form_t;

/* `up`: a random number in (0, 1), or below 0 to round to nearest. */
static inline __attribute__((always_inline)) int32_t rounded(float y, element_t to, float up) {
    int32_t word;
    memcpy(&word, &y, sizeof word);
    int32_t exponent = (word >> 23 & 255) - 127;
    exponent = exponent < to.low ? to.low : exponent;
    exponent = exponent > to.highest + 1 ? to.highest + 1 : exponent;
    float steps = fabsf(y) * from_bits((127 + to.mantissa - exponent) << 23);
    const float below = floorf(steps), most = (float)(4 << to.mantissa);
    steps = up < 0 ? rintf(steps) : below + (up < steps - below ? 1.0f : 0.0f);
    steps = steps == steps ? steps : 0.0f;
    steps = steps > most ? most : steps;
    const int32_t code = (int32_t)steps + ((exponent - to.low) << to.mantissa);
    return (code > to.last ? to.last : code) | (word >> 31 & 1) << (to.bits - 1);
}

static inline int32_t scale_code(const float *x, int64_t m, const form_t *form, float most, float factor) {
    const int32_t largest = largest_magnitude(x, m);
    if (form->scale.bits) return rounded(factor > 0 ? from_bits(largest) / most / factor : 0.0f, form->scale, -1.0f);
    const int32_t exponent = largest >> 23, code = exponent - form->number.highest;
    return exponent == 255 ? 255 : code < 0 ? 0 : code;
}

static inline void pack(const int32_t *code, int64_t m, int bits, uint8_t *to) {
    if (bits == 8)
        for (int64_t i = 0; i < m; i++) to[i] = (uint8_t)code[i];
    else if (bits == 4)
        for (int64_t i = 0; 2 * i < m; i++) to[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
    else
        for (int64_t i = 0; 4 * i < m; i++) {
            const int32_t *c = code + 4 * i, word = c[0] | c[1] << 6 | c[2] << 12 | c[3] << 18;
            for (int byte = 0; byte < 3; byte++) to[3 * i + byte] = (uint8_t)(word >> 8 * byte);
        }
}

static inline void unpack(const uint8_t *from, int64_t m, int bits, int32_t *code) {
    if (bits == 8)
        for (int64_t i = 0; i < m; i++) code[i] = from[i];
    else if (bits == 4)
        for (int64_t i = 0; 2 * i < m; i++) {
            code[2 * i] = from[i] & 15;
            code[2 * i + 1] = from[i] >> 4;
        }
    else
        for (int64_t i = 0; 4 * i < m; i++) {
            const int32_t word = from[3 * i] | from[3 * i + 1] << 8 | from[3 * i + 2] << 16;
            for (int part = 0; part < 4; part++) code[4 * i + part] = word >> 6 * part & 63;
        }
}

static void encode(const float *x, int64_t n, const form_t *form, float most, const float *scales, float factor,
                   const int32_t *key, uint8_t *blocks, uint8_t *packed, int threads) {
    const int64_t width = form->block ? form->block : ROW, rows = (n + width - 1) / width;
    const int parallel = n >= PARALLEL_FROM && threads > 1;
    const element_t to = form->number;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int32_t code[ROW] = {0};
        const float *own = x + r * width;
        const int64_t m = n - r * width < width ? n - r * width : width;
        float scale = factor;
        if (form->block) {
            blocks[r] = (uint8_t)scale_code(own, m, form, most, factor);
            scale = form->scale.bits ? scales[blocks[r]] * factor : scales[blocks[r]];
        }
        if (scale > 0) {
            if (key)
                for (int64_t j = 0; j < m; j++)
                    code[j] = rounded(own[j] / scale, to, uniform((uint32_t)(r * width + j), (uint32_t)*key));
            else
                for (int64_t j = 0; j < m; j++) code[j] = rounded(own[j] / scale, to, -1.0f);
        }
        pack(code, m, to.bits, packed + r * width * to.bits / 8);
    }
}

static void decode(float *x, int64_t n, const form_t *form, const float *numbers, const float *scales,
                   const float *factor, const uint8_t *blocks, const uint8_t *packed, int accumulate, int threads) {
    const int64_t width = form->block ? form->block : ROW, rows = (n + width - 1) / width;
    const int parallel = n >= PARALLEL_FROM && threads > 1;
#pragma omp parallel for num_threads(threads) if (parallel) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int32_t code[ROW];
        float *own = x + r * width;
        const int64_t m = n - r * width < width ? n - r * width : width;
        const float of_block = form->block ? scales[blocks[r]] : 1.0f;
        const float scale = factor ? of_block * *factor : of_block;
        unpack(packed + r * width * form->number.bits / 8, m, form->number.bits, code);
        if (accumulate)
            for (int64_t j = 0; j < m; j++) own[j] += numbers[code[j]] * scale;
        else
            for (int64_t j = 0; j < m; j++) own[j] = numbers[code[j]] * scale;
    }
}

/* Of all tensors of a batch. most: the largest number; scales: what their codes stand for; factors: the scale of
 * each tensor, written where `tensor_at` is not NULL; keys: NULL where nothing is drawn. */
void dgc_floats_encode(int64_t count, const int64_t *n, const float *const *x, const int32_t *form, float most,
                       const float *scales, const float *factors, const int32_t *keys, const int64_t *tensor_at,
                       const int64_t *blocks_at, const int64_t *packed_at, uint8_t *buffer, int threads) {
    EACH_TENSOR(count, n, threads, {
        if (tensor_at && n[s]) memcpy(buffer + tensor_at[s], factors + s, sizeof(float));
        encode(x[s], n[s], (const form_t *)form, most, scales, factors[s], keys ? keys + s : 0, buffer + blocks_at[s],
               buffer + packed_at[s], inner);
    })
}

/* x = or += what `sources` payloads stand for, one after another. numbers: what codes stand for, times the weight. */
void dgc_floats_decode(int64_t count, const int64_t *n, float *const *x, const int32_t *form, const float *numbers,
                       const float *scales, const int64_t *tensor_at, const int64_t *blocks_at,
                       const int64_t *packed_at, int sources, const uint8_t *const *buffers, int accumulate,
                       int threads) {
    EACH_TENSOR(count, n, threads, {
        for (int source = 0; source < sources && n[s]; source++) {
            const uint8_t *from = buffers[source];
            decode(x[s], n[s], (const form_t *)form, numbers, scales,
                   tensor_at ? (const float *)(from + tensor_at[s]) : 0, from + blocks_at[s], from + packed_at[s],
                   accumulate || source, inner);
        }
    })
}
