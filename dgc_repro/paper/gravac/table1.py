"""GraVAC's Table I: the models as built here, beside the printed sizes and targets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import Column, of, pivot
from dgc_repro.paper.gravac import DATA, MODELS, SETUP, TARGETS
from dgc_repro.paper.gravac.studies import head, numbers
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, require_alike

LABELS = {**MODELS, "vgg16_plain": "VGG16 without batch norm", "lstm_tied": "LSTM, tied weights"}
"""The last two are ours: variants that the paper does not print."""
COLUMNS = {
    "layers": ("layers", ""), "mib": ("size", "MiB"), "parameters": ("parameters", ""),
    "tensors": ("tensors", ""),
}  # fmt: skip
HALF = 0.5  # sizes are printed as whole numbers

CLAIMS = tuple(
    Claim(
        model,
        f"{MODELS[model]} has {layers:g} layers and {size:g} MB.",
        "Table I",
        (near(Check("layers", model), layers, HALF), near(Check("size", model), size, HALF)),
        "MB of 2^20 bytes, 4 bytes a parameter, rounded to whole ones. The heads (1,000 classes, 10,000 "
        "words) were chosen so that the printed sizes come out: no finding.",
        by_construction=True,
    )
    for model, (layers, size, *_) in SETUP.rows.items()
)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not one study."""
    require_alike(runs, ("scale.name",))
    frame = numbers(runs, COLUMNS)
    known = frames.printed_numbers(SETUP, {"layers": "layers", "size": "size"})
    columns = (
        Column("layers", "layers", 0, printed=known),
        Column("MiB", "size", 1, printed=known),
        Column("parameters", "parameters", lambda v: f"{v[0]:,.0f}" if v else "not built"),
        Column("tensors", "tensors", 0),
    )
    table = pivot(frame, LABELS, columns, first="model")
    for heading, cells in (("dataset: printed", DATA), ("target: printed", TARGETS)):
        table[heading] = [cells.get(row, "-") for row in LABELS]
    return made(
        __file__,
        scale,
        runs,
        frame,
        [Section("Models", table)],
        CLAIMS,
        labels=LABELS,
        facts=head(runs, scale, [("sizes", "the paper's, at every scale")]),
        printed=known,
        figures={"table1": partial(_figure, frame, scale)},
    )


def _figure(frame: pd.DataFrame, scale: str) -> Figure:
    built = {model: found[0] for model in MODELS if (found := of(frame, "size", model))}
    looks = {"ours": Look("ours", plot.BLUE), "paper": Look("paper", plot.ORANGE)}
    sizes = {"ours": list(built.values()), "paper": [SETUP(model, "size") for model in built]}

    def draw(axes: Axes) -> None:
        plot.bars(axes, [MODELS[m] for m in built], sizes, looks, ylabel="parameters (MiB)")
        for bars in axes.containers:
            axes.bar_label(bars, fmt="%.0f", fontsize=8)  # type: ignore[arg-type]

    caption = f"{facts.scale_text(scale)}, models at the paper's sizes, 4 bytes a parameter"
    return plot.figure("GraVAC, Table I: models", caption, [("size", draw)], size=(5.6, 3.2))
