"""GraVAC: set-up as printed, names and looks of its rows.

Set-up as printed: 32 V100 in 8 machines of 4, PyTorch 1.10.1 DDP, 10-32 Gbit/s by type of machine. All
trained runs form one pool (``experiment.artifact=training``); a row is ``<model>.<method>``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dgc_repro.paper import plot
from dgc_repro.paper.claims import Paper, printed_table
from dgc_repro.paper.page import Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

PAPER = Paper(
    "GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training "
    "(Indiana University, IEEE CLOUD 2023)",
    "GraVAC",
    "https://arxiv.org/abs/2305.12201",
)
POOL = "training"
MODULES = {f"fig{n}": "fig4_6" if n < 7 else "fig7_11" for n in range(4, 12)}
"""Modules of several artifacts."""
RESNET101, VGG16, LSTM = "resnet101", "vgg16", "lstm"
MODELS = {RESNET101: "ResNet101", VGG16: "VGG16", LSTM: "LSTM"}
"""The paper's names: in claims and in columns of printed numbers only."""
FAMILIES = {RESNET101: "ResNet", VGG16: "VGG", LSTM: "LSTM"}
"""Names of our models in tables and figures; the head of a page gives layers, width and parameters."""
LOW = "low"
"""The small network in ResNet101's place that reaches the paper's target (scale low); the other models have
none."""
PARAMETERS = {RESNET101: 44_549_160, VGG16: 138_365_992, LSTM: 66_034_000}
"""At full size; VGG16 with batch normalization."""
SETUP = printed_table(
    "Table I and hyper-parameters",
    "batch, momentum, weight decay, lr, target",
    """
    resnet101  32  0.9  1e-4  0.1  80
    vgg16      32  0.9  5e-4  0.1  90
    lstm       20  0.9  1e-4  0.1  22
    """,
)
"""The learning rate of ResNet101 falls to a tenth at `MILESTONES`; the others' is constant. Targets: % top-1,
% top-5, test perplexity."""
DATA = {RESNET101: "CIFAR-10", VGG16: "CIFAR-100", LSTM: "PTB"}
TARGETS = {RESNET101: "80 % top-1", VGG16: "90 % top-5", LSTM: "perplexity 22.0"}
WORKERS = 32
MILESTONES = (9_000, 14_000)

FACTORS = (10, 100, 1000)
COMPRESSORS = {"topk": "Top-k", "dgc": "DGC", "redsync": "Redsync", "randomk": "Random-k"}
DENSE, ACCORDION = "dense", "accordion"
GRAVAC, GRAVAC_STRICT, GEOMETRIC = "gravac07", "gravac09", "gravac_geometric"


def norm_of(method: str) -> str:
    """The same method with the norm gain, that of the authors' code; without it the gain is the printed
    energy."""
    return f"{method}_norm"


