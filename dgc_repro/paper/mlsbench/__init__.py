"""MLS-Bench's task "optimization-gradient-compression": its numbers, and names of its models and methods.

Read on the benchmark's public site as of 2026-04-05: the task's text, its training script with three
baselines, and the leaderboard, which has a line for each baseline and seed and none for dense training.
"""

from __future__ import annotations

from dgc_repro.paper.claims import Paper

PAPER = Paper(
    "MLS-Bench, task optimization-gradient-compression",
    "https://github.com/Imbernoulli/mls-bench-website",
)
MODELS = {"resnet20": "ResNet-20", "vgg11": "VGG-11", "resnet56": "ResNet-56"}
DATA = {"resnet20": "CIFAR-10", "vgg11": "CIFAR-100", "resnet56": "CIFAR-10"}
TOPK, QSGD, SIGNS = BASELINES = ("topk", "qsgd", "signsgd")
BEST = "best test accuracy"
SEEDS = {
    "resnet20.topk": (92.05, 92.40, 92.29),
    "resnet20.qsgd": (92.06, 92.38, 86.78),
    "resnet20.signsgd": (92.66, 92.28, 92.61),
    "vgg11.topk": (70.78, 69.75, 70.20),
    "vgg11.qsgd": (66.57, 38.57, 37.91),
    "vgg11.signsgd": (70.82, 70.82, 70.66),
    "resnet56.topk": (93.78, 93.79, 93.98),
    "resnet56.qsgd": (94.08, 93.94),
    "resnet56.signsgd": (94.33, 93.98, 94.12),
}
"""Best test accuracy (%) on the leaderboard, of the seeds 42, 123 and 456 (or the first two)."""
PRINTED = {(row, BEST): sum(found) / len(found) for row, found in SEEDS.items()}


def row_id(model: str, method: str) -> str:
    """The row of a model and a method."""
    return f"{model}.{method}"
