"""GraVAC's Table II: final quality, speedup to the plateau over Top-k 10x, and what is sent.

Qualities are compared with dense, paired by seed; shared.py defines plateau and failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dgc_repro.paper import frame, gravac, panels
from dgc_repro.paper.claims import Check, Claim, printed_table
from dgc_repro.paper.frame import Column, Quantity, Relative, pivot, values
from dgc_repro.paper.gravac import (
    COMPRESSORS,
    DENSE,
    GRAVAC,
    GRAVAC_ROWS,
    LOOKS,
    LSTM,
    MODELS,
    REDUCTIONS,
    SETUP,
    row_id,
)
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.page import Page, Section, Template
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
BASELINE, SPEEDUP = "topk10", "speedup to the plateau"
PRINTED_METHODS = tuple(dict.fromkeys(row.partition(".")[2] for row in TABLE_2.rows))
METHODS = (DENSE, *PRINTED_METHODS[:-1], *GRAVAC_ROWS)
WORDS = Template.read(__file__)


def printed(model: str, method: str, part: str) -> float:
    """A number of Table II: ``part`` is quality, difference or speedup; NaN where it says failed."""
    return TABLE_2(row_id(model, method), part)


def largest_miss(model: str) -> float:
    """By how much the worst row with a printed speedup misses its target: points, or a ratio of perplexities.
    No speedup counts of a row that ends farther below dense: to stop badly is no gain in time."""
    kept = [m for m in PRINTED_METHODS if not math.isnan(printed(model, m, "speedup"))]
    worst = min(printed(model, m, "difference") for m in kept)
    return 1 - worst / SETUP(model, "target") if model == LSTM else -worst


def near_dense(model: str, method: str) -> Check:
    """The premise of a claim that a row is faster: it ends at most the `largest_miss` worse than dense."""
    check, miss = g.better(model, method, DENSE), largest_miss(model)
    return replace(check, above=1 / miss if check.ratio else -miss)


def claims(model: str) -> Iterator[Claim]:
    """All claims of a model: on GraVAC with both gains, on static factors, on Random-k and on floats."""

    def say(of: str, *labels: str) -> Callable[..., Claim]:
        words: dict[str, Any] = {
            "target": SETUP(model, "target"),
            "unit": "" if model == LSTM else " %",
        }
        return partial(WORDS.claim, of=of, called=", ".join((MODELS[model], *labels)), **words)

    yield from g.both_gains(_of_gravac(model, say(model)))
    for name in ("topk", "dgc", "redsync"):
        own, weak, strong = say(f"{model}.{name}", COMPRESSORS[name]), f"{name}10", f"{name}1000"
        both = printed(model, weak, "quality"), printed(model, strong, "quality")
        yield own("loses", g.better(model, weak, strong), weak=both[0], strong=both[1])
        by = g.better_by(model, weak, strong, both)
        yield own("loss", by, ours=True, gap=abs(both[0] - both[1]))
        premises = (near_dense(model, strong),)
        yield own("faster", _sooner(model, strong, weak), premises=premises, assumed=g.ASSUMED)
    for method in ("randomk10", "randomk1000"):
        row, quality = row_id(model, method), printed(model, method, "quality")
        own, trains = say(row, LOOKS[method].label), Check(g.ABOVE_FAILING, row)
        if math.isnan(quality):
            yield own("fails", replace(trains, above=-math.inf, below=0.0))
        else:
            yield own("misses", trains, g.better(model, DENSE, method), quality=quality)
    for method, label in GRAVAC_ROWS.items():
        reduction = REDUCTIONS[model][method]
        fewer = g.fewer_floats(model, method, reduction)
        yield say(row_id(model, method), label)("volume", fewer, ours=True, reduction=reduction)


def _of_gravac(model: str, say: Callable[..., Claim]) -> Iterator[Claim]:
    premises, quality = g.compressed(model, GRAVAC), printed(model, GRAVAC, "quality")
    good = g.as_good(model, GRAVAC)
    yield say("gravac.target", good, premises=premises, ours=True, quality=quality)
    check, premises = _sooner(model, GRAVAC, BASELINE), (*premises, near_dense(model, GRAVAC))
    say = partial(say, premises=premises, assumed=g.ASSUMED, ratio=check.printed)
    yield say("gravac.faster", check)
    yield say("gravac.speedup", g.sooner_by(check, check.printed), ours=True)


def _sooner(model: str, quick: str, slow: str) -> Check:
    """``quick`` has its plateau earlier than ``slow``."""
    ratio = printed(model, quick, "speedup") / printed(model, slow, "speedup")
    return g.sooner(g.PLATEAU_SECONDS, model, quick, slow, ratio)


def of_paper(one: g.Course) -> Claim:
    """GraVAC reaches the paper's own target, where dense training does."""
    target = one.papers_target
    ends = (target, math.inf) if one.metric.sign > 0 else (-math.inf, target)
    own, dense = (Check(one.final, row_id(one.model, m), None, *ends) for m in (GRAVAC, DENSE))
    premises = (dense, *g.compressed(one.model, GRAVAC))
    words = {"called": MODELS[one.model], "goal": gravac.TARGETS[one.model]}
    return WORDS.claim("gravac.reaches", own, of=one.model, premises=premises, **words)


