"""GraVAC's Table II: final quality, speedup to the plateau over Top-k 10x, and what is sent.

Qualities are compared with dense, paired by seed; training.py defines plateau and failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pandas as pd

from dgc_repro.paper import frame, gravac, panels
from dgc_repro.paper.artifact import BARS, Shown, drawing
from dgc_repro.paper.claims import Check, Claim, printed_table
from dgc_repro.paper.frame import Column, Quantity, Relative
from dgc_repro.paper.gravac import DENSE, GRAVAC, GRAVAC_ROWS, LOOKS, LSTM, MODELS, TARGETS, row_id
from dgc_repro.paper.gravac import training as g
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

POOL = "training"
TABLE_2 = printed_table(
    "Table II",
    "quality, difference, speedup",
    """
    topk10          80.14   0.14  1         91.2   1.2  1         22.0    0.0  1
    topk1000        76.4   -3.6   3.02      90.68  0.68 3.22      26.78 -4.78  3.36
    dgc10           80.4    0.4   1.23      90.8   0.8  0.935     21.67  0.33  1.23
    dgc1000         78.6   -1.4   5.19      90.4   0.4  3.35      25.14 -3.14  6.25
    redsync10       79.4   -0.6   1.2       90.45  0.45 0.99      21.65  0.35  1.17
    redsync1000     77.4   -2.6   6.94      90.3   0.3  3.6       24.24 -2.24  6.9
    randomk10       failed  -     -         87.8  -2.2  0.7       24.15 -2.15  1.3
    randomk1000     failed  -     -         failed -    -         failed -     -
    gravac07        80.2    0.2   4.32      90.48  0.48 1.95      21.25  0.75  6.67
    """,
    groups=MODELS,
)
"""A difference is positive where the target is met, of perplexity too."""
STATIC = tuple(f"{name}{factor}" for name in gravac.COMPRESSORS for factor in (10, 1000))
METHODS = (DENSE, *STATIC, *GRAVAC_ROWS)
SPEEDUP = "speedup to the plateau"
KNOWN = g.PRINTED_FLOATS | {
    (row, quantity): TABLE_2(row, column)
    for row in TABLE_2.rows
    for quantity, column in ((g.FINAL[row.partition(".")[0]], "quality"), (SPEEDUP, "speedup"))
}
COLUMNS = (
    Column("failed", g.ABOVE_FAILING, lambda v: f"{sum(x <= 0 for x in v)} of {len(v)}"),
    *g.FINAL_COLUMN.values(),
    Column("speedup", SPEEDUP, frame.times, printed_unit="x"),
    *g.SENT_COLUMNS,
)
WORDS = Template.read(__file__)


def _sooner(model: str, quick: str, slow: str) -> Check:
    """``quick`` has its plateau earlier than ``slow``, by the printed ratio."""
    of_quick, of_slow = (TABLE_2(row_id(model, method), "speedup") for method in (quick, slow))
    return g.sooner(g.PLATEAU_SECONDS, model, quick, slow, of_quick / of_slow)


def _of_gravac(one: g.Course, say: Callable[..., Claim]) -> Iterator[Claim]:
    """GraVAC against dense training and Top-k 10x; the paper's own target where dense training reaches it."""
    model, sent_less = one.model, (g.fewer(one.model, GRAVAC),)
    as_good = g.better(model, GRAVAC, DENSE, g.MARGIN[model])
    sooner = _sooner(model, GRAVAC, "topk10")
    premises = (*sent_less, g.near_dense(model, GRAVAC))
    timed = partial(say, premises=premises, assumed=g.ASSUMED, ratio=sooner.printed)
    yield say("gravac.target", as_good, premises=sent_less, ours=True)
    yield timed("gravac.faster", sooner)
    yield timed("gravac.speedup", g.sooner_by(sooner, sooner.printed), ours=True)
    if one.scale in g.REACHES_TARGET:
        own, dense = (g.reaches(model, method) for method in (GRAVAC, DENSE))
        yield say("gravac.reaches", own, premises=(dense, *sent_less))


