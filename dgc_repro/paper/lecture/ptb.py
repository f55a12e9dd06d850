"""The lecture's table on Deep Gradient Compression (DGC): its row on the Penn Treebank (PTB).

The lecture takes the table from Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", ICLR 2018,
arXiv:1712.01887. Only this row can be trained with the models and data of this project; dgc.py counts the
payloads of the others.
"""

from __future__ import annotations

from functools import partial

from dgc_repro.paper import facts
from dgc_repro.paper.artifact import BANDS, LESS, PERPLEXITY, Artifact, drawing
from dgc_repro.paper.claims import Check, near, printed_table
from dgc_repro.paper.frame import Column, Quantity, Relative, amount, seeds, times
from dgc_repro.paper.page import Template
from dgc_repro.paper.panels import panel
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
TABLE = printed_table("table on DGC, row PTB", "test perplexity", "dense 72.30\ndgc 72.24")
RATIO = 462.0
"""Printed: the compression ratio."""
TEST, VALIDATION = "test perplexity", "validation perplexity"
OVER = "perplexity, % of the baseline"
AFTER = {
    "comm/floats": "floats of the last epoch",
    "comm/payload_bytes": "payload of the last epoch",
    "comm/wire_bytes": "wire bytes of the last epoch",
}
RATIOS = {f"{name}: times less": name for name in AFTER.values()}
PAYLOAD_STEP = "payload a step of the last epoch"
PERPLEXITY_TOLERANCE = 0.02
FACTOR = 2.0
"""Sizes and ratios agree within a factor of two. Ours: the lecture does not say what it counts."""


def in_last_epoch(metric: str, run: Run) -> float:
    """What the last epoch added to a number that counts up over the run."""
    before = float(run.epochs[metric].iloc[-2]) if len(run.epochs) > 1 else 0.0
    return run.last(metric) - before


def payload_a_step(run: Run) -> float:
    """Bytes of one worker in a step of the last epoch."""
    return in_last_epoch("comm/payload_bytes", run) / in_last_epoch("step", run)


_equal = Check(
    TEST, "dgc", "dense", above=1 - PERPLEXITY_TOLERANCE, below=1 + PERPLEXITY_TOLERANCE, ratio=True,
    printed=TABLE("dgc", TEST) / TABLE("dense", TEST),
)  # fmt: skip
_smaller = near(Check(AFTER["comm/payload_bytes"], "dense", "dgc", ratio=True), RATIO, FACTOR)
page = Artifact(
    __file__,
    rows={"dense": "baseline (dense)", "dgc": "DGC"},
    quantities={
        TEST: PERPLEXITY,
        VALIDATION: Quantity("", lambda run: run.last("validation/perplexity")),
        **{name: Quantity("", partial(in_last_epoch, metric)) for metric, name in AFTER.items()},
        PAYLOAD_STEP: Quantity("bytes", payload_a_step),
        OVER: Relative(TEST, to="dense", unit="%"),
        **{ratio: Relative(of, to="dense", inverse=True) for ratio, of in RATIOS.items()},
    },
    printed=TABLE,
    tables={
        "The PTB row, measured": (
            *(seeds(TEST), Column(TEST, TEST, 2), Column(OVER, OVER, 2)),
            Column(VALIDATION, VALIDATION, 2),
        ),
        "Compression ratio": (
            *(Column(name, name, times) for name in (*RATIOS, LESS)),
            Column(PAYLOAD_STEP, PAYLOAD_STEP, amount),
        ),
    },
    claims=(
        WORDS.claim("1", _equal, ours=True, dense=TABLE("dense", TEST), dgc=TABLE("dgc", TEST)),
        WORDS.claim("2", _smaller, ours=True, ratio=RATIO),
    ),
    figures={
        "perplexity": drawing(
            "DGC on a text: test perplexity by epoch",
            lambda shown: [
                panel("", shown.curves("test/perplexity", "epoch"), x="epoch", y=TEST, log="y")
            ],
            BANDS,
        )
    },
    said=lambda _: {"printed": f"{RATIO:.0f}x"},
    # DGC clips each worker's gradient itself, the baseline's optimizer clips the averaged one.
    alike=[key for key in facts.ALIKE if key != "optimizer"],
)
