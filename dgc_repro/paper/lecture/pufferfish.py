"""Pufferfish against dense training and PowerSGD: parameters, bytes of a run, accuracy.

Wang, Agarwal, Papailiopoulos, "Pufferfish: communication-efficient models at no extra cost", MLSys 2021,
arXiv:2103.03936. The claims are those of its abstract. It prints no comparison at equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import SENT, Column, Quantity, amount, count, pivot, seeds, signed, times
from dgc_repro.paper.lecture.ptb import PAYLOAD_STEP
from dgc_repro.paper.lecture.ptb import QUANTITIES as OF_PTB
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike

WORDS = Template.read(__file__)
DENSE, PUFFERFISH, POWERSGD = "dense", "pufferfish", "powersgd"
LOOKS = {
    DENSE: Look("dense", plot.BLACK, "o"),
    PUFFERFISH: Look("Pufferfish", plot.ORANGE, "s"),
    POWERSGD: Look("PowerSGD", plot.BLUE, "^"),
}
LABELS = {row: look.label for row, look in LOOKS.items()}
ACCURACY, PARAMETERS, PAYLOAD = "test accuracy", "parameters", "payload"
GAIN, SMALLER = "accuracy over dense", "parameters, dense over this"
SHARE = "payload, of Pufferfish's"
TOLERANCE = 1.0
"""Percentage points that count as no loss of accuracy. Ours: the abstract names no margin."""
NEAR = 0.05
"""Payloads that differ by no more than this share count as equal. Ours."""
QUANTITIES = {
    ACCURACY: Quantity("%", lambda run: run.last("test/accuracy_percent")),
    PARAMETERS: Quantity("", lambda run: float(run.summary["parameters"])),
    PAYLOAD: SENT[PAYLOAD],
    PAYLOAD_STEP: OF_PTB[PAYLOAD_STEP],
}
ALIKE = (*(k for k in facts.ALIKE if k != "model"), "model._target_", "model.width")
"""The model differs in ``model.low_rank``."""
_equal_bytes = Check(PAYLOAD, PUFFERFISH, POWERSGD, above=1 - NEAR, below=1 + NEAR, ratio=True)
_smaller = Check(PARAMETERS, DENSE, PUFFERFISH, above=1.0, ratio=True)
CLAIMS = (
    WORDS.claim("accuracy", Check(ACCURACY, PUFFERFISH, DENSE, above=-TOLERANCE), ours=True),
    WORDS.claim(
        "powersgd", Check(ACCURACY, PUFFERFISH, POWERSGD, above=-TOLERANCE), premises=(_equal_bytes,),
        ours=True,
    ),
    WORDS.claim("parameters", _smaller, by_construction=True),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not one experiment."""
    own = of_rows(runs, LOOKS)
    require_alike(own, ALIKE)
    found = frames.measure(own, QUANTITIES)
    accuracy = found[found["quantity"] == ACCURACY]
    base = accuracy[accuracy["row"] == DENSE].set_index("seed")["value"]
    over = accuracy["value"] - accuracy["seed"].map(base)
    frame = frames.join(
        found,
        frames.lines(accuracy.assign(quantity=GAIN, unit="points", value=over)),
        frames.relative(found, PARAMETERS, DENSE, inverse=True, name=SMALLER),
        frames.relative(found, PAYLOAD, PUFFERFISH, name=SHARE, unit="%"),
    )
    ranks = {run.setting("compressor.rank") for run in own if run.row == POWERSGD}
    labels = LABELS | {POWERSGD: f"PowerSGD, rank {facts.distinct(ranks)}"}
    columns = (
        seeds(ACCURACY),
        Column("parameters", PARAMETERS, count),
        Column("times smaller", SMALLER, times),
        Column("payload of the run", PAYLOAD, amount),
        Column("% of Pufferfish's", SHARE, 1),
        Column("payload a step, last epoch", PAYLOAD_STEP, amount),
        Column("test accuracy %", ACCURACY, 2),
        Column("points over dense", GAIN, lambda values: signed(values, 2)),
    )
    axes = {
        "by epoch": ("epoch", "epoch"),
        "by bytes": ("comm/payload_bytes", "payload sent (bytes)"),
    }
    shown = [
        panels.panel(
            title, panels.curves(own, "test/accuracy_percent", LOOKS, x=x), x=label, y="test accuracy (%)"
        )
        for title, (x, label) in axes.items()
    ]  # fmt: skip
    title, said = "Pufferfish, dense training and PowerSGD", facts.caption(own, scale)
    return made(
        __file__, scale, own, frame,
        [Section("Parameters, bytes and accuracy", pivot(frame, labels, columns))], CLAIMS, labels=LABELS,
        figures={"pufferfish": lambda: plot.figure(title, said, shown, size=(4.6, 3.6))},
    )  # fmt: skip
