/* Kernels over all tensors of a batch in one call. Every tensor is handled by the kernel for one tensor,
 * whose result does not depend on the number of threads: large ones one after another by all threads,
 * small ones side by side by one thread each.
 */
#ifndef DGC_SEGMENTS_H
#define DGC_SEGMENTS_H

#include "common.h"

/* The statement works on tensor number s with `inner` threads, and may set `bad`, which is 0 before and may be
 * read afterwards; n[s] is the tensor's size. */
#define EACH_TENSOR(count, n, threads, ...)                                                            \
    int bad = 0;                                                                                       \
    for (int64_t s = 0; s < (count); s++)                                                              \
        if ((threads) == 1 || (n)[s] >= PARALLEL_FROM) {                                               \
            const int inner = (threads);                                                               \
            (void)inner;                                                                               \
            __VA_ARGS__;                                                                               \
        }                                                                                              \
    _Pragma("omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 4) reduction(| : bad)") \
    for (int64_t s = 0; s < (count); s++)                                                              \
        if ((threads) > 1 && (n)[s] < PARALLEL_FROM) {                                                 \
            const int inner = 1;                                                                       \
            (void)inner;                                                                               \
            __VA_ARGS__;                                                                               \
        }                                                                                              \
    (void)bad;

#endif
