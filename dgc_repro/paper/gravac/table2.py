"""GraVAC's Table II: final quality, speedup to the plateau over Top-k 10x, and what is sent.

Qualities are compared with dense, paired by seed; shared.py defines plateau and failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dgc_repro.paper import facts, frame, gravac, panels, plot
from dgc_repro.paper.claims import Check, Claim, Note, printed_table
from dgc_repro.paper.frame import Column, pivot, values
from dgc_repro.paper.gravac import DENSE, GRAVAC, GRAVAC_ROWS, LOOKS, LSTM, MODELS, SETUP, row_id
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.records import Run
from dgc_repro.paper.statistics import interval
from dgc_repro.paper.verdict import paired

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
BASELINE, FASTEST = "topk10", "redsync1000"
"""Speedups are over the first row."""
BETTER, BETTER_PAPERS = "better than dense", "better than the paper's target"
SPEEDUP = "speedup to the plateau"
PRINTED_METHODS = tuple(dict.fromkeys(row.partition(".")[2] for row in TABLE_2.rows))
METHODS = (DENSE, *PRINTED_METHODS[:-1], *GRAVAC_ROWS)


def printed(model: str, method: str, part: str) -> float:
    """A number of Table II: ``part`` is quality, difference or speedup; NaN where it says failed."""
    return TABLE_2(row_id(model, method), part)


def printed_better(model: str, method: str) -> float:
    """By how many per cent of the target a printed quality is better than it."""
    sign = -1 if model == LSTM else 1
    return sign * 100 * (printed(model, method, "quality") / SETUP(model, "target") - 1)


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


WORDS = Template.read(__file__)


def claims(model: str) -> Iterator[Claim]:
    """All claims of a model."""
    yield from _of_gravac(model)
    yield from map(g.of_norm, _of_gravac(model))
    for compressor in ("topk", "dgc", "redsync"):
        yield from _of_static(model, compressor)
    yield from (_of_random(model, f"randomk{factor}") for factor in (10, 1000))
    yield from (_volume(model, method) for method in GRAVAC_ROWS)


def _words(model: str, method: str) -> dict[str, Any]:
    """What the texts of claims say of a method: its printed quality, the target, the unit of both."""
    quality, unit = printed(model, method, "quality"), "" if model == LSTM else " %"
    return {"quality": quality, "target": SETUP(model, "target"), "unit": unit}


def _sooner(model: str, quick: str, slow: str, *premises: Check) -> tuple[Check, dict[str, Any]]:
    """``quick`` has its plateau earlier than ``slow``; and what claims of it have in common."""
    ratio = printed(model, quick, "speedup") / printed(model, slow, "speedup")
    check = g.sooner(g.PLATEAU_SECONDS, model, quick, slow, ratio)
    premises = (*premises, near_dense(model, quick))
    return check, {"premises": premises, "assumed": g.ASSUMED, "ratio": ratio}


def _of_gravac(model: str) -> Iterator[Claim]:
    premises, words = g.compressed(model, GRAVAC), _words(model, GRAVAC)
    say = partial(WORDS.claim, of=model, called=MODELS[model])
    yield say("gravac.target", g.as_good(model, GRAVAC), premises=premises, ours=True, **words)
    check, more = _sooner(model, GRAVAC, BASELINE, *premises)
    yield say("gravac.faster", check, **more)
    yield say("gravac.speedup", g.sooner_by(check, more["ratio"]), ours=True, **more)
    check, more = _sooner(model, FASTEST, GRAVAC, *premises)
    speeds = (printed(model, method, "speedup") for method in (FASTEST, GRAVAC))
    more |= zip(("fastest", "speed"), speeds, strict=True)
    yield say("gravac.order", replace(check, printed=math.nan), **more)


def _of_static(model: str, compressor: str) -> Iterator[Claim]:
    """What 1000x costs in quality and gains in time against 10x."""
    weak, strong = f"{compressor}10", f"{compressor}1000"
    values = printed(model, weak, "quality"), printed(model, strong, "quality")
    name = f"{MODELS[model]}, {gravac.COMPRESSORS[compressor]}"
    say = partial(
        WORDS.claim, of=f"{model}.{compressor}", called=name, weak=values[0], strong=values[1]
    )
    yield say("loses", g.better(model, weak, strong), unit=_words(model, weak)["unit"])
    gap = abs(values[0] - values[1])
    yield say("loss", g.better_by(model, weak, strong, values), ours=True, gap=gap)
    check, more = _sooner(model, strong, weak)
    yield say("faster", check, **more)


def _of_random(model: str, method: str) -> Claim:
    """Random-k fails, or trains and misses the target."""
    name, words = f"{MODELS[model]}, {LOOKS[method].label}", _words(model, method)
    trains = Check(g.ABOVE_FAILING, row_id(model, method))
    say = partial(WORDS.claim, of=f"{model}.{method}", called=name)
    if math.isnan(words["quality"]):
        return say("fails", replace(trains, above=-math.inf, below=0.0))
    return say("misses", trains, g.better(model, DENSE, method), **words)


def _volume(model: str, method: str) -> Claim:
    """By how much less is sent, of which the paper prints a number for each eps."""
    reduction = gravac.REDUCTIONS[model][method]
    return WORDS.claim(
        "volume", g.fewer_floats(model, method, reduction), of=row_id(model, method), ours=True,
        called=f"{MODELS[model]}, {GRAVAC_ROWS[method]}", reduction=reduction, within=g.VOLUME_FACTOR,
    )  # fmt: skip


def _of_paper(one: g.Course) -> Claim:
    """GraVAC reaches the paper's own target, where dense training does."""

    def reaches(method: str) -> Check:
        check = Check(one.final, row_id(one.model, method), above=one.papers_target)
        return check if one.metric.sign > 0 else replace(check, above=-math.inf, below=check.above)

    premises = reaches(DENSE), *g.compressed(one.model, GRAVAC)
    words = {"called": MODELS[one.model], "goal": gravac.TARGETS[one.model]}
    return WORDS.claim("gravac.reaches", reaches(GRAVAC), of=one.model, premises=premises, **words)


