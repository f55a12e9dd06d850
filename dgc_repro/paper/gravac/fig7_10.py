"""GraVAC's figures 7 to 10: convergence, the factors that were used, throughput by factor, regret.

Regret: modelled time to our dense target over that of the best static row in hindsight, dense included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from dgc_repro.paper import facts, gravac, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.frame import Column, Quantity, join, percent, pivot, times
from dgc_repro.paper.gravac import DENSE, row_id
from dgc_repro.paper.gravac import factor_claims as claims
from dgc_repro.paper.gravac import shared as steps
from dgc_repro.paper.gravac import shared as training
from dgc_repro.paper.gravac.shared import (
    BRANCH,
    COMPRESSED_FROM,
    FLOATS,
    SHARE,
    THROUGHPUT,
    Course,
    at,
    at_factor,
)
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

FEWER_FLOATS = training.FEWER[FLOATS]
BANDWIDTH = 0.1
"""Of the density of steps, in log10 of the factor: the paper's number, our unit."""
SECONDS, REGRET = "modelled seconds to the target", "regret"
_STATIC = rf"(?:{'|'.join(gravac.COMPRESSORS)})\d+|{DENSE}"
BEFORE, LOWEST = "quality before the decay", "lowest quality soon after"
GAIN_BEFORE, GAIN_AFTER = "gain before the decay", "gain after the decay"


# -- numbers


def decay_step(run: Run) -> float:
    """The last step before a constant learning rate first falls to a half or less; NaN where it does not, or
    is not constant until then."""
    rates, ends = run.epochs["lr"].to_numpy(float), run.epochs["step"].to_numpy(float)
    falls = np.flatnonzero(rates[1:] <= 0.5 * rates[:-1])
    if not falls.size or (rates[: falls[0] + 1] != rates[0]).any():
        return math.nan
    return float(ends[falls[0]])


def around_decay(run: Run, one: Course) -> tuple[float, float]:
    """Quality at the last evaluation before the learning rate falls, and the worst one soon after."""
    step, ends = decay_step(run), run.epochs["step"].to_numpy(float)
    if math.isnan(step):
        return math.nan, math.nan
    values, sign = one.metric.sign * one.quality(run), one.metric.sign
    soon = (ends > step) & (ends <= step + at(run, claims.AFTER_DECAY))
    soon[np.flatnonzero(ends > step)[0]] = True  # one at least
    return sign * float(values[ends == step][0]), sign * float(values[soon].min())


def _gain_between(run: Run, start: float, end: float) -> float:
    """Mean gain of what was sent, from so many of the paper's steps after the decay to so many."""
    after = steps.column(run, "step") - decay_step(run)
    return steps.mean(steps.column(run, "gain")[(after > at(run, start)) & (after <= at(run, end))])


def _evenness(run: Run) -> float:
    """The largest share of the figure's factors over the smallest, infinite where one is missing."""
    table = steps.factor_table(run, claims.SIMILAR_FACTORS)
    found = table[SHARE].reindex(claims.SIMILAR_FACTORS)
    return float(found.max() / found.min()) if found.min() else math.inf


def _share_after(run: Run, factor: float, step: float) -> float:
    late = steps.column(run, "factor")[steps.column(run, "step") > step]
    return float((late == factor).mean()) if late.size else math.nan


def _late(run: Run) -> float:
    windows = claims.LATE_STEP // claims.GEOMETRIC_WINDOW
    start = windows * float(run.setting("policy.window", math.nan))
    return _share_after(run, claims.LATE_FACTOR, start)


def _numbers(one: Course) -> pd.DataFrame:
    """Everything that tables and claims say of these runs."""
    runs = [run for run in one.runs if run.method != DENSE]
    sign, unit = one.metric.sign, one.metric.unit

    def arrived(run: Run) -> float:
        return _share_after(run, claims.THOUSAND, 0.9 * run.last("step"))

    quantities = {
        steps.RUNNER_UP: Quantity("", partial(steps.ranked, place=1)),
        claims.EVENNESS: Quantity("x", _evenness),
        claims.LATE: Quantity("", _late),
        claims.ARRIVED: Quantity("", arrived),
        steps.THETA_MIN: Quantity("x", partial(steps.largest, name="theta_min")),
        steps.CANDIDATE: Quantity("x", partial(steps.largest, name="candidate")),
        claims.DIP: Quantity(unit, lambda r: sign * float(np.subtract(*around_decay(r, one)))),
        BEFORE: Quantity(unit, lambda run: around_decay(run, one)[0]),
        LOWEST: Quantity(unit, lambda run: around_decay(run, one)[1]),
        GAIN_BEFORE: Quantity("", lambda run: _gain_between(run, -claims.AFTER_DECAY, 0)),
        GAIN_AFTER: Quantity("", lambda run: _gain_between(run, 0, claims.AFTER_DECAY)),
    }
    curve = {claims.CURVE: Quantity(unit, lambda run: float(one.quality(run).mean()))}
    lead, ends = (claims.FORTY,), (claims.TEN, claims.THOUSAND)
    return join(
        training.measure(one),
        frames.measure(one.runs, curve),
        steps.by_factor(runs, lead=lead, rank=(claims.FORTY, claims.THOUSAND), always=ends),
        frames.measure(runs, quantities),
    )


