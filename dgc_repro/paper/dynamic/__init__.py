"""Distributed Model Training With Dynamic Gradient Compression: set-up, looks of its rows.

Set-up as printed: 2 NVIDIA T4, PyTorch DDP, synchronous allreduce, ResNet, CIFAR-10, 70 epochs.
"""

from __future__ import annotations

from dgc_repro.paper import plot
from dgc_repro.paper.claims import Paper
from dgc_repro.paper.plot import Look

PAPER = Paper(
    "Distributed Model Training With Dynamic Gradient Compression (ASU)",
    data="CIFAR-10",
)
NONE, STATIC, DYNAMIC = "none", "static8", "dynamic"
STATIC_EF, DYNAMIC_EF = "static8_ef", "dynamic_ef"
LOOKS = {
    NONE: Look("no compression", plot.BLACK, "o"),
    STATIC: Look("static 8-bit", plot.ORANGE, "s"),
    DYNAMIC: Look("dynamic 4-16-bit", plot.BLUE, "^"),
    STATIC_EF: Look("static 8-bit + EF, stoch.", plot.ORANGE, "s", "--"),
    DYNAMIC_EF: Look("dynamic 4-16-bit + EF, stoch.", plot.BLUE, "^", "--"),
}
"""The last two are ours: error feedback (EF) and stochastic rounding. The paper has no such rows."""