CLAIMS = tuple(claim for model in MODELS for claim in claims(model))


def _notes() -> tuple[Note, ...]:
    missed = [
        f"{MODELS[model]} {LOOKS[method].label}"
        for method in PRINTED_METHODS
        for model in MODELS
        if printed(model, method, "difference") < 0
    ]

    def beside(method: str) -> str:
        speeds = (
            f"{MODELS[m]} {printed(m, GRAVAC, 'speedup'):g}x, {printed(m, method, 'speedup'):g}x"
            for m in MODELS
        )
        return f"GraVAC, {LOOKS[method].label}: {'; '.join(speeds)}."

    return WORDS.noted(
        missed=f"{len(missed)} rows miss it: {', '.join(missed)}.",
        beside_dgc=beside("dgc1000"),
        beside_redsync=beside(FASTEST),
        topk=printed(LSTM, BASELINE, "quality"),
        target=SETUP(LSTM, "target"),
        difference=printed(LSTM, BASELINE, "difference"),
    )


NOTES = (*_notes(), gravac.PERPLEXITY_NOTE)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    found = g.courses(runs, scale, methods=METHODS)
    own, table, known = g.runs_of(found), frame.join(*map(_measure, found)), _printed_numbers()
    named = [c for one in found for c in claims(one.model)]
    reached = [_of_paper(one) for one in found if one.papers_target > 0]
    named += [c for claim in reached for c in (claim, g.of_norm(claim))]
    labels = gravac.labels(own)
    fewer = Column("floats", g.FEWER[g.FLOATS], frame.times, "", known, "x")
    sent = (
        Column("final test loss", g.TEST_LOSS),
        fewer,
        *(Column(unit, g.FEWER[unit], frame.times) for unit in ("payload", "wire")),
        Column("wire, N = 32", g.WIRE_MANY, frame.times),
    )
    rows = {row: labels[row] for one in found for row in _rows(one)}
    sections = [
        Section("How to read the tables"),
        *(_section(one, table, known) for one in found),
        Section("What is sent: times less than dense", pivot(table, rows, sent, "row")),
        g.setup_section(found),
    ]
    title = "Table II: rows that have not failed (our speedup is modelled; bars: one standard deviation)"
    return g.made(
        __file__, scale, own, table, sections, named,
        head=[fact for one in found for fact in g.head(one)], printed=known, notes=NOTES,
        choices=gravac.CHOICES,
        figures={
            "table2": lambda: plot.figure(
                title, facts.caption(own, scale),
                [*map(_papers_panel, found), *(_our_panel(one, table) for one in found)], legend=5,
            )
        },
    )  # fmt: skip


def _rows(one: g.Course) -> dict[str, str]:
    return {row_id(one.model, method): LOOKS[method].label for method in METHODS}


