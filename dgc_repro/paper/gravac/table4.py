"""GraVAC's Table IV: floats sent by GraVAC and by Accordion between PowerSGD's ranks 1 and 4, and savings.

The printed floats of Accordion do not follow from these ranks; `arithmetic` shows it from printed numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, frame, gravac, plot
from dgc_repro.paper.claims import OURS, Check, Claim, Note, Printed, near
from dgc_repro.paper.frame import SENT, Column, Known, Quantity, pivot
from dgc_repro.paper.gravac import ACCORDION, DENSE, GRAVAC, LABELS, MODELS, norm_of, row_id
from dgc_repro.paper.gravac import shared as steps
from dgc_repro.paper.gravac import shared as training
from dgc_repro.paper.gravac.shared import ASSUMED, FLOATS, MODELLED, RUN_SECONDS, Course
from dgc_repro.paper.gravac.table2 import near_dense
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

POOL = "training"
FACTOR = "compression factor"
SAVING = {name: f"{name}, saving over Accordion" for name in (*SENT, RUN_SECONDS)}
METHODS = (DENSE, ACCORDION, GRAVAC, norm_of(GRAVAC))
TABLE_4 = Printed(
    "Table IV",
    {ACCORDION: "floats", GRAVAC: "floats", "communication": "x", "time": "x"},
    {
        gravac.RESNET101: (4.17e11, 9.38e9, 44.5, 1.94),
        gravac.VGG16: (3.83e11, 1.7e10, 22.4, 5.63),
        gravac.LSTM: (4.2e11, 4e9, 104.2, 2.06),
    },
)
WEAK_RANK, STRONG_RANK = 4, 1
RANK_FACTORS = {gravac.RESNET101: (57, 161), gravac.VGG16: (414, 1479), gravac.LSTM: (268, 759)}
"""Values of a model over the floats that PowerSGD sends of it at these ranks: r (rows + columns) of a matrix,
vectors as they are. gravac.VGG16 without batch normalization."""
PUBLISHED_FACTORS = (1, 4)
"""Of Accordion's published code: top-k ratios 0.99 and 0.25."""


def implied_steps(model: str) -> float:
    """GraVAC's printed floats times its printed reduction, over the model's parameters."""
    return TABLE_4(model, GRAVAC) * gravac.REDUCTIONS[model][GRAVAC] / gravac.PARAMETERS[model]


def implied_factor(model: str) -> float:
    """Parameters over Accordion's printed floats of one of these steps."""
    return gravac.PARAMETERS[model] * implied_steps(model) / TABLE_4(model, ACCORDION)


def arithmetic(model: str) -> str:
    """Why Accordion's printed floats cannot come from ranks 1 and 4, in one sentence."""
    a_step = TABLE_4(model, ACCORDION) / implied_steps(model)
    weak, strong = RANK_FACTORS[model]
    return (
        f"{MODELS[model]}: {_floats(TABLE_4(model, GRAVAC))} floats x {gravac.REDUCTIONS[model][GRAVAC]:g} / "
        f"{gravac.PARAMETERS[model] / 1e6:.1f} M = {implied_steps(model):,.0f} steps, over which Accordion's "
        f"{_floats(TABLE_4(model, ACCORDION))} are {a_step / 1e6:.1f} M a step: factor "
        f"{implied_factor(model):.1f}, while rank {WEAK_RANK} gives {weak} and rank {STRONG_RANK} {strong}."
    )


def _floats(value: float) -> str:
    """As the paper writes it: 4.17e11."""
    return f"{value:.3g}".replace("e+", "e").replace("e0", "e")