GRAVAC_ROWS = {
    GRAVAC: "eps 0.7, energy",
    GRAVAC_STRICT: "eps 0.9, energy",
    norm_of(GRAVAC): "eps 0.7, norm",
    norm_of(GRAVAC_STRICT): "eps 0.9, norm",
}
EPS_SWEEP = {
    "gravac05_norm": 0.5, "gravac06_norm": 0.6, "gravac07_norm": 0.7, "gravac08_norm": 0.8,
    "gravac09_norm": 0.9, "gravac095_norm": 0.95,
}  # fmt: skip
"""Ours: eps by row, ascending, all with the norm gain."""
_COLOURS = {"topk": plot.ORANGE, "dgc": plot.BLUE, "redsync": plot.GREEN, "randomk": plot.PURPLE}
_MARKERS = {"topk": "s", "dgc": "o", "redsync": "^", "randomk": "D"}
_DASHES = {10: "--", 100: "-.", 1000: "-"}
LOOKS: dict[str, Look] = {
    DENSE: Look("dense", plot.BLACK, "X", wide=True),
    **{
        f"{name}{factor}": Look(
            f"{label} {factor}x", _COLOURS[name], _MARKERS[name], _DASHES[factor]
        )
        for name, label in COMPRESSORS.items()
        for factor in FACTORS
    },
    **{
        method: Look(f"GraVAC eps {eps:g}, norm", plot.CYCLE[i % 7], plot.MARKERS[i % 7], "--")
        for i, (method, eps) in enumerate(EPS_SWEEP.items())
    },
    GRAVAC: Look("GraVAC eps 0.7, energy", plot.SKY, "P"),
    GRAVAC_STRICT: Look("GraVAC eps 0.9, energy", plot.YELLOW, "v"),
    norm_of(GRAVAC): Look("GraVAC eps 0.7, norm", plot.SKY, "P", "--"),
    norm_of(GRAVAC_STRICT): Look("GraVAC eps 0.9, norm", plot.YELLOW, "v", "--"),
    GEOMETRIC: Look("GraVAC geometric, energy", plot.GREEN, "D"),
    norm_of(GEOMETRIC): Look("GraVAC geometric, norm", plot.GREEN, "D", "--"),
    "gravac07_bucket": Look("GraVAC decided a step later", plot.PURPLE, "s"),
    "gravac07_short": Look("GraVAC, a tenth of the window", plot.ORANGE, "X"),
    ACCORDION: Look("Accordion", "#666666", "D"),
    "randomk_gravac_fed": Look("GraVAC over Random-k, energy", plot.SKY, "P"),
    "randomk_gravac_norm": Look("GraVAC over Random-k, norm", plot.SKY, "P", "--"),
    "randomk_accordion": Look("Accordion over Random-k", "#666666", "D"),
}
"""By method, wherever it is drawn: of a fixed factor 10x is dashed, 1000x solid; the norm gain is dashed."""


def row_id(model: str, method: str) -> str:
    """The row of a run: ``experiment.row``."""
    return f"{model}.{method}"


def looks(model: str, methods: Iterable[str]) -> dict[str, Look]:
    """Looks by row, in order."""
    return {row_id(model, method): LOOKS[method] for method in methods}


def is_low(runs: Iterable[Run]) -> bool:
    """Whether these runs train `LOW` in ResNet101's place."""
    return any(str(run.setting("model._target_")).endswith(".Low") for run in runs)


def families(runs: Sequence[Run] = ()) -> dict[str, str]:
    """The models that a page of these runs has, with the names of ours."""
    return {RESNET101: LOW} if is_low(runs) else FAMILIES


def labels(runs: Sequence[Run] = ()) -> dict[str, str]:
    """Rows in words, for verdicts."""
    return {
        row_id(model, method): f"{family} {look.label}"
        for model, family in families(runs).items()
        for method, look in LOOKS.items()
    }


LABELS = labels()
"""Rows in words, but for runs of `LOW`."""

_printed_reductions = {
    RESNET101: {GRAVAC: 163.0, GRAVAC_STRICT: 19.0, GEOMETRIC: 76.0},
    VGG16: {GRAVAC: 80.0, GRAVAC_STRICT: 13.5},
    LSTM: {GRAVAC: 289.0, GRAVAC_STRICT: 279.0},
}
REDUCTIONS = {
    model: known | {norm_of(method): times for method, times in known.items()}
    for model, known in _printed_reductions.items()
}
"""Floats of dense over those of GraVAC, as printed of figures 7 to 10. The paper does not say with which
gain."""
FAILED_BELOW, CHANCE = 20.0, 10.0
"""Per cent: what "failed" means in Table II, and chance among ten classes."""


def failed_share() -> float:
    """The share of the way from chance to the target below which a run has "failed", by printed numbers."""
    return (FAILED_BELOW - CHANCE) / (SETUP(RESNET101, "target") - CHANCE)


WORDS = Template.read(Path(__file__).with_name("training_runs.md"))
CHOICES = WORDS.choices
"""Of all pages made of training runs. (a) to (j) are the letters of the project's notes."""
(PERPLEXITY_NOTE,) = WORDS.notes