def _measure(one: g.Course) -> pd.DataFrame:
    """With quality over dense's and over the paper's target, per cent, and speedups."""
    found, final, sign = g.measure(one), one.final, one.metric.sign
    own = found[found["quantity"] == final]
    papers = own.assign(value=100 * own["value"] / one.papers_target, quantity=BETTER_PAPERS)
    better = frame.join(
        frame.relative(found, final, row_id(one.model, DENSE), name=BETTER, unit="%"),
        papers.assign(unit="%").dropna(subset="value"),
    )
    base = row_id(one.model, BASELINE)
    quick = frame.relative(found, g.PLATEAU_SECONDS, base, inverse=True, name=SPEEDUP)
    quick = quick[np.isfinite(quick["value"]) & (quick["value"] > 0)]
    return frame.join(found, better.assign(value=sign * (better["value"] - 100)), quick)


def _printed_numbers() -> frame.Known:
    found = {}
    for model in MODELS:
        final = g.PERPLEXITY if model == LSTM else g.QUALITY
        for method in PRINTED_METHODS:
            row = row_id(model, method)
            found[row, final] = printed(model, method, "quality")
            found[row, BETTER] = printed_better(model, method)
            found[row, SPEEDUP] = printed(model, method, "speedup")
        for method, reduction in gravac.REDUCTIONS[model].items():
            found[row_id(model, method), g.FEWER[g.FLOATS]] = reduction
    return found


def _section(one: g.Course, table: pd.DataFrame, known: frame.Known) -> Section:
    """The table of a model, with brackets around our speedups of rows that end too far below dense."""
    final, unit, miss = one.final, one.metric.unit, largest_miss(one.model)
    rounded = {place: round(value, 1) for place, value in known.items()}
    columns = [
        Column("failed", g.FAILED, frame.hits),
        Column(f"final {unit}".rstrip(), final, 2 if unit else 1, printed=known),
        Column("better by %", BETTER, partial(frame.signed, decimals=1), printed=rounded),
    ]
    if not math.isnan(one.papers_target):
        columns.append(Column("better than the paper's target by %", BETTER_PAPERS, 1))
    for clock in g.shown_clocks(table):
        beside = known if clock == g.MODELLED else None
        columns.append(Column(f"speedup, {clock}", SPEEDUP, frame.times, clock, beside))
    cells = pivot(table, _rows(one), columns)
    checks = [near_dense(one.model, method) for method in METHODS]
    ends_low = [interval(paired(c, table), ratio=c.ratio)[0] <= c.above for c in checks]
    for column in cells.columns[cells.columns.str.match(r"speedup.*(?<!: printed)$")]:
        both = zip(cells[column], ends_low, strict=True)
        cells[column] = [f"({cell})" if low and cell != "-" else cell for cell, low in both]
    much = f"{100 * (miss - 1):.3g} %" if one.model == LSTM else f"{miss:.3g} points"
    text = (
        f"{g.target_text(one)} {g.failed_text(one)} A speedup in brackets does not count: the row ends more "
        f"than {much} worse than dense, in the mean."
    )
    title = f"{one.family}: {one.metric.label} (printed: {MODELS[one.model]})"
    return Section(title, cells, text)


def _panel(
    title: str, model: str, cells: Mapping[str, tuple[list[float], list[float]]], base: str
) -> panels.Panel:
    return panels.panel(
        title, panels.points(cells, gravac.looks(model, METHODS)), at_y=[0.0], log="x", unit="x",
        subs=(1.0, 2.0, 5.0), x="speedup to the plateau over Top-k 10x", y=f"better than {base} by (%)",
        otherwise="no run, or all have failed",
    )  # fmt: skip


def _papers_panel(one: g.Course) -> panels.Panel:
    """Printed, against the target. Ours are against dense: the metrics differ, so there is no common axis."""
    parts = {
        m: (printed(one.model, m, "speedup"), printed_better(one.model, m)) for m in PRINTED_METHODS
    }
    cells = {row_id(one.model, m): ([x], [y]) for m, (x, y) in parts.items() if not math.isnan(x)}
    return _panel(f"paper: {MODELS[one.model]}", one.model, cells, "the target")


def _our_panel(one: g.Course, table: pd.DataFrame) -> panels.Panel:
    cells = {}
    for row in _rows(one):
        quick, good = values(table, SPEEDUP, row, g.MODELLED), values(table, BETTER, row)
        both = pd.concat([quick, good], axis=1, join="inner")
        if len(both):
            cells[row] = (list(both.iloc[:, 0]), list(both.iloc[:, 1]))
    return _panel(f"ours: {one.family}, {one.metric.label}", one.model, cells, "dense")
