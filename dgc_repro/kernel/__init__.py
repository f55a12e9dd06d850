"""Fused element-wise kernels: C on the CPU, torch.compile on GPUs, tensor operations with equal values."""
