"""Fused element-wise kernels: torch.compile where a compiler is at hand, eager with equal values elsewhere."""
