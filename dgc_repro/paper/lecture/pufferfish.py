"""Pufferfish against dense training and PowerSGD: parameters, bytes of a run, accuracy.

Wang, Agarwal, Papailiopoulos, "Pufferfish: communication-efficient models at no extra cost", MLSys 2021,
arXiv:2103.03936. The claims are those of its abstract. It prints no comparison at equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import OURS, Check, Claim
from dgc_repro.paper.frame import (
    SENT,
    Column,
    Quantity,
    amount,
    count,
    pivot,
    seeds,
    signed,
    times,
)
from dgc_repro.paper.lecture.ptb import PAYLOAD_STEP
from dgc_repro.paper.lecture.ptb import QUANTITIES as OF_PTB
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike

DENSE, PUFFERFISH, POWERSGD = "dense", "pufferfish", "powersgd"
LOOKS = {
    DENSE: Look("dense", plot.BLACK, "o"),
    PUFFERFISH: Look("Pufferfish", plot.ORANGE, "s"),
    POWERSGD: Look("PowerSGD", plot.BLUE, "^"),
}
LABELS = {row: look.label for row, look in LOOKS.items()}
ACCURACY, PARAMETERS, PAYLOAD = "test accuracy", "parameters", "payload"
GAIN, SMALLER, SHARE = (
    "accuracy over dense",
    "parameters, dense over this",
    "payload, of Pufferfish's",
)
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
ALIKE = tuple(key for key in facts.ALIKE if key != "model")
"""The model differs in ``model.low_rank``."""

CLAIMS = (
    Claim(
        "accuracy", "Pufferfish reaches the accuracy of the whole model.", "abstract",
        (Check(ACCURACY, PUFFERFISH, DENSE, above=-TOLERANCE),),
        f"Test accuracy after the last epoch, no more than {TOLERANCE:g} percentage point below.",
        margin=OURS,
    ),
    Claim(
        "powersgd", "At equal bytes Pufferfish is as accurate as PowerSGD, or more.",
        "abstract (gradient compression loses accuracy); equal bytes are ours",
        (Check(ACCURACY, PUFFERFISH, POWERSGD, above=-TOLERANCE),),
        f"The same margin. Premise: payloads of the run within {100 * NEAR:.0f} %.",
        (Check(PAYLOAD, PUFFERFISH, POWERSGD, above=1 - NEAR, below=1 + NEAR, ratio=True),), OURS,
    ),
    Claim(
        "parameters", "Pufferfish's model is smaller.", "abstract",
        (Check(PARAMETERS, DENSE, PUFFERFISH, above=1.0, ratio=True),),
        "Counted; follows from the rank.", by_construction=True,
    ),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not one experiment."""
    own = of_rows(runs, LOOKS)
    require_alike(own, [*ALIKE, "model._target_", "model.width"])
    found = frames.measure(own, QUANTITIES)
    accuracy = found[found["quantity"] == ACCURACY]
    base = accuracy[accuracy["row"] == DENSE].set_index("seed")["value"]
    over = accuracy["value"] - accuracy["seed"].map(base)
    gain = frames.lines(accuracy.assign(quantity=GAIN, unit="points", value=over))
    frame = frames.join(
        found,
        gain,
        frames.relative(found, PARAMETERS, DENSE, inverse=True, name=SMALLER),
        frames.relative(found, PAYLOAD, PUFFERFISH, name=SHARE, unit="%"),
    )
    return made(
        __file__, scale, own, frame, _sections(frame, own), CLAIMS, labels=LABELS,
        figures={"pufferfish": partial(_figure, own, scale)},
    )  # fmt: skip


def _sections(frame: pd.DataFrame, runs: Sequence[Run]) -> list[Section]:
    ranks = {run.setting("compressor.rank") for run in runs if run.row == POWERSGD}
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
    return [Section("Parameters, bytes and accuracy", pivot(frame, labels, columns))]


def _figure(runs: Sequence[Run], scale: str) -> Figure:
    metric, label = "test/accuracy_percent", "test accuracy (%)"

    def by_epoch(axes: Axes) -> None:
        plot.curves(axes, runs, metric, LOOKS, x="epoch", ylabel=label)

    def by_bytes(axes: Axes) -> None:
        plot.curves(
            axes,
            runs,
            metric,
            LOOKS,
            x="comm/payload_bytes",
            xlabel="payload sent (bytes)",
            ylabel=label,
        )

    panels = [("by epoch", by_epoch), ("by bytes", by_bytes)]
    title, said = "Pufferfish, dense training and PowerSGD", facts.caption(runs, scale)
    return plot.figure(title, said, panels, size=(4.6, 3.6))
