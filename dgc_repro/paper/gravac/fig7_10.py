"""GraVAC's figures 7 to 10: convergence, the factors that were used, throughput by factor, regret.

Regret: modelled time to our dense target over that of the best static row in hindsight, dense included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, gravac, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Choice
from dgc_repro.paper.frame import Column, Quantity, join, percent, pivot, times
from dgc_repro.paper.gravac import DENSE, row_id, steps
from dgc_repro.paper.gravac import factor_claims as claims
from dgc_repro.paper.gravac import runs as training
from dgc_repro.paper.gravac.runs import COMPRESSED_FROM, FLOATS, Course
from dgc_repro.paper.gravac.steps import BRANCH, SHARE, THROUGHPUT, at, at_factor
from dgc_repro.paper.page import Page, Section
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

FEWER_FLOATS = training.FEWER[FLOATS]
BANDWIDTH = 0.1
"""Of the density of steps, in log10 of the factor: the paper's number, our unit."""
SECONDS, REGRET = "modelled seconds to the target", "regret"
_STATIC = re.compile(rf"(?:{'|'.join(gravac.COMPRESSORS)})\d+|{DENSE}")
BEFORE, LOWEST = "quality before the decay", "lowest quality soon after"
GAIN_BEFORE, GAIN_AFTER = "gain before the decay", "gain after the decay"


# -- numbers


def decay_step(run: Run) -> float:
    """The last step before the learning rate first falls to a half or less; NaN where it does not."""
    rates, ends = run.epochs["lr"].to_numpy(float), run.epochs["step"].to_numpy(float)
    falls = np.flatnonzero(rates[1:] <= 0.5 * rates[:-1])
    return float(ends[falls[0]]) if falls.size else math.nan


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
    own = steps.shares(run)
    found = [own.get(factor, 0.0) for factor in claims.SIMILAR_FACTORS]
    if not own:
        return math.nan
    return max(found) / min(found) if min(found) else math.inf


def _share_after(run: Run, factor: float, step: float) -> float:
    late = steps.column(run, "factor")[steps.column(run, "step") > step]
    return float((late == factor).mean()) if late.size else math.nan


def _late(run: Run) -> float:
    windows = claims.LATE_STEP // claims.GEOMETRIC_WINDOW
    return _share_after(
        run, claims.LATE_FACTOR, windows * float(run.setting("policy.window", math.nan))
    )


def _numbers(one: Course) -> pd.DataFrame:
    """Everything that tables and claims say of these runs."""
    runs = [run for run in one.runs if run.method != DENSE]
    sign, unit = one.metric.sign, one.metric.unit
    quantities = {
        steps.RUNNER_UP: Quantity("", partial(steps.ranked, place=1)),
        claims.EVENNESS: Quantity("x", _evenness),
        claims.LATE: Quantity("", _late),
        claims.ARRIVED: Quantity(
            "", lambda run: _share_after(run, claims.THOUSAND, 0.9 * run.last("step"))
        ),
        steps.THETA_MIN: Quantity("x", partial(steps.largest, name="theta_min")),
        steps.CANDIDATE: Quantity("x", partial(steps.largest, name="candidate")),
        claims.DIP: Quantity(unit, lambda run: sign * float(np.subtract(*around_decay(run, one)))),
        BEFORE: Quantity(unit, lambda run: around_decay(run, one)[0]),
        LOWEST: Quantity(unit, lambda run: around_decay(run, one)[1]),
        GAIN_BEFORE: Quantity("", lambda run: _gain_between(run, -claims.AFTER_DECAY, 0)),
        GAIN_AFTER: Quantity("", lambda run: _gain_between(run, 0, claims.AFTER_DECAY)),
    }
    curve = {claims.CURVE: Quantity(unit, lambda run: float(one.quality(run).mean()))}
    return join(
        training.measure(one),
        frames.measure(one.runs, curve),
        steps.by_factor(
            runs,
            lead=(claims.FORTY,),
            rank=(claims.FORTY, claims.THOUSAND),
            always=(claims.TEN, claims.THOUSAND),
        ),
        frames.measure(runs, quantities),
    )


