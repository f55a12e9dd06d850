"""GraVAC's Table I: the models as built here, beside the printed sizes and targets."""

from __future__ import annotations

from collections.abc import Sequence

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, near
from dgc_repro.paper.frame import Column, of, pivot
from dgc_repro.paper.gravac import DATA, MODELS, SETUP, TARGETS
from dgc_repro.paper.gravac.studies import head, numbers
from dgc_repro.paper.page import Page, Section, Template, made
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
    Template.read(__file__).claim(
        "size", near(Check("layers", row), layers, HALF), near(Check("size", row), size, HALF), id=row,
        by_construction=True, model=MODELS[row], layers=layers, size=size,
    )
    for row, (layers, size, *_) in SETUP.rows.items()
)  # fmt: skip


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
    built = {model: found[0] for model in MODELS if (found := of(frame, "size", model))}
    looks = {"ours": Look("ours", plot.BLUE), "paper": Look("paper", plot.ORANGE)}
    sizes = {"ours": list(built.values()), "paper": [SETUP(model, "size") for model in built]}
    bars = panels.bars([MODELS[m] for m in built], sizes, looks, "%.0f")
    drawn = [panels.panel("size", bars, y="parameters (MiB)")]
    said = f"{facts.scale_text(scale)}, models at the paper's sizes, 4 bytes a parameter"
    title = "GraVAC, Table I: models"
    return made(
        __file__, scale, runs, frame, [Section("Models", table)], CLAIMS, labels=LABELS, printed=known,
        facts=head(runs, scale, [("sizes", "the paper's, at every scale")]),
        figures={"table1": lambda: plot.figure(title, said, drawn, size=(5.6, 3.2))},
    )  # fmt: skip
