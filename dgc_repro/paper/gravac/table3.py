"""GraVAC's Table III: compressing a gradient to 10x and to 1000x, direct against multi-level.

Set-up as printed: NVIDIA V100; every tensor is compressed by itself. Direct compresses the gradient to both
factors; multi-level compresses it to 10x and compresses what is left to 1000x. A seed of the frame is a
repeat here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd

from dgc_repro.paper import gravac, panels, plot
from dgc_repro.paper.artifact import Artifact, Rows, Shown, drawing
from dgc_repro.paper.claims import Check, Claim, printed_table
from dgc_repro.paper.frame import Column, Values, join, longer, of
from dgc_repro.paper.gravac import COMPRESSORS, MODELS
from dgc_repro.paper.gravac.training import sooner_by
from dgc_repro.paper.page import Page, Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run
from dgc_repro.paper.statistics import interval

DIRECT, MULTILEVEL, SPEEDUP, TIME = "direct", "multilevel", "speedup", "compression time"
WEAK, STRONG, SINGLE_PASS = "weak", "strong", "single_pass"
WAYS = {
    DIRECT: "direct", MULTILEVEL: "multi-level", WEAK: "10x alone", SINGLE_PASS: "single pass",
    STRONG: "1000x alone",
}  # fmt: skip
"""The first four are timed; the last is direct less 10x alone. Single pass is ours."""
TABLE_3 = printed_table(
    "Table III",
    "direct [ms], multilevel [ms], speedup [x]",
    """
    resnet101.topk      606    332   1.83
    resnet101.dgc        90     59   1.52
    resnet101.redsync    33   29.8   1.1
    resnet101.randomk    23     14   1.64
    vgg16.topk          181    121   1.49
    vgg16.dgc           122   95.5   1.27
    vgg16.redsync     101.4   87.7   1.16
    vgg16.randomk      41.6     31   1.34
    lstm.topk           200    126   1.59
    lstm.dgc             88     63   1.4
    lstm.redsync       69.4   46.4   1.5
    lstm.randomk       56.4   37.4   1.5
    """,
)
TITLE = "GraVAC, Table III: multi-level against direct compression"
NOTE = "Intervals are over repeats on one machine."
WORDS = Template.read(__file__)


def _over(row: str, slow: str, quick: str) -> Check:
    """A way takes longer than another one."""
    return Check(TIME, f"{row}.{slow}", f"{row}.{quick}", above=1.0, ratio=True)


def _claims() -> Iterator[Claim]:
    """Four claims of Top-k, two of the other methods."""
    for row, printed in TABLE_3.rows.items():
        model, _, method = row.partition(".")
        say = partial(WORDS.claim, of=row, called=f"{MODELS[model]}, {COMPRESSORS[method]}")
        faster = _over(row, DIRECT, MULTILEVEL)
        yield say("faster", faster)
        said = dict(zip(TABLE_3.columns, printed, strict=True))
        yield say("magnitude", sooner_by(faster, said[SPEEDUP]), ours=True, **said)
        if method == "topk":
            yield say("latency", Check(TIME, f"{row}.{WEAK}", f"{row}.{STRONG}"))
            yield say("single_pass", _over(row, MULTILEVEL, SINGLE_PASS))


CLAIMS = tuple(_claims())


def rows_of(runs: Sequence[Run]) -> dict[str, str]:
    """The lines of the table, with the names of our models."""
    names = MODELS | {run.row: gravac.name_of(run) for run in runs}
    return {
        row: f"{names[model]}, {COMPRESSORS[method]}"
        for row in TABLE_3.rows
        for model, method in [row.split(".")]
    }


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """Milliseconds of each repeat by way, their medians, and the speedup of each repeat; by tensor, as the
    paper: records have the gradient as one vector too."""
    found = pd.concat(run.lines.assign(row=run.row + "." + run.lines["method"]) for run in runs)
    found = found[found["block"] == "layerwise"].rename(columns={"repeat": "seed"})
    found[f"{STRONG}_ms"] = found[f"{DIRECT}_ms"] - found[f"{WEAK}_ms"]
    found[SPEEDUP] = found[f"{DIRECT}_ms"] / found[f"{MULTILEVEL}_ms"]
    medians = found.groupby("row").median(numeric_only=True).reset_index().assign(seed=0)
    times = (
        longer(found.assign(row=found["row"] + "." + way), {f"{way}_ms": (TIME, "ms", "measured")})
        for way in WAYS
    )
    return join(
        longer(found, {SPEEDUP: (SPEEDUP, "x")}),
        longer(medians, {f"{way}_ms": (way, "ms", "measured") for way in WAYS}),
        *times,
    )


def _speedup(values: Values) -> str:
    """Geometric mean and interval."""
    if not values:
        return "-"
    mean, low, high = interval(values, ratio=True)
    return f"{mean:.2f}x [{low:.2f}, {high:.2f}]"


def _panels(shown: Shown) -> list[panels.Panel]:
    ours = [of(shown.frame, SPEEDUP, row) for row in TABLE_3.rows]
    printed = [TABLE_3(row, SPEEDUP) for row in TABLE_3.rows], range(len(ours))
    cross = {"color": plot.BLACK, "marker": "x", "linestyle": "none"}
    drawn = (
        panels.rule("x", 1.0),
        panels.lines([printed], "paper (V100)", **cross),
        panels.strip(ours, partial(interval, ratio=True), Look("ours (95 % interval)", plot.BLUE)),
    )
    ticks = dict(enumerate(rows_of(shown.runs).values()))
    x = "speedup: time of direct / time of multi-level"
    return [panels.panel("", *drawn, x=x, yticks=ticks, ylim=(len(ours) - 0.4, -0.6))]


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    rows = rows_of(runs)
    ways = {f"{row}.{way}": f"{rows[row]}, {WAYS[way]}" for row in rows for way in WAYS}
    settings = (f"measure.{key}" for key in ("factors", "repeats", "steps"))
    columns = (
        Column(SPEEDUP, SPEEDUP, _speedup),
        *(Column(f"{WAYS[way]} ms", way) for way in (DIRECT, MULTILEVEL, WEAK, SINGLE_PASS)),
    )
    made = Artifact(
        __file__,
        rows=rows | ways,
        numbers=numbers,
        tables={"Table III": Rows(rows, columns, "model, method")},
        printed=TABLE_3,
        claims=CLAIMS,
        notes=WORDS.notes,
        figures={"table3": drawing(TITLE, _panels, NOTE, size=(6.4, 4.6), legend=2)},
        head=lambda shown: [("seeds", "")],
        alike=("scale.name", "seed", "launch.threads", *settings),
    )
    return made(runs, scale)
