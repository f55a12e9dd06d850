"""Distributed Model Training With Dynamic Gradient Compression: set-up, silent choices, looks of its rows.

Set-up as printed: 2 NVIDIA T4, PyTorch DDP, synchronous allreduce, ResNet, CIFAR-10, 70 epochs.
"""

from __future__ import annotations

from dgc_repro.paper import plot
from dgc_repro.paper.claims import Choice, Paper
from dgc_repro.paper.plot import Look

PAPER = Paper(
    "Distributed Model Training With Dynamic Gradient Compression (ASU)", "dynamic compression"
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
LABELS = {row: look.label for row, look in LOOKS.items()}

CHOICES = (
    Choice("which ResNet", "ResNet18 with the CIFAR stem, 11.17 M parameters", "model"),
    Choice("batch size", "32 a worker", "train.batch_size"),
    Choice(
        "optimizer and learning rate",
        "SGD, momentum 0.9, weight decay 5e-4, lr 0.1 x global batch / 128",
        "optimizer",
    ),
    Choice("schedule", "cosine; experiment=dynamic/none_constant has a constant rate", "schedule"),
    Choice("augmentation", "pad-crop and flip", "dataset"),
    Choice(
        "the data of validation accuracy (probably the test set)",
        "a held-out part of the training set, for every method alike",
        "dataset.validation",
    ),
    Choice(
        "the quantizer",
        "symmetric linear, one scale a tensor, round to nearest, no error feedback: the plain reading; two "
        "more rows have error feedback and stochastic rounding",
        "compressor",
    ),
    Choice("error feedback", "none in the paper's rows", "wrap"),
    Choice(
        "thresholds, patience, length of the dense interval",
        "chosen so that 70 epochs visit 4, 6, 8, 12 and 16 bits; the traces say which were used",
        "policy",
    ),
    Choice(
        "the threshold of the epoch-to-epoch loss difference",
        "none: accuracy alone lowers the compression (policy.loss_differences sets one)",
        "policy.loss_differences",
    ),
)
