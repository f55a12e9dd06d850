"""GraVAC's Table IV: floats sent by GraVAC and by Accordion between PowerSGD's ranks 1 and 4, and savings.

The printed floats of Accordion do not follow from these ranks; `arithmetic` shows it from printed numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from dgc_repro.paper import facts, frame, gravac, panels, plot
from dgc_repro.paper.claims import Check, Claim, near, printed_table
from dgc_repro.paper.frame import SENT, Column, Known, Quantity, pivot
from dgc_repro.paper.gravac import (
    ACCORDION,
    DENSE,
    GRAVAC,
    LABELS,
    LSTM,
    MODELS,
    PARAMETERS,
    RESNET101,
    VGG16,
    norm_of,
    row_id,
)
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.gravac.shared import FLOATS, MODELLED, RUN_SECONDS
from dgc_repro.paper.gravac.table2 import near_dense
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

POOL = "training"
FACTOR = "compression factor"
SAVING = {name: f"{name}, saving over Accordion" for name in (*SENT, RUN_SECONDS)}
METHODS = (DENSE, ACCORDION, GRAVAC, norm_of(GRAVAC))
TABLE_4 = printed_table(
    "Table IV",
    "accordion [floats], gravac07 [floats], communication [x], time [x]",
    """
    resnet101   4.17e11  9.38e9   44.5  1.94
    vgg16       3.83e11  1.7e10   22.4  5.63
    lstm        4.2e11   4e9     104.2  2.06
    """,
)
WEAK_RANK, STRONG_RANK = 4, 1
RANK_FACTORS = {RESNET101: (57, 161), VGG16: (414, 1479), LSTM: (268, 759)}
"""Values of a model over the floats that PowerSGD sends of it at these ranks: r (rows + columns) of a matrix,
vectors as they are. VGG16 without batch normalization."""
WORDS = Template.read(__file__)


def implied_steps(model: str) -> float:
    """GraVAC's printed floats times its printed reduction, over the model's parameters."""
    return TABLE_4(model, GRAVAC) * gravac.REDUCTIONS[model][GRAVAC] / PARAMETERS[model]


def implied_factor(model: str) -> float:
    """Parameters over Accordion's printed floats of one of these steps."""
    return PARAMETERS[model] * implied_steps(model) / TABLE_4(model, ACCORDION)


def arithmetic(model: str) -> str:
    """Why Accordion's printed floats cannot come from ranks 1 and 4, in one sentence."""
    a_step = TABLE_4(model, ACCORDION) / implied_steps(model)
    weak, strong = RANK_FACTORS[model]
    return (
        f"{MODELS[model]}: {_floats(TABLE_4(model, GRAVAC))} floats x {gravac.REDUCTIONS[model][GRAVAC]:g} / "
        f"{PARAMETERS[model] / 1e6:.1f} M = {implied_steps(model):,.0f} steps, over which Accordion's "
        f"{_floats(TABLE_4(model, ACCORDION))} are {a_step / 1e6:.1f} M a step: factor "
        f"{implied_factor(model):.1f}, while rank {WEAK_RANK} gives {weak} and rank {STRONG_RANK} {strong}."
    )


def _floats(value: float) -> str:
    """As the paper writes it: 4.17e11."""
    return f"{value:.3g}".replace("e+", "e").replace("e0", "e")


_sent = TABLE_4(RESNET101, GRAVAC)
NOTES = WORDS.noted(
    **{model: arithmetic(model) for model in MODELS},
    steps=implied_steps(RESNET101),
    floats=_floats(_sent),
    reduction=PARAMETERS[RESNET101] * 18_000 / _sent,
    printed=gravac.REDUCTIONS[RESNET101][GRAVAC],
    implied=", ".join(f"{implied_factor(model):.1f}" for model in MODELS),
)


def _claims(model: str) -> Iterator[Claim]:
    say = partial(WORDS.claim, of=model, model=MODELS[model])
    saving, quicker = TABLE_4(model, "communication"), TABLE_4(model, "time")
    rows = row_id(model, ACCORDION), row_id(model, GRAVAC)
    floats = Check(FLOATS, *rows, above=1.0, ratio=True, printed=saving)
    yield say("fewer", floats)
    own, other = (_floats(TABLE_4(model, method)) for method in (GRAVAC, ACCORDION))
    yield say(
        "saving", near(floats, saving, g.VOLUME_FACTOR), cannot_follow=arithmetic(model), own=own,
        other=other, saving=saving,
    )  # fmt: skip
    seconds = g.sooner(RUN_SECONDS, model, GRAVAC, ACCORDION, quicker)
    premises = (*g.compressed(model, GRAVAC), near_dense(model, GRAVAC))
    say = partial(say, premises=premises, assumed=g.ASSUMED)
    yield say("faster", seconds)
    yield say("time", g.sooner_by(seconds, quicker), ours=True, quicker=quicker)


def _of_norm(claim: Claim) -> Claim:
    return g.of_norm(claim, cannot_follow=claim.cannot_follow)