def regret(one: Course, methods: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """Modelled seconds to the target of every run, and the regret of ``methods``: their seconds over those
    of the best static row in hindsight, by seed; and which rows these are. Where the dense run of a seed
    misses the target, dense counts with the mean of its other seeds."""
    clock = training.MODELLED
    seconds = partial(training.seconds_to_target, one=one, target=one.target, clock=clock)
    table = frames.measure(one.runs, {SECONDS: Quantity("s", seconds, clock)})
    table["method"] = table["row"].astype(str).str.replace(r"^[^.]*\.", "", regex=True)
    own = table[table["method"].isin(methods)]
    is_static = table["method"].str.fullmatch(_STATIC) & np.isfinite(table["value"])
    static = table[is_static].pivot(index="seed", columns="method", values="value")
    tried = static.reindex(sorted({run.seed for run in one.runs if run.method in methods}))
    if DENSE in tried:
        tried[DENSE] = tried[DENSE].fillna(static[DENSE].mean())
    ranked = tried.melt(ignore_index=False).dropna().sort_values(["value", "method"])
    best = ranked.groupby(level="seed").first()
    over = own["value"] / own["seed"].map(best["value"])
    regrets = own.assign(value=over, quantity=REGRET, unit="x")
    named = zip(best["method"], best["value"], strict=True)
    which = (f"{gravac.LOOKS[name].label} ({took:.0f} s)" for name, took in named)
    return frames.lines(frames.join(table, regrets)), facts.distinct(which)


# -- the page


def page(number: int, runs: Sequence[Run], scale: str) -> Page:
    """The page of a figure. Raises UserError if the runs are not alike."""
    shown = claims.SHOWN[number]
    (whole,) = training.courses(runs, scale, (shown.model,))
    methods = (DENSE, *shown.methods, *shown.others)
    own = steps.compared([run for run in whole.runs if run.method in methods])
    one = replace(whole, runs=tuple(own))
    regrets, best = regret(whole, shown.methods)
    found = join(_numbers(one), regrets)
    told = claims.claims_of(shown)
    if own and all(math.isnan(decay_step(run)) for run in own):  # a schedule without steps
        told = tuple(c for c in told if all(check.quantity != claims.DIP for check in c.checks))
    reductions = gravac.REDUCTIONS[shown.model]
    known = {(row_id(shown.model, m), FEWER_FLOATS): times for m, times in reductions.items()}
    return made(
        __file__,
        scale,
        own,
        found,
        [steps.which_gain, *_sections(one, shown, found, known)],
        told,
        judge=steps.judge_sent_apart,
        labels=gravac.labels(own),
        head=[*training.head(one), *steps.recorded(own)],
        data=gravac.DATA,
        said={
            "number": number,
            "model": gravac.MODELS[shown.model],
            "thinning": steps.thinning(own),
            "samples": steps.samples_unit(own),
            "on_throughput": shown.on_throughput,
            "dip": claims.DIP_READING,
            "target": training.target_text(whole),
            "best": best,
        },
        printed=known,
        notes=shown.notes,
        choices=[c for c in gravac.CHOICES if c.key in CHOICE_KEYS],
        figures={f"fig{number}": lambda: _figure(one, shown, found, scale)},
    )


CHOICE_KEYS = (
    *("train.step_time", "policy.gain", "policy.smoothing", "policy.freeze", "policy.throughput"),
)
ARTIFACTS = {
    f"fig{number}": SimpleNamespace(page=partial(page, number), POOL="training")
    for number in claims.SHOWN
}


def labels(model: str, methods: Sequence[str]) -> dict[str, str]:
    """Labels by row, without the model."""
    return {row: look.label for row, look in gravac.looks(model, methods).items()}


def by_factor(
    one: Course,
    found: pd.DataFrame,
    methods: Sequence[str],
    quantity: str = THROUGHPUT,
    form: Callable[[Sequence[float]], str] | None = None,
) -> pd.DataFrame:
    """A quantity of rows by factor."""
    factors = steps.factors_of([run for run in one.runs if run.method in methods])
    names = {factor: "dense" if factor == 1 else f"{factor:g}x" for factor in factors}
    columns = [Column(name, quantity, form, at_factor(factor)) for factor, name in names.items()]
    return pivot(found, labels(one.model, methods), columns)


def _sections(
    one: Course, shown: claims.Shown, found: pd.DataFrame, known: frames.Known
) -> list[Section]:
    rows, dense = (labels(one.model, methods) for methods in (shown.methods, (DENSE,)))
    count, quality = frames.seeds(one.final), Column(f"final {one.metric.label}", one.final, 2)
    branches = [Column(name, BRANCH, percent, name) for name in steps.BRANCHES]
    theta_min = Column("largest theta_min", steps.THETA_MIN)
    largest = Column("largest candidate", steps.CANDIDATE)
    floats = Column("floats", FEWER_FLOATS, times)
    sent = [
        count,
        replace(floats, printed=known, printed_unit="x"),
        *(Column(name, training.FEWER[name], times) for name in ("payload", "wire")),
        Column("wire of 32", training.WIRE_MANY, times),
        quality,
    ]
    decay = [
        Column("before", BEFORE, 2),
        Column("lowest after", LOWEST, 2),
        Column("dip", claims.DIP),
        Column("gain before", GAIN_BEFORE),
        Column("gain after", GAIN_AFTER),
    ]
    timed = [Column("seconds", SECONDS, 0), Column("regret", REGRET, times), floats]
    more = [count, quality, *branches, largest, floats]
    has_dips = claims.DIP in set(found["quantity"])
    tables = {
        "What is sent: times less than dense": pivot(found, dense | rows, sent),
        "Steps by factor": by_factor(one, found, shown.methods, SHARE, percent),
        "Compression throughput by factor": by_factor(one, found, shown.methods),
        "Branches": pivot(found, rows, [*branches, theta_min, largest]),
        "Where the learning rate first falls": pivot(found, rows if has_dips else {}, decay),
        "Other settings": pivot(found, labels(one.model, shown.others), more),
        "Regret: time to the target over that of the best static row in hindsight": pivot(
            found, rows, timed
        ),
    }
    return [Section(title, table) for title, table in tables.items() if len(table)]


# -- the figure


def density(grid: steps.Series, factors: steps.Series) -> steps.Series:
    """A Gaussian of `BANDWIDTH` at log10 of each step's factor, at the points ``grid`` of log10; the
    integral over log10 of the factor is one."""
    places, counts = np.unique(np.log10(factors), return_counts=True)
    bells = stats.norm.pdf(grid[:, None], places, BANDWIDTH)
    return np.asarray(bells @ (counts / counts.sum()))


def _figure(one: Course, shown: claims.Shown, found: pd.DataFrame, scale: str) -> Figure:
    rows = gravac.looks(one.model, shown.methods)
    panels: plot.Panels = [
        training.quality_panel(one, gravac.looks(one.model, (DENSE, *shown.methods))),
        (f"density of steps by factor (bandwidth {BANDWIDTH:g})", partial(_densities, one, rows)),
        ("modelled compression throughput", partial(draw_throughput, one, found, rows)),
        ("regret, best of dense and static rows = 1x", partial(_regrets, found, rows)),
    ]
    if any(run.method in gravac.EPS_SWEEP for run in one.runs if run.method in shown.others):
        both = {
            one.metric.label: (one.final, f"final {one.metric.axis}"),
            "floats": (FEWER_FLOATS, "times less than dense"),
        }
        panels += [
            (f"eps with the norm gain: {what}", partial(_sweep, one, found, *of))
            for what, of in both.items()
        ]
    title = f"{gravac.PAPER.label}, figure {shown.number}: {one.family}, compression factors"
    wide, caption = len(panels) // 2, facts.caption(one.runs, scale)
    return plot.figure(title, caption, panels, columns=wide, size=(4.6, 3.3), legend=2 * wide - 1)


def _densities(one: Course, rows: Mapping[str, Look], axes: Axes) -> None:
    """A base line for each row, so that no row hides another; the highest peak is almost one line high."""
    grid = np.linspace(-0.4, 3.7, 600)
    factors = [(run.row, steps.column(run, "factor")) for run in one.runs if run.row in rows]
    drawn = [(row, density(grid, sent)) for row, sent in factors if sent.size]
    highest = max((float(values.max()) for _, values in drawn), default=1.0)
    places = {row: place for place, row in enumerate(rows)}
    for row in rows.keys() - dict(drawn).keys():
        axes.text(1.0, places[row] - 0.05, "not run", fontsize=7)
    for row, values in drawn:
        look, base = rows[row], places[row]
        line = base - 0.85 * values / highest
        axes.plot(10**grid, line, color=look.colour, linestyle=look.dashes, linewidth=1.2)
        axes.fill_between(10**grid, base, line, color=look.colour, alpha=0.15, linewidth=0)
    _row_axis(axes, rows)
    _factor_axis(axes)


def draw_throughput(one: Course, found: pd.DataFrame, rows: Mapping[str, Look], axes: Axes) -> None:
    """Compression throughput by factor, rows a little aside of each other."""
    for place, (row, look) in enumerate(rows.items()):
        for factor in steps.factors_of([run for run in one.runs if run.row == row]):
            if values := frames.of(found, THROUGHPUT, row, at_factor(factor)):
                aside = [factor * 1.12 ** (place - (len(rows) - 1) / 2)] * len(values)
                plot.points(axes, {row: (aside, values)}, {row: replace(look, label="")})
    unit = steps.samples_unit(one.runs).replace(
        " of ", "\nof "
    )  # else longer than the panel is high
    _factor_axis(axes, f"gain x {unit}", "xy")


def _regrets(found: pd.DataFrame, rows: Mapping[str, Look], axes: Axes) -> None:
    """Mean and range over seeds; a row without regret says why."""
    for place, (row, look) in enumerate(rows.items()):
        all_seeds = frames.of(found, REGRET, row)
        if values := [value for value in all_seeds if math.isfinite(value)]:
            reach = [[np.mean(values) - min(values)], [max(values) - np.mean(values)]]
            line: dict[str, Any] = {
                "color": look.colour,
                "fmt": look.marker,
                "markerfacecolor": look.face,
            }
            axes.errorbar(np.mean(values), place, xerr=reach, **line)
        fewer = frames.of(found, FEWER_FLOATS, row)
        note = times(values) if values else "target not reached" if fewer else "not run"
        if 0 < len(values) < len(all_seeds):
            note += f", reached by {len(values)} of {len(all_seeds)}"
        if fewer and np.mean(fewer) <= COMPRESSED_FROM:
            note += "; nearly dense"
        spot = axes.get_yaxis_transform()
        axes.text(
            0.98, place - 0.3, note, transform=spot, ha="right", fontsize=7, backgroundcolor="white"
        )
    axes.axvline(1.0, color=plot.BLACK, linewidth=0.8)
    plot.name_axes(axes, "modelled time over the best static row's", log="x", unit="x")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.3), max(high, 5.0))
    _row_axis(axes, rows)


