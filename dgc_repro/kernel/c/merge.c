/* The sum of two sparse vectors whose places ascend: all tensors of a batch, one after another
 * (kernel/merge.py). */

#include "common.h"

/* Entries of both, ascending; where both have one, the first's value + the second's. Returns how
   many there are. values, places: room for a + b. */
int64_t dgc_merge(const float *first, const int64_t *first_at, int64_t a, const float *second,
              const int64_t *second_at, int64_t b, float *values, int64_t *places)
{
    int64_t i = 0, j = 0, count = 0;
    while (i < a && j < b) {
        int64_t left = first_at[i], right = second_at[j];
        /* Both are read: without branches the loop does not wait for guesses gone wrong. */
        float one = first[i], other = second[j], sum = one + other;
        values[count] = left == right ? sum : left < right ? one : other;
        places[count] = left < right ? left : right;
        i += left <= right;
        j += right <= left;
        count++;
    }
    for (; i < a; i++, count++) {
        values[count] = first[i];
        places[count] = first_at[i];
    }
    for (; j < b; j++, count++) {
        values[count] = second[j];
        places[count] = second_at[j];
    }
    return count;
}
