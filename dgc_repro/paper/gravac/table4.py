"""GraVAC's Table IV: floats sent by GraVAC and by Accordion between PowerSGD's ranks 1 and 4, and savings.

The printed floats of Accordion do not follow from these ranks: the first notes of table4.md show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from dgc_repro.paper import frame, panels, plot
from dgc_repro.paper.artifact import BARS, Shown, drawing
from dgc_repro.paper.claims import Claim, printed_table
from dgc_repro.paper.frame import Column, Relative, amount, count, seeds, times
from dgc_repro.paper.gravac import ACCORDION, DENSE, GRAVAC, MODELS, norm_of, row_id
from dgc_repro.paper.gravac import training as g
from dgc_repro.paper.gravac.training import FLOATS
from dgc_repro.paper.page import Template
from dgc_repro.paper.plot import Look

POOL = "training"
RUN_SECONDS = "seconds of the run"
SAVING = {name: f"{name}, saving over Accordion" for name in (FLOATS, RUN_SECONDS)}
SAVERS = {GRAVAC: ("energy", "-"), norm_of(GRAVAC): ("norm", "--")}
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


def claims(one: g.Course) -> Iterator[Claim]:
    """The claims on a model, with both gains."""
    model = one.model
    saving, quicker = TABLE_4(model, "communication"), TABLE_4(model, "time")
    (why,) = (n.arithmetic for n in WORDS.notes if n.arithmetic.startswith(f"{MODELS[model]}: "))
    say = partial(WORDS.claim, of=model, model=MODELS[model], saving=saving, quicker=quicker)
    seconds = g.sooner(RUN_SECONDS, model, GRAVAC, ACCORDION, quicker)
    premises = (g.fewer(model, GRAVAC), g.near_dense(model, GRAVAC))
    timed = partial(say, premises=premises, assumed=g.ASSUMED)
    by = g.fewer_by(model, GRAVAC, saving, ACCORDION)
    yield say("saving", by, cannot_follow=why, ours=True)
    both = [
        say("fewer", g.fewer(model, GRAVAC, ACCORDION, 1.0)),
        timed("faster", seconds),
        timed("time", g.sooner_by(seconds, quicker), ours=True),
    ]
    yield from g.both_gains(both)


def _numbers(one: g.Course) -> pd.DataFrame:
    """With modelled seconds, and what is saved over Accordion."""
    base = row_id(one.model, ACCORDION)
    saved = {new: Relative(name, base, inverse=True) for name, new in SAVING.items()}
    return g.measure(one, {RUN_SECONDS: g.seconds(lambda run: -1), **saved})


def _panels(shown: Shown) -> list[panels.Panel]:
    """What is saved in time by what is saved in floats: printed and ours."""
    cells: dict[str, tuple[Any, ...]] = {}
    looks = {}
    for one, colour in zip(g.courses(shown.runs, shown.scale), plot.CYCLE, strict=False):
        for method, (gain, dashes) in SAVERS.items():
            row = row_id(one.model, method)
            cells[row] = tuple(frame.of(shown.frame, name, row) for name in SAVING.values())
            cells[one.model] = tuple([KNOWN[row, name]] for name in SAVING.values())
            looks[row] = Look(f"ours: {one.name}, {gain}", colour, "o", dashes)
            looks[one.model] = Look(f"paper: {MODELS[one.model]}", colour, "X")
    drawn = panels.points({row: (x, y) for row, (x, y) in cells.items() if x and y}, looks)
    ones = panels.rule("x", 1.0), panels.rule("y", 1.0)
    x, y = ("floats: Accordion / GraVAC", "time: Accordion / GraVAC")
    return [panels.panel("", *ones, drawn, log="xy", unit="x", x=x, y=y)]


TITLE = "GraVAC, Table IV: what GraVAC saves over Accordion"
NOTE = f"Times are modelled. {BARS}"
page = g.page(
    __file__,
    (DENSE, ACCORDION, *SAVERS),
    claims,
    numbers=_numbers,
    quantities=(RUN_SECONDS, *SAVING.values()),
    tables={
        "Floats, and savings": (
            *(seeds(FLOATS), Column("floats", FLOATS, count)),
            Column("saves floats", SAVING[FLOATS], times, printed_unit="x"),
            Column("saves time", SAVING[RUN_SECONDS], times, printed_unit="x"),
            *(Column("wire", "wire", amount), *g.FINAL_COLUMN.values()),
        )
    },
    printed=KNOWN,
    notes=WORDS.notes,
    choices=g.CHOICES,
    figures={"table4": drawing(TITLE, _panels, NOTE, size=(7.2, 4.6), legend=3)},
)
