"""1-bit SGD: training with and without the accumulated quantization error, beside dense training.

Paper of the method: Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent and its application to
data-parallel distributed training of speech DNNs", Interspeech 2014.
"""

from __future__ import annotations

from collections.abc import Sequence

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import SENT, Column, Quantity, pivot, seeds, times
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike

WORDS = Template.read(__file__)
DENSE, FED, PLAIN = "dense", "fed", "plain"
LOOKS = {
    DENSE: Look("dense", plot.BLACK, "o"),
    FED: Look("1 bit, error accumulated", plot.BLUE, "s"),
    PLAIN: Look("1 bit, error dropped", plot.ORANGE, "^", "--"),
}
LABELS = {row: look.label for row, look in LOOKS.items()}
ACCURACY, LOSS, RATIO = "test accuracy", "training loss", "payload ratio"
QUANTITIES = {
    ACCURACY: Quantity("%", lambda run: run.last("test/accuracy_percent")),
    LOSS: Quantity("nats", lambda run: run.last("train/loss")),
    **SENT,
}
MARGIN_POINTS = 2.0
"""Points of accuracy below which a row counts as like dense. Ours."""
_like_dense = Check(ACCURACY, FED, DENSE, above=-MARGIN_POINTS, below=MARGIN_POINTS)
_below_dense = Check(ACCURACY, DENSE, PLAIN, above=MARGIN_POINTS)
CLAIMS = (
    WORDS.claim("accumulated", _like_dense, ours=True, margin=MARGIN_POINTS),
    WORDS.claim("dropped", _below_dense, ours=True, margin=MARGIN_POINTS),
    WORDS.claim("loss", Check(LOSS, PLAIN, FED)),
)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not one experiment."""
    require_alike(runs, facts.ALIKE)
    own = of_rows(runs, LOOKS)
    found = frames.measure(own, QUANTITIES)
    frame = frames.join(found, frames.relative(found, "payload", DENSE, inverse=True, name=RATIO))
    columns = (
        seeds(ACCURACY),
        Column("test accuracy %", ACCURACY, 2),
        Column(LOSS, LOSS, 3),
        Column(RATIO, RATIO, times),
    )
    said = f"{facts.caption(own, scale)}; mean over seeds, band: one standard deviation"
    drawn = {
        metric: panels.curves(own, metric, LOOKS)
        for metric in ("train/loss", "test/accuracy_percent")
    }
    shown = [
        panels.panel(LOSS, drawn["train/loss"], x="step", y="training loss (nats)", log="y"),
        panels.panel(ACCURACY, drawn["test/accuracy_percent"], x="step", y="test accuracy (%)"),
    ]
    title = "1-bit SGD with and without accumulated error"
    return made(
        __file__, scale, own, frame, [Section("Accuracy and bytes", pivot(frame, LABELS, columns))], CLAIMS,
        labels=LABELS, figures={"onebit": lambda: plot.figure(title, said, shown, columns=2)},
    )  # fmt: skip