def regret(one: Course, methods: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """Modelled seconds to the target of every run, and the regret of ``methods``: their seconds over those
    of the best static row in hindsight, by seed; and which rows these are. Where the dense run of a seed
    misses the target, dense counts with the mean of its other seeds."""
    target, clock = one.target, training.MODELLED
    taken = {run.id: training.seconds_to_target(run, one, target, clock) for run in one.runs}
    met = [taken[run.id] for run in one.of(DENSE) if math.isfinite(taken[run.id])]
    own = [run for run in one.runs if run.method in methods]
    best: dict[int, tuple[float, str]] = {}
    for seed in sorted({run.seed for run in own}):
        tried = [run for run in one.runs if run.seed == seed and _STATIC.fullmatch(run.method)]
        known = [(taken[run.id], run.method) for run in tried if math.isfinite(taken[run.id])]
        if met and DENSE not in [method for _, method in known]:
            known.append((float(np.mean(met)), DENSE))
        if known:
            best[seed] = min(known)
    found = [(run, SECONDS, "s", taken[run.id]) for run in one.runs]
    found += [
        (run, REGRET, "x", taken[run.id] / best[run.seed][0]) for run in own if run.seed in best
    ]
    table = frames.lines(
        {
            "row": run.row, "seed": run.seed, "quantity": name, "unit": unit, "value": value,
            "clock": clock,
        }
        for run, name, unit, value in found
    )  # fmt: skip
    which = (f"{gravac.LOOKS[name].label} ({took:.0f} s)" for took, name in best.values())
    return table, facts.distinct(which)


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
    judged = steps.judged(claims.claims_of(shown), found, own)
    goal = f"{training.target_text(whole)} Best static row by seed: {best}."
    return Page(
        title=f"{gravac.PAPER.label}, figure {number} ({gravac.MODELS[shown.model]} in the paper): "
        "convergence and compression factors",
        scale=scale,
        runs=own,
        facts=facts.facts(own, scale, [("decisions recorded", f"of {steps.thinning(own)}")]),
        sections=(steps.which_gain(judged), *_sections(one, shown, found, goal)),
        verdicts=judged,
        frame=found,
        printed={
            (row_id(shown.model, method), FEWER_FLOATS): value
            for method, value in gravac.REDUCTIONS[shown.model].items()
        },
        notes=shown.notes,
        choices=(*(c for c in gravac.CHOICES if c.key in _CHOICE_KEYS), _DENSITY_CHOICE),
        figures={f"fig{number}": lambda: _figure(one, shown, found, scale)},
    )


_CHOICE_KEYS = (
    "policy.gain", "policy.smoothing", "policy.freeze", "policy.throughput", "train.step_time",
)  # fmt: skip
_DENSITY_CHOICE = Choice(
    f"the unit of the bandwidth {BANDWIDTH:g}, and the factor of a dense step",
    "log10 of the factor; 1x",
    "policy.field",
)


def labels(model: str, methods: Sequence[str]) -> dict[str, str]:
    """Labels by row, without the model."""
    return {row: look.label for row, look in gravac.looks(model, methods).items()}


def _by_factor(
    one: Course, found: pd.DataFrame, methods: Sequence[str], quantity: str,
    form: Callable[[Sequence[float]], str] | None,
) -> pd.DataFrame:  # fmt: skip
    factors = steps.factors_of([run for run in one.runs if run.method in methods])
    names = {factor: "dense" if factor == 1 else f"{factor:g}x" for factor in factors}
    columns = [Column(name, quantity, form, at_factor(factor)) for factor, name in names.items()]
    return pivot(found, labels(one.model, methods), columns)


def throughput_section(
    one: Course, found: pd.DataFrame, methods: Sequence[str], more: str = ""
) -> Section:
    """Compression throughput of rows by factor."""
    return Section(
        "Compression throughput by factor",
        f"Gain of what was sent (of the row's own reading) times {steps.samples_unit(one.runs)}, mean over "
        f"the recorded steps at that factor. Assumed compute, modelled network, free compression. {more}",
        _by_factor(one, found, methods, THROUGHPUT, None),
    )


def _sections(
    one: Course, shown: claims.Shown, found: pd.DataFrame, goal: str
) -> tuple[Section, ...]:
    rows = labels(one.model, shown.methods)
    final = training.QUALITY if one.metric.sign > 0 else training.PERPLEXITY
    count = Column("n", final, lambda values: str(len(values)))
    quality = Column(f"final {one.metric.label}", final, 2)
    branches = [Column(name, BRANCH, percent, name) for name in steps.BRANCHES]
    largest = Column("largest candidate", steps.CANDIDATE)

    def printed(row: str) -> float:
        return gravac.REDUCTIONS[one.model].get(row.partition(".")[2], math.nan)

    sent = [
        count,
        Column("floats", FEWER_FLOATS, times, printed=printed, printed_unit="x"),
        *(Column(name, training.FEWER[name], times) for name in ("payload", "wire")),
        Column("wire of 32", training.WIRE_MANY, times),
        quality,
    ]
    decay = [
        Column("before", BEFORE, 2),
        Column("lowest after", LOWEST, 2),
        Column("dip", claims.DIP),
    ]
    decay += [Column("gain before", GAIN_BEFORE), Column("gain after", GAIN_AFTER)]
    floats = Column("floats", FEWER_FLOATS, times)
    timed = [Column("seconds", SECONDS, 0), Column("regret", REGRET, times), floats]
    others = labels(one.model, shown.others)
    more = [count, quality, *branches, largest, floats]
    return (
        Section(
            "What is sent: times less than dense",
            "Floats: values alone, as the paper counts. Payload: as packed, with places. Wire: what the "
            "collectives move; an allgather of N - 1 sparse payloads replaces an allreduce of 2 (N - 1) / N "
            "gradients. Wire of 32: the same for 32 workers; below 1x more is sent than in dense training.",
            pivot(found, labels(one.model, (DENSE, *shown.methods)), sent),
        ),
        Section(
            "Steps by factor",
            f"Shares of {steps.thinning(one.runs)}.",
            _by_factor(one, found, shown.methods, SHARE, percent),
        ),
        throughput_section(one, found, shown.methods, shown.on_throughput),
        Section(
            "Branches",
            "Shares of the recorded steps that sent the candidate, theta_min or the dense gradient.",
            pivot(found, rows, [*branches, Column("largest theta_min", steps.THETA_MIN), largest]),
        ),
        *(
            [
                Section(
                    "Where the learning rate first falls",
                    claims.DIP_READING,
                    pivot(found, rows, decay),
                )
            ]
            if claims.DIP in set(found["quantity"])
            else []
        ),
        *([Section("Other settings", _OTHERS, pivot(found, others, more))] if others else []),
        Section(
            "Regret: time to the target over that of the best static row in hindsight",
            f"{goal} Dense is a static row; where its run of a seed misses the target, the mean of its other "
            "seeds counts. Seconds are modelled, to the first evaluation that reaches the target. A row with "
            f"at most {COMPRESSED_FROM:g}x fewer floats than dense is dense training with other "
            "noise: its regret says nothing about compression.",
            pivot(found, rows, timed),
        ),
    )


_OTHERS = (
    "The sweep of eps has the norm gain. Decided a step later: from the gains of the step before, so that "
    "the plan of a step is known before backward. Floats: times less than dense."
)


# -- the figure


def density(grid: steps.Series, factors: steps.Series) -> steps.Series:
    """A Gaussian of `BANDWIDTH` at log10 of each step's factor, at the points ``grid`` of log10; the
    integral over log10 of the factor is one."""
    places, counts = np.unique(np.log10(factors), return_counts=True)
    bells = np.exp(-0.5 * ((grid[:, None] - places[None, :]) / BANDWIDTH) ** 2)
    scaled: steps.Series = bells @ counts / (counts.sum() * BANDWIDTH * math.sqrt(2 * math.pi))
    return scaled


def _figure(one: Course, shown: claims.Shown, found: pd.DataFrame, scale: str) -> Figure:
    rows, metric = gravac.looks(one.model, shown.methods), one.metric
    label = f"{metric.label} ({metric.unit})" if metric.unit else metric.label
    final = training.QUALITY if metric.sign > 0 else training.PERPLEXITY

    def quality(axes: Axes) -> None:
        looks = gravac.looks(one.model, (DENSE, *shown.methods))
        plot.curves(axes, one.runs, metric.column, looks, ylabel=label, log=metric.sign < 0)

    panels: list[tuple[str, Callable[[Axes], None]]] = [
        (f"{metric.label} by iteration", quality),
        (f"density of steps by factor (bandwidth {BANDWIDTH:g})", partial(_densities, one, rows)),
        ("modelled compression throughput", partial(draw_throughput, one, found, rows)),
        ("regret, best of dense and static rows = 1x", partial(_regrets, found, rows)),
    ]
    if any(run.method in gravac.EPS_SWEEP for run in one.runs if run.method in shown.others):
        both = (
            (final, metric.label, f"final {label}"),
            (FEWER_FLOATS, "floats", "times less than dense"),
        )
        panels += [
            (f"eps with the norm gain: {what}", partial(_sweep, one, found, quantity, name))
            for quantity, what, name in both
        ]
    title = f"{gravac.PAPER.label}, figure {shown.number}: {gravac.FAMILIES[one.model]}, compression factors"
    wide, caption = len(panels) // 2, facts.caption(one.runs, scale)
    return plot.figure(title, caption, panels, columns=wide, size=(4.6, 3.3), legend=2 * wide - 1)


def _densities(one: Course, rows: Mapping[str, Look], axes: Axes) -> None:
    """A base line for each row, so that no row hides another; the highest peak is almost one line high."""
    grid = np.linspace(-0.4, 3.7, 600)
    drawn = [
        (row, density(grid, steps.column(run, "factor")))
        for row in rows
        for run in one.runs
        if run.row == row and not run.decisions.empty
    ]
    highest = max((float(values.max()) for _, values in drawn), default=1.0)
    for base in (place for place, row in enumerate(rows) if row not in dict(drawn)):
        axes.text(1.0, base - 0.05, "not run", fontsize=7)
    for row, values in drawn:
        look, base = rows[row], list(rows).index(row)
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
    axes.set_yscale("log")
    plot.plain_log(axes.yaxis)
    axes.set_ylabel(f"gain x {steps.samples_unit(one.runs)} (log)")
    _factor_axis(axes)


def _regrets(found: pd.DataFrame, rows: Mapping[str, Look], axes: Axes) -> None:
    """Mean and range over seeds; a row without regret says why."""
    for place, (row, look) in enumerate(rows.items()):
        all_seeds = frames.of(found, REGRET, row)
        if values := [value for value in all_seeds if math.isfinite(value)]:
            reach = [[np.mean(values) - min(values)], [max(values) - np.mean(values)]]
            face = "white" if look.dashes != "-" else look.colour
            at_row = axes.errorbar(np.mean(values), place, xerr=reach, color=look.colour)
            at_row.lines[0].set(marker=look.marker, markerfacecolor=face)
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
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.3), max(high, 5.0))
    plot.plain_log(axes.xaxis, unit="x")
    axes.set_xlabel("modelled time over the best static row's (log)")
    _row_axis(axes, rows)


