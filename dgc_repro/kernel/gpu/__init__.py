"""Triton kernels over all tensors of a batch: what kernel/c does on the CPU, with equal bits, for a GPU."""
