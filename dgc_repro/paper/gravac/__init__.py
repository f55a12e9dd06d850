"""GraVAC: set-up as printed, names and looks of its rows.

Set-up as printed: 32 V100 in 8 machines of 4, PyTorch 1.10.1 DDP, 10-32 Gbit/s by type of machine. All
trained runs form one pool (``experiment.artifact=training``); a row is ``<model>.<method>``.
"""

from __future__ import annotations

from dgc_repro.paper import facts, plot
from dgc_repro.paper.claims import Paper, printed_table
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

PAPER = Paper(
    "GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training "
    "(Indiana University, IEEE CLOUD 2023)",
    "https://arxiv.org/abs/2305.12201",
)
POOL = "training"
MODULES = {f"fig{n}": "fig4_6" if n < 7 else "fig7_11" for n in range(4, 12)}
"""Modules of several artifacts."""
MODELS = {"resnet101": "ResNet101", "vgg16": "VGG16", "lstm": "LSTM"}
"""The paper's names: in claims and in columns of printed numbers. `name_of` has ours."""
RESNET101, VGG16, LSTM = MODELS
DATA = {RESNET101: "CIFAR-10", VGG16: "CIFAR-100", LSTM: "PTB"}
TARGETS = {RESNET101: 80.0, VGG16: 90.0, LSTM: 22.0}
"""% top-1, % top-5, test perplexity."""
WORKERS = 32
FACTORS = (10, 100, 1000)
COMPRESSORS = {"topk": "Top-k", "dgc": "DGC", "redsync": "Redsync", "randomk": "Random-k"}
DENSE, ACCORDION = "dense", "accordion"
GRAVAC, GRAVAC_STRICT, GEOMETRIC = "gravac07", "gravac09", "gravac_geometric"
REDUCTIONS = printed_table(
    "communication volume, figures 7 to 10",
    f"{GRAVAC} [x], {GRAVAC_STRICT} [x], {GEOMETRIC} [x]",
    """
    resnet101  163   19    76
    vgg16       80   13.5   -
    lstm       289  279     -
    """,
)
"""Floats of dense over those of GraVAC. The paper does not say with which gain."""


def norm_of(method: str) -> str:
    """The same method with the norm gain, that of the authors' code; without it the gain is the printed
    energy."""
    return f"{method}_norm"


GRAVAC_ROWS = (GRAVAC, GRAVAC_STRICT, norm_of(GRAVAC), norm_of(GRAVAC_STRICT))
EPS_SWEEP = {
    "gravac05_norm": 0.5, "gravac06_norm": 0.6, "gravac07_norm": 0.7, "gravac08_norm": 0.8,
    "gravac09_norm": 0.9, "gravac095_norm": 0.95,
}  # fmt: skip
"""Ours: eps by row, ascending, all with the norm gain."""
_STATIC = {
    "topk": (plot.ORANGE, "s"), "dgc": (plot.BLUE, "o"), "redsync": (plot.GREEN, "^"),
    "randomk": (plot.PURPLE, "D"),
}  # fmt: skip
_DASHES = {10: "--", 100: "-.", 1000: "-"}
LOOKS: dict[str, Look] = {
    DENSE: Look("dense", plot.BLACK, "X", wide=True),
    **{
        f"{name}{factor}": Look(f"{COMPRESSORS[name]} {factor}x", *look, dashes)
        for name, look in _STATIC.items()
        for factor, dashes in _DASHES.items()
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
    "dense_variance": Look("dense", plot.BLACK),
    "dgc10_gains": Look("DGC 10x", plot.BLUE, "^"),
    "dgc1000_gains": Look("DGC 1000x", plot.ORANGE, "s"),
    "topk10_gains": Look("Top-k 10x", plot.BLUE),
    "topk100_gains": Look("Top-k 100x", plot.GREEN),
    "topk1000_gains": Look("Top-k 1000x", plot.ORANGE),
}
"""By method, wherever it is drawn: of a fixed factor 10x is dashed, 1000x solid; the norm gain is dashed."""


NORM_OF = {method: norm_of(method) for method in LOOKS if norm_of(method) in LOOKS}
"""By method with the energy gain, the same method with the norm gain."""


def row_id(model: str, method: str) -> str:
    """The row of a run: ``experiment.row``."""
    return f"{model}.{method}"


def name_of(run: Run) -> str:
    """The name of a run's model: of a full one the paper's, of a reduced one its family's."""
    name = str(run.setting("model._target_")).rpartition(".")[2]
    family, full = facts.FULL_MODELS.get(name, (name, 0))
    return name if float(run.summary.get("parameters") or 0) >= 0.9 * full else family