def _row_axis(axes: Axes, rows: Mapping[str, Look]) -> None:
    names = [look.label.removeprefix("GraVAC ") for look in rows.values()]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -1.0)


def _factor_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    plot.plain_log(axes.xaxis, (1.0,))
    axes.set_xlim(0.4, 3000)
    axes.set_xlabel("compression factor (log; 1 = dense)")


def _sweep(one: Course, found: pd.DataFrame, quantity: str, label: str, axes: Axes) -> None:
    """Mean by eps with one standard deviation over seeds; dense as a pale line."""
    by_eps = {eps: row_id(one.model, method) for method, eps in gravac.EPS_SWEEP.items()}
    rows = {eps: frames.of(found, quantity, row) for eps, row in by_eps.items()}
    known = {eps: values for eps, values in rows.items() if values}
    if dense := frames.of(found, quantity, row_id(one.model, DENSE)):
        axes.axhline(float(np.mean(dense)), **gravac.LOOKS[DENSE].line)
    means = [float(np.mean(values)) for values in known.values()]
    spread = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in known.values()]
    axes.errorbar(list(known), means, yerr=spread, color=plot.BLACK, marker="o", capsize=3)
    if quantity == FEWER_FLOATS:
        axes.set_yscale("log")
        plot.plain_log(axes.yaxis, unit="x")
    axes.set_xlim(0.47, 0.98)
    axes.set_xticks(list(rows), [f"{eps:g}" for eps in rows])
    axes.set_xlabel("eps")
    axes.set_ylabel(label)
