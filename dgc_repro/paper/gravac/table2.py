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
from dgc_repro.paper.claims import EXPECTED, Check, Claim, Note, claim, printed_table
from dgc_repro.paper.frame import Column, pivot, values
from dgc_repro.paper.gravac import DENSE, GRAVAC, GRAVAC_ROWS, LOOKS, LSTM, MODELS, SETUP, row_id
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.page import Page, Section
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
LOSS_SHARE = 0.05
"""Ours: the test loss (of the LSTM: the perplexity) is dense's when it lies at most this share above. Of a
loss in nats a word the same share would be a quarter of the perplexity."""


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


UNIT = {model: "" if model == LSTM else " %" for model in MODELS}
READING = (
    "Test metric after the last epoch, paired by seed: points of accuracy, ratio of perplexities."
)
MAGNITUDE = (
    "The same difference, within half of the printed one either way, or half a point, or 2 %."
)


SPEED = (
    "Modelled seconds to the plateau, paired by seed; a failed row never reaches one. Not tested where the "
    "faster row ends farther below dense than any row with a printed speedup misses its target."
)
say = partial(claim, where="Table II")


def _faster(
    name: str, text: str, model: str, slow: str, quick: str, premises: tuple[Check, ...] = ()
) -> Iterator[Claim]:
    """``quick`` has its plateau earlier than ``slow``, and by how much."""
    ratio = printed(model, quick, "speedup") / printed(model, slow, "speedup")
    check = g.sooner(g.PLATEAU_SECONDS, model, quick, slow, ratio)
    given: dict[str, Any] = {
        "premises": (*premises, near_dense(model, quick)),
        "assumed": g.ASSUMED,
    }
    yield say(f"{model}.{name}.faster", f"{text}.", check, reading=SPEED, **given)
    yield say(
        f"{model}.{name}.speedup", f"{text}: by {ratio:.3g}x.", g.sooner_by(check, ratio), ours=True,
        reading="The same ratio, within half of the printed gain either way.", **given,
    )  # fmt: skip


def _of_gravac(model: str) -> Iterator[Claim]:
    name, row = MODELS[model], row_id(model, GRAVAC)
    quality, gap, speed = (
        printed(model, GRAVAC, of) for of in ("quality", "difference", "speedup")
    )
    premises, target = g.compressed(model, GRAVAC), SETUP(model, "target")
    yield say(
        f"{model}.gravac.target",
        f"{name}: GraVAC meets the target ({quality:g} for {target:g}{UNIT[model]}).",
        g.as_good(model, GRAVAC), premises=premises, ours=True,
        reading=f"{READING} Dense of the same seed stands for the target: at most half a point, or "
        "2 %, worse.",
    )  # fmt: skip
    yield say(
        f"{model}.gravac.difference", f"{name}: GraVAC lies {gap:+g} from the target.",
        g.better_by(model, GRAVAC, DENSE, (quality, target)), premises=premises, ours=True,
        reading=MAGNITUDE,
    )  # fmt: skip
    text = f"{name}: GraVAC is faster than Top-k 10x"
    yield from _faster("gravac", text, model, BASELINE, GRAVAC, premises)
    fastest = f"{LOOKS[FASTEST].label} is faster than GraVAC"
    yield say(
        f"{model}.gravac.order",
        f"{name}: {fastest} ({printed(model, FASTEST, 'speedup'):g}x against {speed:g}x).",
        Check(g.PLATEAU_SECONDS, row, row_id(model, FASTEST), 1.0, setting=g.MODELLED, ratio=True),
        premises=(*premises, near_dense(model, FASTEST)), assumed=g.ASSUMED, reading=SPEED,
    )  # fmt: skip


def _of_static(model: str, compressor: str) -> Iterator[Claim]:
    """What 1000x costs in quality and gains in time against 10x."""
    weak, strong = f"{compressor}10", f"{compressor}1000"
    values = printed(model, weak, "quality"), printed(model, strong, "quality")
    name = f"{MODELS[model]}, {gravac.COMPRESSORS[compressor]}: 1000x"
    text = f"{name} ends worse than 10x ({values[1]:g} and {values[0]:g}{UNIT[model]})."
    yield say(f"{model}.{compressor}.loses", text, g.better(model, weak, strong), reading=READING)
    text = f"{name} ends {abs(values[0] - values[1]):.3g} worse."
    by = g.better_by(model, weak, strong, values)
    yield say(f"{model}.{compressor}.loss", text, by, reading=MAGNITUDE, ours=True)
    yield from _faster(compressor, f"{name} is faster than 10x", model, weak, strong)


