"""GraVAC's Table IV: floats sent by GraVAC and by Accordion between PowerSGD's ranks 1 and 4, and savings.

The printed floats of Accordion do not follow from these ranks: the first notes of table4.md show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd

from dgc_repro.paper import frame, gravac, panels, plot
from dgc_repro.paper.claims import Claim, near, printed_table
from dgc_repro.paper.frame import Column, Quantity, Relative, pivot, times
from dgc_repro.paper.gravac import (
    ACCORDION,
    DENSE,
    FAMILIES,
    GRAVAC,
    LABELS,
    MODELS,
    norm_of,
    row_id,
)
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.gravac.shared import FLOATS, RUN_SECONDS
from dgc_repro.paper.gravac.table2 import near_dense
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

POOL = "training"
SAVING = {name: f"{name}, saving over Accordion" for name in (FLOATS, RUN_SECONDS)}
SAVERS = (GRAVAC, norm_of(GRAVAC))
METHODS = (DENSE, ACCORDION, *SAVERS)
TABLE_4 = printed_table(
    "Table IV",
    "accordion [floats], gravac07 [floats], communication [x], time [x]",
    """
    resnet101   4.17e11  9.38e9   44.5  1.94
    vgg16       3.83e11  1.7e10   22.4  5.63
    lstm        4.2e11   4e9     104.2  2.06
    """,
)
KNOWN = {(row_id(m, ACCORDION), FLOATS): TABLE_4(m, ACCORDION) for m in MODELS} | {
    (row_id(model, method), quantity): TABLE_4(model, column)
    for column, quantity in zip(list(TABLE_4.columns)[1:], (FLOATS, *SAVING.values()), strict=True)
    for model in MODELS
    for method in SAVERS
}
WORDS = Template.read(__file__)


def _claims(model: str, arithmetic: str) -> Iterator[Claim]:
    saving, quicker = TABLE_4(model, "communication"), TABLE_4(model, "time")
    say = partial(WORDS.claim, of=model, model=MODELS[model], saving=saving, quicker=quicker)
    floats = g.fewer(model, GRAVAC, ACCORDION, 1.0)
    seconds = g.sooner(RUN_SECONDS, model, GRAVAC, ACCORDION, quicker)
    premises = (*g.compressed(model, GRAVAC), near_dense(model, GRAVAC))
    timed = partial(say, premises=premises, assumed=g.ASSUMED)
    yield say("saving", near(floats, saving, g.VOLUME_FACTOR), cannot_follow=arithmetic)
    both = (timed("faster", seconds), timed("time", g.sooner_by(seconds, quicker), ours=True))
    yield from g.both_gains((say("fewer", floats), *both))


CLAIMS = tuple(
    claim
    for model, note in zip(MODELS, WORDS.notes, strict=False)
    for claim in _claims(model, note.arithmetic)
)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    found = g.courses(runs, scale, methods=METHODS)
    own, table = g.runs_of(found), frame.join(*map(_measure, found))
    columns = (
        frame.seeds(FLOATS),
        Column("floats", FLOATS, frame.count, printed=KNOWN),
        Column("saves floats", SAVING[FLOATS], times, printed=KNOWN, printed_unit="x"),
        Column("saves time", SAVING[RUN_SECONDS], times, printed=KNOWN, printed_unit="x"),
        Column("wire", "wire", frame.amount),
        Column("accuracy %", g.QUALITY, 2),
        Column("perplexity", g.PERPLEXITY, 1),
    )
    rows = {row_id(model, m): LABELS[row_id(model, m)] for model in MODELS for m in METHODS}
    title = "Table IV: what GraVAC saves over Accordion (modelled seconds)"
    return g.made(
        WORDS, scale, own, table, [Section("Floats, and savings", pivot(table, rows, columns, "row"))],
        CLAIMS, labels=LABELS, printed=KNOWN, notes=WORDS.notes, choices=gravac.CHOICES,
        figures={"table4": g.drawn(title, own, scale, [_panel(table)], size=(7.2, 4.6), legend=3)},
    )  # fmt: skip


def _measure(one: g.Course) -> pd.DataFrame:
    """With modelled seconds, and what is saved over Accordion."""
    seconds = Quantity("s", lambda run: float(g.seconds(run)[-1]), "modelled")
    base = row_id(one.model, ACCORDION)
    saved = {new: Relative(name, base, inverse=True) for name, new in SAVING.items()}
    return g.measure(one, {RUN_SECONDS: seconds, **saved})


def _panel(table: pd.DataFrame) -> panels.Panel:
    """What is saved in time by what is saved in floats: printed and ours."""
    cells, looks = {}, {}
    for model, colour in zip(MODELS, plot.CYCLE, strict=False):
        for method, gain, dashes in zip(SAVERS, ("energy", "norm"), ("-", "--"), strict=True):
            row, name = row_id(model, method), f"{FAMILIES[model]}, {gain}"
            cells[row] = tuple(frame.of(table, quantity, row) for quantity in SAVING.values())
            looks[row] = Look(f"ours: {name}", colour, "o", dashes)
        cells[model] = tuple([KNOWN[row, quantity]] for quantity in SAVING.values())
        looks[model] = Look(f"paper: {MODELS[model]}", colour, "X")
    found = {row: (x, y) for row, (x, y) in cells.items() if x and y}
    return panels.panel(
        "", panels.rule("x", 1.0), panels.rule("y", 1.0), panels.points(found, looks), log="xy", unit="x",
        x="floats: Accordion / GraVAC", y="time: Accordion / GraVAC",
    )  # fmt: skip