NOTES = (
    *(
        Note("What Accordion is printed to send does not follow from ranks 1 and 4.", arithmetic(model))
        for model in MODELS
    ),
    Note(
        f"Table IV implies {implied_steps(gravac.RESNET101):,.0f} steps of ResNet101; 18,000 are enough for "
        "figure 7.",
        f"With {_floats(TABLE_4(gravac.RESNET101, GRAVAC))} floats, 18,000 steps would be a reduction of "
        f"{gravac.PARAMETERS[gravac.RESNET101] * 18_000 / TABLE_4(gravac.RESNET101, GRAVAC):.0f}x, printed "
        f"{gravac.REDUCTIONS[gravac.RESNET101][GRAVAC]:g}x.",
    ),
    Note(
        "A hint, not a proof: Accordion's published defaults are top-k ratios 0.99 and 0.25.",
        f"Their factors, {PUBLISHED_FACTORS[0]} to {PUBLISHED_FACTORS[1]}, bracket the implied "
        + ", ".join(f"{implied_factor(model):.1f}" for model in MODELS)
        + ".",
    ),
)  # fmt: skip
_SENT = (
    "Floats of the whole run, Accordion's over GraVAC's, paired by seed, in the same number of steps. "
    "Accordion is as published, ranks 1 and 4, not tuned towards the printed floats."
)
_TIME = (
    "Modelled seconds of the whole run, paired by seed, in the same number of steps. Not tested where "
    "GraVAC ends farther below dense than any row with a speedup in Table II misses its target."
)


def _claims(model: str) -> tuple[Claim, ...]:
    name = MODELS[model]
    premises = (*training.compressed(model, GRAVAC), near_dense(model, GRAVAC))
    rows = row_id(model, ACCORDION), row_id(model, GRAVAC)
    saving, quicker = TABLE_4(model, "communication"), TABLE_4(model, "time")
    floats = Check(FLOATS, *rows, above=1.0, ratio=True, printed=saving)
    seconds = Check(RUN_SECONDS, *rows, above=1.0, ratio=True, setting=MODELLED, printed=quicker)
    own, other = (_floats(TABLE_4(model, method)) for method in (GRAVAC, ACCORDION))
    return (
        Claim(f"{model}.fewer", f"{name}: GraVAC sends fewer floats than Accordion.", "Table IV",
              (floats,), _SENT),
        Claim(f"{model}.saving", f"{name}: {saving:g} times fewer ({other} and {own}).", "Table IV",
              (near(floats, saving, training.VOLUME_FACTOR),), cannot_follow=arithmetic(model)),
        Claim(f"{model}.faster", f"{name}: GraVAC takes less time than Accordion.", "Table IV",
              (seconds,), _TIME, premises, assumed=ASSUMED),
        Claim(f"{model}.time", f"{name}: {quicker:g} times less.", "Table IV",
              (training.sooner_by(seconds, quicker),),
              "The same, within half of the printed gain either way.", premises, OURS, assumed=ASSUMED),
    )  # fmt: skip


def _of_norm(claim: Claim) -> Claim:
    return steps.of_norm(claim, cannot_follow=claim.cannot_follow)


CLAIMS = tuple(
    claim for model in MODELS for claim in (*_claims(model), *map(_of_norm, _claims(model)))
)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    found = training.courses(runs, scale, methods=METHODS)
    own, table = training.runs_of(found), frame.join(*map(_measure, found))
    clocks, known = training.shown_clocks(table), _printed_numbers()
    saved, sent = _saved_columns(clocks, known), _sent_columns(known)
    return made(
        __file__,
        scale,
        own,
        table,
        [
            Section(
                "What GraVAC saves: Accordion's over its own",
                pivot(table, _rows(GRAVAC, norm_of(GRAVAC)), saved, "row"),
            ),
            Section("What one worker sends", pivot(table, _rows(*METHODS), sent, "row")),
            training.setup_section(found),
        ],
        CLAIMS,
        labels=LABELS,
        data=gravac.DATA,
        said={"clocks": training.clocks_text(clocks)},
        printed=known,
        notes=NOTES,
        choices=gravac.CHOICES,
        figures={"table4": lambda: _figure(table, own, scale)},
    )