def claims(one: g.Course) -> Iterator[Claim]:
    """The claims on a model: on GraVAC with both gains, on static factors, on Random-k, on floats."""
    model = one.model

    def say(of: str, label: str, printed: str) -> Callable[..., Claim]:
        """Makes the claims on a row in the words of the page, with the ``printed`` row's quality."""
        return partial(
            WORDS.claim, of=of, called=", ".join(filter(None, (MODELS[model], label))),
            target=TARGETS[model], unit="" if model == LSTM else " %",
            quality=TABLE_2(row_id(model, printed), "quality"),
        )  # fmt: skip

    yield from g.both_gains(_of_gravac(one, say(model, "", GRAVAC)))
    for name in ("topk", "dgc", "redsync"):
        weak, strong = f"{name}10", f"{name}1000"
        both = TABLE_2(row_id(model, weak), "quality"), TABLE_2(row_id(model, strong), "quality")
        own: Callable[..., Claim] = partial(
            say(f"{model}.{name}", gravac.COMPRESSORS[name], strong), weak=both[0]
        )
        loses, loss = g.better(model, weak, strong), g.better_by(model, weak, strong, both)
        by = f"{loss.printed:.3g}"
        gap = f"at {by} times the perplexity of" if loss.ratio else f"{by} points below"
        yield own("loses", loses)
        yield own("loss", loss, ours=True, gap=gap)
        near = (g.near_dense(model, strong),)
        yield own("faster", _sooner(model, strong, weak), premises=near, assumed=g.ASSUMED)
    for method in ("randomk10", "randomk1000"):
        row = row_id(model, method)
        own, trains = say(row, LOOKS[method].label, method), Check(g.ABOVE_FAILING, row)
        if math.isnan(TABLE_2(row, "quality")):
            yield own("fails", replace(trains, above=-math.inf, below=0.0), ours=True)
        else:
            yield own("misses", trains, g.better(model, DENSE, method), ours=True)
    for method in GRAVAC_ROWS:
        row, label = row_id(model, method), LOOKS[method].label.removeprefix("GraVAC ")
        times = g.PRINTED_FLOATS[row, g.FEWER[g.FLOATS]]
        fewer = g.fewer_by(model, method, times)
        yield say(row, label, GRAVAC)("volume", fewer, ours=True, reduction=times)


def _numbers(one: g.Course) -> pd.DataFrame:
    """With how far rows are from failing, and speedups, which are 0 where a row has failed."""

    def plateau(run: Run) -> int | None:
        place = g.plateau_at(
            one.quality(run), one.metric.sign, run.setting("stopping.plateau") or 0.0
        )
        return None if g.above_failing(run, one) <= 0 else place

    more: dict[str, Quantity | Relative] = {
        g.ABOVE_FAILING: Quantity(one.metric.steps, lambda run: g.above_failing(run, one)),
        g.PLATEAU_SECONDS: g.seconds(plateau),
        SPEEDUP: Relative(g.PLATEAU_SECONDS, row_id(one.model, "topk10"), inverse=True),
    }
    return g.measure(one, more)


def _panel(title: str, one: g.Course, table: pd.DataFrame) -> panels.Panel:
    """Quality by speedup, of rows of which no seed has failed."""
    looks = {row_id(one.model, method): LOOKS[method] for method in METHODS}
    found = {
        row: tuple(frame.of(table, name, row) for name in (SPEEDUP, g.FINAL[one.model]))
        for row in looks
    }
    drawn = panels.points({row: (x, y) for row, (x, y) in found.items() if x and min(x) > 0}, looks)
    x = "speedup over Top-k 10x"
    return panels.panel(title, drawn, log="x", unit="x", x=x, y=one.metric.axis)


def _panels(shown: Shown) -> list[panels.Panel]:
    found = g.courses(shown.runs, shown.scale)
    printed = frame.lines(
        {"row": row, "seed": 0, "quantity": quantity, "value": number}
        for (row, quantity), number in KNOWN.items()
    )
    papers = [_panel(f"paper: {MODELS[one.model]}", one, printed) for one in found]
    return papers + [_panel(f"ours: {one.name}", one, shown.frame) for one in found]


TITLE = "GraVAC, Table II: final quality and speedup, in the paper and here"
NOTE = f"The figure has the rows that have not failed. Our speedup is modelled. {BARS}"
page = g.page(
    __file__,
    METHODS,
    claims,
    numbers=_numbers,
    quantities=(g.ABOVE_FAILING, g.PLATEAU_SECONDS, SPEEDUP),
    tables={"Table II": COLUMNS},
    printed=KNOWN,
    notes=(*WORDS.notes, g.PERPLEXITY_NOTE),
    choices=g.CHOICES,
    figures={"table2": drawing(TITLE, _panels, NOTE, legend=5)},
)