CLAIMS = tuple(c for m in MODELS for c in (*_claims(m), *map(_of_norm, _claims(m))))


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    found = g.courses(runs, scale, methods=METHODS)
    own, table = g.runs_of(found), frame.join(*map(_measure, found))
    known = _printed_numbers()
    title = "Table IV: what GraVAC saves over Accordion; bars: one standard deviation over seeds"
    said, drawn = facts.caption(own, scale), _panels(table, known)
    return g.made(
        __file__, scale, own, table, [*_sections(table, known), g.setup_section(found)], CLAIMS,
        labels=LABELS, printed=known, notes=NOTES, choices=gravac.CHOICES,
        figures={"table4": lambda: plot.figure(title, said, drawn, columns=2, size=(5.0, 3.6), legend=6)},
    )  # fmt: skip


def _measure(one: g.Course) -> pd.DataFrame:
    """With the factor that a row reaches over the whole run, and what it saves over Accordion."""

    def factor(run: Run) -> float:
        values = float(run.summary.get("parameters", math.nan)) * g.num_steps(run)
        return values / run.last("comm/floats")

    found = frame.join(g.measure(one), frame.measure(one.runs, {FACTOR: Quantity("x", factor)}))
    base = row_id(one.model, ACCORDION)
    saved = (
        frame.relative(found, name, base, inverse=True, name=new) for name, new in SAVING.items()
    )
    return frame.join(found, *(table[table["row"] != base] for table in saved))


def _printed_numbers() -> Known:
    found = {(row_id(m, ACCORDION), FLOATS): TABLE_4(m, ACCORDION) for m in MODELS}
    columns = {FLOATS: GRAVAC, SAVING[FLOATS]: "communication", SAVING[RUN_SECONDS]: "time"}
    return found | {
        (row_id(model, method), quantity): TABLE_4(model, column)
        for model in MODELS
        for method in (GRAVAC, norm_of(GRAVAC))
        for quantity, column in columns.items()
    }


def _rows(*methods: str) -> dict[str, str]:
    rows = [row_id(model, method) for model in MODELS for method in methods]
    return {row: LABELS[row] for row in rows}


def _sections(table: pd.DataFrame, known: Known) -> list[Section]:
    times = frame.times
    saved = [
        frame.seeds(FLOATS),
        *(
            Column(name, SAVING[name], times, "", known if name == FLOATS else None, "x")
            for name in SENT
        ),
    ]
    for clock in g.shown_clocks(table):
        beside = known if clock == MODELLED else None
        saved.append(Column(f"time, {clock}", SAVING[RUN_SECONDS], times, clock, beside, "x"))
    sent = [
        Column("floats", FLOATS, frame.count, printed=known),
        Column("factor", FACTOR, times),
        *(Column(name, name, frame.amount) for name in SENT if name != FLOATS),
        Column("accuracy %", g.QUALITY, 2),
        Column("perplexity", g.PERPLEXITY, 1),
    ]
    savers = _rows(GRAVAC, norm_of(GRAVAC))
    return [
        Section("What GraVAC saves: Accordion's over its own", pivot(table, savers, saved, "row")),
        Section("What one worker sends", pivot(table, _rows(*METHODS), sent, "row")),
    ]


LOOKS = {
    "printed": Look("paper", plot.BLACK, "X"),
    FLOATS: Look("floats", plot.BLUE, "o"),
    "payload": Look("payload", plot.ORANGE, "s"),
    "wire": Look("wire", plot.GREEN, "^"),
    MODELLED: Look("modelled seconds", plot.PURPLE, "D"),
    g.WORKERS_HERE: Look("modelled seconds, workers as here", plot.YELLOW, "P"),
    g.MEASURED: Look("measured seconds", plot.SKY, "v"),
}


def _panels(table: pd.DataFrame, known: Known) -> list[panels.Panel]:
    """Savings by model and gain: left in what is sent, right in time."""
    have = set(table.loc[table["quantity"] == SAVING[FLOATS], "row"])
    names = {
        row_id(model, method): f"{family}\n{gain}"
        for model, family in gravac.FAMILIES.items()
        for method, gain in ((GRAVAC, "energy"), (norm_of(GRAVAC), "norm"))
    }
    rows = [row for row in names if row in have]

    def panel(title: str, series: Mapping[str, tuple[str, str]], printed: str) -> panels.Panel:
        drawn = []
        for place, row in enumerate(rows):
            cells = {key: frame.of(table, name, row, at) for key, (name, at) in series.items()}
            cells = {"printed": [known[row, printed]], **{k: v for k, v in cells.items() if v}}
            spots = place + 0.14 * (np.arange(len(cells)) - (len(cells) - 1) / 2)
            points = zip(cells.items(), spots, strict=True)
            where = {key: ([x] * len(ys), ys) for (key, ys), x in points}
            drawn.append(panels.points(where, LOOKS))
        return panels.panel(
            title, *drawn, grid="y", at_y=[1.0], log="y", unit="x",
            subs=(1.0, 3.0), y="Accordion / GraVAC", xticks={i: names[row] for i, row in enumerate(rows)},
        )  # fmt: skip

    sent = {name: (SAVING[name], "") for name in SENT}
    time = {clock: (SAVING[RUN_SECONDS], clock) for clock in g.CLOCKS}
    return [
        panel("communication", sent, SAVING[FLOATS]),
        panel("time", time, SAVING[RUN_SECONDS]),
    ]