CLAIMS = tuple(claim for model in MODELS for claim in claims(model))
KNOWN = g.PRINTED_FLOATS | {
    (row, quantity): TABLE_2(row, column)
    for row in TABLE_2.rows
    for quantity, column in (
        (g.QUALITY, "quality"),
        (g.PERPLEXITY, "quality"),
        (SPEEDUP, "speedup"),
    )
}


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    found = g.courses(runs, scale, methods=METHODS)
    own, table = g.runs_of(found), frame.join(*map(_measure, found))
    named = [claim for one in found for claim in claims(one.model)]
    named += g.both_gains(of_paper(one) for one in found if one.papers_target > 0)
    shown = [*(_panel(f"paper: {MODELS[one.model]}", one, PRINTED) for one in found)]
    shown += [_panel(f"ours: {one.family}", one, table) for one in found]
    title = "Table II: rows that have not failed (our speedup is modelled; bars: one standard deviation)"
    return g.made(
        WORDS, scale, own, table,
        [Section("How to read the tables"), *(_section(one, table) for one in found)], named,
        head=[fact for one in found for fact in g.head(one)], printed=KNOWN,
        notes=(*WORDS.notes, gravac.PERPLEXITY_NOTE), choices=gravac.CHOICES,
        said={
            "targets": " ".join(map(g.target_text, found)),
            "share": gravac.failed_share(),
            "misses": ", ".join(map(_miss_text, found)),
        },
        figures={"table2": g.drawn(title, own, scale, shown, columns=len(found), legend=5)},
    )  # fmt: skip


def _miss_text(one: g.Course) -> str:
    miss = largest_miss(one.model)
    much = f"{100 * (miss - 1):.3g} %" if one.model == LSTM else f"{miss:.3g} points"
    return f"{one.family}: {much}"


def _measure(one: g.Course) -> pd.DataFrame:
    """With how far rows are from failing, and speedups, which are 0 where a row has failed."""
    level = Quantity(one.metric.steps, partial(g.above_failing, one=one))
    plateau = Quantity("s", partial(g.plateau_seconds, one=one), "modelled")
    speedup = Relative(g.PLATEAU_SECONDS, row_id(one.model, BASELINE), inverse=True)
    return g.measure(one, {g.ABOVE_FAILING: level, g.PLATEAU_SECONDS: plateau, SPEEDUP: speedup})


def _section(one: g.Course, table: pd.DataFrame) -> Section:
    unit = one.metric.unit
    columns = (
        Column("failed", g.ABOVE_FAILING, lambda levels: frame.hits([v <= 0 for v in levels])),
        Column(f"final {unit}".rstrip(), one.final, 2 if unit else 1, printed=KNOWN),
        Column("speedup", SPEEDUP, frame.times, printed=KNOWN, printed_unit="x"),
        *g.sent_columns(KNOWN),
    )
    title = f"{one.family}: {one.metric.label} (printed: {MODELS[one.model]})"
    rows = {row_id(one.model, method): LOOKS[method].label for method in METHODS}
    return Section(title, pivot(table, rows, columns))


PRINTED = frame.lines(
    {"row": row, "seed": 0, "quantity": quantity, "value": number}
    for (row, quantity), number in KNOWN.items()
)


def _panel(title: str, one: g.Course, table: pd.DataFrame) -> panels.Panel:
    """Quality by speedup, of rows that have not failed."""
    cells = {}
    for row in (row_id(one.model, method) for method in METHODS):
        parts = [values(table, quantity, row) for quantity in (SPEEDUP, one.final)]
        both = pd.concat(parts, axis=1, join="inner").to_numpy(float)
        both = both[np.isfinite(both[:, 0]) & (both[:, 0] > 0)]
        if len(both):
            cells[row] = (list(both[:, 0]), list(both[:, 1]))
    drawn, x = panels.points(cells, gravac.looks(one.model, METHODS)), "speedup over Top-k 10x"
    return panels.panel(title, drawn, log="x", unit="x", x=x, y=one.metric.axis)