def _of_random(model: str, method: str) -> Claim:
    """Random-k fails, or trains and misses the target."""
    name, value = f"{MODELS[model]}, {LOOKS[method].label}", printed(model, method, "quality")
    trains = Check(g.ABOVE_FAILING, row_id(model, method))
    if math.isnan(value):
        return say(
            f"{model}.{method}.fails", f"{name}: fails.", replace(trains, above=-math.inf, below=0.0),
            reading="How far the final quality lies above the level at which a run has failed: below 0.",
        )  # fmt: skip
    return say(
        f"{model}.{method}.misses",
        f"{name}: trains and misses the target ({value:g} for {SETUP(model, 'target'):g}{UNIT[model]}).",
        trains, g.better(model, DENSE, method),
        reading="Its final quality lies above the level at which a run has failed, and is worse than that of "
        "dense of the same seed.",
    )  # fmt: skip


def _against_dense(model: str, method: str) -> Iterator[Claim]:
    name, rows = (
        f"{MODELS[model]}, {GRAVAC_ROWS[method]}",
        (row_id(model, method), row_id(model, DENSE)),
    )
    quantity = g.PERPLEXITY if model == LSTM else g.TEST_LOSS
    reduction = gravac.REDUCTIONS[model][method]
    yield say(
        f"{model}.{method}.loss",
        f"{name}: GraVAC's final {quantity.removeprefix('final ')} is dense's.",
        Check(quantity, *rows, below=1 + LOSS_SHARE, ratio=True),
        where=EXPECTED, premises=g.compressed(model, method), ours=True,
        reading=f"After the last epoch, at most {100 * LOSS_SHARE:.0f} % above dense's.",
    )  # fmt: skip
    yield say(
        f"{model}.{method}.volume", f"{name}: {reduction:g} times fewer floats than dense.",
        g.fewer_floats(model, method, reduction), where="figures 7 to 9, communication volume", ours=True,
        reading=f"Floats of the whole run, within a factor of {g.VOLUME_FACTOR:g}. At a reduced scale "
        "windows are shorter and fewer, so that each factor has another share of the steps.",
    )  # fmt: skip


def _of_paper(one: g.Course) -> Claim:
    """GraVAC reaches the paper's own target, where dense training does."""

    def reaches(method: str) -> Check:
        check = Check(one.final, row_id(one.model, method), above=one.papers_target)
        return check if one.metric.sign > 0 else replace(check, above=-math.inf, below=check.above)

    return say(
        f"{one.model}.gravac.reaches", f"{MODELS[one.model]}: GraVAC reaches {gravac.TARGETS[one.model]}.",
        reaches(GRAVAC), premises=(reaches(DENSE), *g.compressed(one.model, GRAVAC)),
        reading="Test metric after the last epoch. Not tested where dense training misses the target.",
    )  # fmt: skip


def claims(model: str) -> Iterator[Claim]:
    """All claims of a model."""
    yield from _of_gravac(model)
    yield from map(g.of_norm, _of_gravac(model))
    for compressor in ("topk", "dgc", "redsync"):
        yield from _of_static(model, compressor)
    yield from (_of_random(model, f"randomk{factor}") for factor in (10, 1000))
    for method in GRAVAC_ROWS:
        yield from _against_dense(model, method)


CLAIMS = tuple(claim for model in MODELS for claim in claims(model))

_missed = [
    f"{MODELS[model]} {LOOKS[method].label}"
    for method in PRINTED_METHODS
    for model in MODELS
    if printed(model, method, "difference") < 0
]


def _beside(method: str) -> str:
    speeds = (
        f"{MODELS[m]} {printed(m, GRAVAC, 'speedup'):g}x, {printed(m, method, 'speedup'):g}x"
        for m in MODELS
    )
    return f"GraVAC, {LOOKS[method].label}: {'; '.join(speeds)}."


NOTES = (
    Note("Speedups are printed for rows that never meet the target: they are to each row's own plateau.",
         f"{len(_missed)} rows miss it: {', '.join(_missed)}."),
    Note("GraVAC starts at 10x and uses at most DGC 1000x, so its speedup lies between theirs; on the LSTM "
         "it is printed above.", _beside("dgc1000")),
    Note("The text calls 6.67x the maximum speedup; Redsync 1000x has more on every model.",
         _beside("redsync1000")),
    Note("The text calls Top-k 10x better than dense on the LSTM; the table prints no difference.",
         f"Perplexity {printed(LSTM, 'topk10', 'quality'):.1f} for a target of "
         f"{SETUP(LSTM, 'target'):.1f}, difference {printed(LSTM, 'topk10', 'difference'):g}."),
    gravac.PERPLEXITY_NOTE,
)  # fmt: skip


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
