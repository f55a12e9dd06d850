"""1-bit SGD: training with and without the accumulated quantization error, beside dense training.

Paper of the method: Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent and its application to
data-parallel distributed training of speech DNNs", Interspeech 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import OURS, Check, Claim
from dgc_repro.paper.frame import SENT, Column, Quantity, pivot, seeds, times
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike

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
_source = "1-bit SGD: quantization error accumulated"

CLAIMS = (
    Claim(
        "accumulated", "With the accumulated error, 1-bit SGD converges like dense training.", _source,
        (Check(ACCURACY, FED, DENSE, above=-MARGIN_POINTS, below=MARGIN_POINTS),),
        f"Test accuracy after the last epoch, within {MARGIN_POINTS:g} points of dense either way.",
        margin=OURS,
    ),
    Claim(
        "dropped", "Without it, 1-bit SGD does not.", _source,
        (Check(ACCURACY, DENSE, PLAIN, above=MARGIN_POINTS),),
        f"Test accuracy after the last epoch, more than {MARGIN_POINTS:g} points below dense.",
        margin=OURS,
    ),
    Claim(
        "loss", "The accumulated error lowers the training loss.", _source,
        (Check(LOSS, PLAIN, FED),),
        "Mean training loss of the last epoch: higher where the error is dropped.",
    ),
)  # fmt: skip


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
    return made(
        __file__,
        scale,
        own,
        frame,
        [Section("Accuracy and bytes", pivot(frame, LABELS, columns))],
        CLAIMS,
        labels=LABELS,
        figures={"onebit": partial(_figure, own, scale)},
    )


def _figure(runs: Sequence[Run], scale: str) -> Figure:
    def draw(axes: Axes, metric: str, label: str, log: bool) -> None:
        plot.curves(axes, runs, metric, LOOKS, xlabel="step", ylabel=label, log=log)

    panels: plot.Panels = [
        (LOSS, partial(draw, metric="train/loss", label="training loss (nats)", log=True)),
        (ACCURACY, partial(draw, metric="test/accuracy_percent", label="test accuracy (%)", log=False)),
    ]  # fmt: skip
    said = f"{facts.caption(runs, scale)}; mean over seeds, band: one standard deviation"
    return plot.figure("1-bit SGD with and without accumulated error", said, panels, columns=2)
