"""Kernels over all tensors of a batch: C on the CPU, Triton on a GPU, tensor operations without either.

A module is one family (select, codes, sparse, ...), and its functions choose among the three by the device of
their tensors. All three give equal bits, sums to rounding, which selfcheck/ and tests/kernel show.
"""
