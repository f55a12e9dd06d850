"""Kernels over all tensors of a batch: C on the CPU, Triton on GPUs, tensor operations with equal values."""