def _measure(one: Course) -> pd.DataFrame:
    """With the factor that a row reaches over the whole run, and what it saves over Accordion."""

    def factor(run: Run) -> float:
        values = float(run.summary.get("parameters", math.nan)) * training.num_steps(run)
        return values / run.last("comm/floats")

    found = frame.join(
        training.measure(one), frame.measure(one.runs, {FACTOR: Quantity("x", factor)})
    )
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


def _saved_columns(clocks: Sequence[str], known: Known) -> list[Column]:
    columns = [frame.seeds(FLOATS)]
    for name in SENT:
        beside = known if name == FLOATS else None
        columns.append(Column(name, SAVING[name], frame.times, "", beside, "x"))
    for clock in clocks:
        beside = known if clock == MODELLED else None
        heading = f"time, {clock}"
        columns.append(Column(heading, SAVING[RUN_SECONDS], frame.times, clock, beside, "x"))
    return columns


def _sent_columns(known: Known) -> list[Column]:
    return [
        Column("floats", FLOATS, frame.count, printed=known),
        Column("factor", FACTOR, frame.times),
        *(Column(name, name, frame.amount) for name in SENT if name != FLOATS),
        Column("accuracy %", training.QUALITY, 2),
        Column("perplexity", training.PERPLEXITY, 1),
    ]


LOOKS = {
    "printed": Look("paper", plot.BLACK, "X"),
    FLOATS: Look("floats", plot.BLUE, "o"),
    "payload": Look("payload", plot.ORANGE, "s"),
    "wire": Look("wire", plot.GREEN, "^"),
    MODELLED: Look("modelled seconds", plot.PURPLE, "D"),
    training.WORKERS_HERE: Look("modelled seconds, workers as here", plot.YELLOW, "P"),
    training.MEASURED: Look("measured seconds", plot.SKY, "v"),
}


def _figure(table: pd.DataFrame, runs: Sequence[Run], scale: str) -> Figure:
    """Savings by model and gain: left in what is sent, right in time."""
    known = _printed_numbers()
    have = set(table.loc[table["quantity"] == SAVING[FLOATS], "row"])
    rows = [row for row in _rows(GRAVAC, norm_of(GRAVAC)) if row in have]

    names = {
        row_id(model, method): f"{family}\n{gain}"
        for model, family in gravac.FAMILIES.items()
        for method, gain in ((GRAVAC, "energy"), (norm_of(GRAVAC), "norm"))
    }

    def panel(axes: Axes, series: dict[str, tuple[str, str]], printed: str) -> None:
        for place, row in enumerate(rows):
            cells = {key: frame.of(table, name, row, at) for key, (name, at) in series.items()}
            cells = {"printed": [known[row, printed]], **{k: v for k, v in cells.items() if v}}
            spots = place + 0.14 * (np.arange(len(cells)) - (len(cells) - 1) / 2)
            points = zip(cells.items(), spots, strict=True)
            plot.points(axes, {key: ([x] * len(ys), ys) for (key, ys), x in points}, LOOKS)
        axes.axhline(1.0, color=plot.BLACK, linewidth=0.8)
        plot.name_axes(axes, "", "Accordion / GraVAC", "y")
        plot.plain_log(axes.yaxis, (1.0, 3.0), unit="x")
        axes.set_xticks(range(len(rows)), [names[row] for row in rows])
        axes.grid(axis="x", visible=False)

    sent = {name: (SAVING[name], "") for name in SENT}
    time = {clock: (SAVING[RUN_SECONDS], clock) for clock in training.CLOCKS}
    panels: plot.Panels = [
        ("communication", partial(panel, series=sent, printed=SAVING[FLOATS])),
        ("time", partial(panel, series=time, printed=SAVING[RUN_SECONDS])),
    ]
    title = "Table IV: what GraVAC saves over Accordion; bars: one standard deviation over seeds"
    caption = facts.caption(runs, scale)
    return plot.figure(title, caption, panels, columns=2, size=(5.0, 3.6), legend=6)