def _row_axis(axes: Axes, rows: Mapping[str, Look]) -> None:
    names = [look.label.removeprefix("GraVAC ") for look in rows.values()]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -1.0)


def _factor_axis(axes: Axes, y: str = "", log: str = "x") -> None:
    axes.set_xlim(0.4, 3000)
    plot.name_axes(axes, "compression factor, 1 = dense", y, log)


def _sweep(one: Course, found: pd.DataFrame, quantity: str, label: str, axes: Axes) -> None:
    """Mean by eps with one standard deviation over seeds; dense as a pale line."""
    eps = {row_id(one.model, method): value for method, value in gravac.EPS_SWEEP.items()}
    own = found[found["quantity"] == quantity]
    own = own.assign(eps=own["row"].map(eps))
    if dense := frames.of(found, quantity, row_id(one.model, DENSE)):
        axes.axhline(float(np.mean(dense)), **gravac.LOOKS[DENSE].line)
    line = {"color": plot.BLACK, "marker": "o", "capsize": 3}
    plot.means(axes, own, "eps", "value", spread=True, **line)
    is_ratio = quantity == FEWER_FLOATS
    plot.name_axes(axes, "eps", label, log="y" if is_ratio else "", unit="x" if is_ratio else "")
    axes.set_xlim(0.47, 0.98)
    axes.set_xticks(list(eps.values()), [f"{value:g}" for value in eps.values()])
