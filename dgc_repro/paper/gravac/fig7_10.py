"""GraVAC's figures 7 to 10: convergence, the factors that were used, throughput by factor, regret.

Regret: modelled time to our dense target over that of the best static row in hindsight, dense included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dgc_repro.paper import facts, frame, gravac, panels, plot
from dgc_repro.paper.claims import Check, Claim, Note, near
from dgc_repro.paper.frame import Column, Known, Quantity, join, percent, pivot, times
from dgc_repro.paper.gravac import (
    DENSE,
    EPS_SWEEP,
    GEOMETRIC,
    GRAVAC,
    GRAVAC_STRICT,
    LSTM,
    MODELS,
    REDUCTIONS,
    RESNET101,
    VGG16,
    norm_of,
    row_id,
)
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.gravac.shared import (
    BRANCH,
    COMPRESSED_FROM,
    SHARE,
    STEPS,
    THROUGHPUT,
    at_factor,
)
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

SHORT_WINDOW = "gravac07_short"
EPS = 0.7
WINDOW, GEOMETRIC_WINDOW = 500, 2_000
TEN, FORTY, THOUSAND = 10.0, 40.0, 1000.0
EVEN, SIMILAR = (0.25, 0.75), 2.0
"""Ours: two factors are even if each has such a share; densities are similar if none is twice another."""
DECAY_STEP, AFTER_DECAY = gravac.MILESTONES[0], 1_000
SIMILAR_FACTORS = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
LATE_STEP, LATE_FACTOR = 16_000, 1280.0
BANDWIDTH = 0.1
"""Of the density of steps, in log10 of the factor: the paper's number, our unit."""
FEWER_FLOATS = g.FEWER[g.FLOATS]
DIP, BEFORE, LOWEST = "dip", "quality before the decay", "lowest quality soon after"
GAIN_BEFORE, GAIN_AFTER = "gain before the decay", "gain after the decay"
EVENNESS, LATE = "largest share over smallest", f"share of steps at {LATE_FACTOR:g}x, late"
ARRIVED, CURVE = "share of steps at 1000x, last tenth", "mean quality over the run"
SECONDS, REGRET = "modelled seconds to the target", "regret"
_STATIC = rf"(?:{'|'.join(gravac.COMPRESSORS)})\d+|{DENSE}"
DIP_READING = (
    "Test quality at the last evaluation before the learning rate first falls, less the lowest of the "
    f"evaluations in the next {AFTER_DECAY:,} of {STEPS:,} steps (one at least). Our notes do not say of "
    "which curve; the gains around the decay stand in a table."
)
WORDS = Template.read(__file__)


@dataclass(frozen=True)
class Shown:
    """A figure: its ``model``, and the ``printed`` methods (each is drawn with both gains). ``others``:
    methods of a further table; ``on_throughput``: what the paper prints of it."""

    model: str
    printed: tuple[str, ...] = (GRAVAC, GRAVAC_STRICT)
    others: tuple[str, ...] = tuple(EPS_SWEEP)
    on_throughput: str = ""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that adapt: with the energy gain, then with the norm gain."""
        return (*self.printed, *map(norm_of, self.printed))


_apart = 100 * (1 - gravac.IDEAL[1280] / gravac.IDEAL[2000])
SHOWN = {
    7: Shown(RESNET101, others=(*EPS_SWEEP, "gravac07_bucket", SHORT_WINDOW)),
    8: Shown(VGG16),
    9: Shown(LSTM),
    10: Shown(
        RESNET101, (GRAVAC, GEOMETRIC), (),
        f"Printed: {gravac.IDEAL[1280]} at 1280x and {gravac.IDEAL[2000]} at 2000x, {_apart:.2f} % apart, "
        "within omega = 1 %, so that the smaller factor is chosen.",
    ),
}  # fmt: skip

# -- claims


def _rank(model: str, factor: float, rank: int) -> Check:
    check = Check(g.RANK, row_id(model, GRAVAC), setting=at_factor(factor))
    return near(check, rank, 0.5)


def _of_model(model: str) -> Iterator[Claim]:
    """The claims of one figure alone."""
    loose, strict = row_id(model, GRAVAC), row_id(model, GRAVAC_STRICT)

    def share(row: str, factor: float, above: float = g.MOSTLY, below: float = math.inf) -> Check:
        return Check(SHARE, row, above=above, below=below, setting=at_factor(factor))

    def say(name: str, *checks: Check, **how: object) -> Claim:
        words = {"least": EVEN[0], "most": EVEN[1], "dip": DIP_READING, "eps": EPS}
        return WORDS.claim(f"{model}.{name}", *checks, **words, **how)

    largest = partial(say, "throughput", _rank(model, THOUSAND, 1), ours=True, assumed=g.ASSUMED)
    both = g.compressed(model, GRAVAC, GRAVAC_STRICT)
    if model == RESNET101:
        yield say("even", *(share(strict, factor, *EVEN) for factor in (TEN, THOUSAND)), ours=True)
        theta_min = near(Check(g.THETA_MIN, strict), TEN, 0.5)
        yield say("theta_min", theta_min, premises=both[1:])
        yield say("mostly", share(loose, THOUSAND))
        yield say("dip", *(Check(DIP, row) for row in (loose, strict)), premises=both)
        yield say("deeper", Check(DIP, loose, strict), premises=both)
        short = g.compressed(model, GRAVAC, SHORT_WINDOW)
        yield say("window", g.better(model, GRAVAC, SHORT_WINDOW), premises=short)
        yield largest()
    elif model == VGG16:
        yield say("tight", share(strict, TEN))
        lead = Check(g.LEAD, loose, setting=at_factor(FORTY))
        yield say("loose", lead, near(Check(g.RUNNER_UP, loose), THOUSAND, 0.5))
        gain = Check(g.AT_GAIN, loose, above=EPS, setting=at_factor(FORTY))
        yield say("second", _rank(model, FORTY, 2), gain, assumed=g.ASSUMED)
        yield say("arrives", Check(ARRIVED, loose, above=g.MOSTLY))
    else:
        yield say("mostly", *(share(row, THOUSAND) for row in (loose, strict)))
        yield largest()


def _less(model: str, method: str, number: int) -> Claim:
    """Less is sent than in dense training."""
    called = f"{MODELS[model]}, {gravac.LOOKS[method].label.partition(',')[0]}"
    words = {"called": called, "where": f"figure {number}", "least": COMPRESSED_FROM}
    return WORDS.claim("less", g.fewer(model, method), of=row_id(model, method), **words)


def _of_eps(model: str, number: int) -> Iterator[Claim]:
    """What is sent at both eps, and the sweep of eps. By how much less is sent than in dense training is
    judged on Table II's page, which has more seeds."""
    larger, smaller = (REDUCTIONS[model][method] for method in (GRAVAC, GRAVAC_STRICT))
    least = min(COMPRESSED_FROM, math.sqrt(larger / smaller))  # 289x and 279x are 1.04x apart
    say = partial(WORDS.claim, of=model, called=MODELS[model])
    less = g.fewer(model, GRAVAC, GRAVAC_STRICT, least)
    words = {"larger": larger, "smaller": smaller, "least": least, "where": f"figure {number}"}
    yield say("eps", less, **words)
    lowest, high = next(iter(EPS_SWEEP)), norm_of(GRAVAC_STRICT)
    premises = g.compressed(model, lowest)
    yield say(
        "small_eps", g.better(model, high, lowest), premises=premises, lowest=EPS_SWEEP[lowest]
    )


def _geometric() -> Iterator[Claim]:
    slow = row_id(RESNET101, GEOMETRIC)
    even, late = Check(EVENNESS, slow, below=SIMILAR), Check(LATE, slow, above=g.MOSTLY)
    yield WORDS.claim("geometric.similar", even, ours=True, similar=SIMILAR)
    yield WORDS.claim("geometric.late", late, window=GEOMETRIC_WINDOW)
    premises = g.compressed(RESNET101, GRAVAC, GEOMETRIC)
    check = Check(CURVE, row_id(RESNET101, GRAVAC), slow)
    yield WORDS.claim("geometric.slower", check, premises=premises)
    yield _less(RESNET101, GEOMETRIC, 10)
    reduction = REDUCTIONS[RESNET101][GEOMETRIC]
    words = {
        "called": "ResNet101, GraVAC geometric",
        "where": "figure 10",
        "reduction": reduction,
    }
    fewer = g.fewer_floats(RESNET101, GEOMETRIC, reduction)
    yield WORDS.claim("volume", fewer, of=slow, ours=True, **words)


def claims_of(number: int) -> tuple[Claim, ...]:
    """The claims of a figure, with both gains but for two that have one."""
    model = SHOWN[number].model
    if number == 10:
        own = list(_geometric())
    else:
        less = (_less(model, method, number) for method in SHOWN[number].printed)
        own = [*_of_model(model), *less, *_of_eps(model, number)]
    both = [claim for claim in own if not claim.id.endswith((".window", ".small_eps"))]
    return (*own, *map(g.of_norm, both))


def _steps_for(reduction: float, windows: Sequence[tuple[float, int]], last: float) -> float:
    """The steps after which these windows (factor, steps) and then the factor ``last`` have sent
    ``reduction`` times fewer floats than dense."""
    sent, done = sum(n / factor for factor, n in windows), sum(n for _, n in windows)
    return (sent - done / last) / (1 / reduction - 1 / last)


def exponential_steps() -> float:
    """Steps at which the printed reduction of ResNet101 at eps 0.7 comes of no dense step at all."""
    windows = [(factor, WINDOW) for factor in (10.0, 20.0, 40.0, 160.0)]
    return _steps_for(REDUCTIONS[RESNET101][GRAVAC], windows, THOUSAND)


def geometric_steps() -> tuple[float, float]:
    """The most that the geometric policy saves in the paper's steps, and the steps its reduction needs."""
    windows = [(factor, GEOMETRIC_WINDOW) for factor in (*SIMILAR_FACTORS, LATE_FACTOR)]
    rest, largest = STEPS - sum(n for _, n in windows), float(max(gravac.IDEAL))
    most = STEPS / (sum(n / factor for factor, n in windows) + rest / largest)
    return most, _steps_for(REDUCTIONS[RESNET101][GEOMETRIC], windows, LATE_FACTOR)


def notes_of(number: int) -> tuple[Note, ...]:
    """The notes of a figure."""
    most, needed = geometric_steps()
    exponential, geometric = WORDS.noted(
        exponential=REDUCTIONS[RESNET101][GRAVAC], window=WINDOW, exponential_steps=exponential_steps(),
        geometric=REDUCTIONS[RESNET101][GEOMETRIC], steps=STEPS, geometric_window=GEOMETRIC_WINDOW,
        ideal=max(gravac.IDEAL), most=most, needed=needed,
    )  # fmt: skip
    return {7: (exponential,), 10: (geometric,)}.get(number, ())


# -- numbers


def decay_step(run: Run) -> float:
    """The last step before a constant learning rate first falls to a half or less; NaN where it does not, or
    is not constant until then."""
    rates, ends = run.epochs["lr"].to_numpy(float), run.epochs["step"].to_numpy(float)
    falls = np.flatnonzero(rates[1:] <= 0.5 * rates[:-1])
    if not falls.size or (rates[: falls[0] + 1] != rates[0]).any():
        return math.nan
    return float(ends[falls[0]])


def around_decay(run: Run, one: g.Course) -> tuple[float, float]:
    """Quality at the last evaluation before the learning rate falls, and the worst one soon after."""
    step, ends = decay_step(run), run.epochs["step"].to_numpy(float)
    if math.isnan(step):
        return math.nan, math.nan
    values, sign = one.metric.sign * one.quality(run), one.metric.sign
    soon = (ends > step) & (ends <= step + g.at(run, AFTER_DECAY))
    soon[np.flatnonzero(ends > step)[0]] = True  # one at least
    return sign * float(values[ends == step][0]), sign * float(values[soon].min())


def _gain_between(run: Run, start: float, end: float) -> float:
    """Mean gain of what was sent, from so many of the paper's steps after the decay to so many."""
    after = g.column(run, "step") - decay_step(run)
    return g.mean(g.column(run, "gain")[(after > g.at(run, start)) & (after <= g.at(run, end))])


def _evenness(run: Run) -> float:
    """The largest share of the figure's factors over the smallest, infinite where one is missing."""
    found = g.factor_table(run, SIMILAR_FACTORS)[SHARE].reindex(SIMILAR_FACTORS)
    return float(found.max() / found.min()) if found.min() else math.inf


def _share_after(run: Run, factor: float, step: float) -> float:
    late = g.column(run, "factor")[g.column(run, "step") > step]
    return float((late == factor).mean()) if late.size else math.nan


def _late(run: Run) -> float:
    windows = LATE_STEP // GEOMETRIC_WINDOW
    start = windows * float(run.setting("policy.window", math.nan))
    return _share_after(run, LATE_FACTOR, start)


def _numbers(one: g.Course) -> pd.DataFrame:
    """Everything that tables and claims say of these runs."""
    runs = [run for run in one.runs if run.method != DENSE]
    sign, unit = one.metric.sign, one.metric.unit
    quantities = {
        g.RUNNER_UP: Quantity("", partial(g.ranked, place=1)),
        EVENNESS: Quantity("x", _evenness),
        LATE: Quantity("", _late),
        ARRIVED: Quantity("", lambda run: _share_after(run, THOUSAND, 0.9 * run.last("step"))),
        g.THETA_MIN: Quantity("x", partial(g.largest, name="theta_min")),
        g.CANDIDATE: Quantity("x", partial(g.largest, name="candidate")),
        DIP: Quantity(unit, lambda run: sign * float(np.subtract(*around_decay(run, one)))),
        BEFORE: Quantity(unit, lambda run: around_decay(run, one)[0]),
        LOWEST: Quantity(unit, lambda run: around_decay(run, one)[1]),
        GAIN_BEFORE: Quantity("", lambda run: _gain_between(run, -AFTER_DECAY, 0)),
        GAIN_AFTER: Quantity("", lambda run: _gain_between(run, 0, AFTER_DECAY)),
    }
    curve = {CURVE: Quantity(unit, lambda run: float(one.quality(run).mean()))}
    return join(
        g.measure(one),
        frame.measure(one.runs, curve),
        g.by_factor(runs, lead=[FORTY], rank=[FORTY, THOUSAND], always=[TEN, THOUSAND]),
        frame.measure(runs, quantities),
    )


def regret(one: g.Course, methods: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """Modelled seconds to the target of every run, and the regret of ``methods``: their seconds over those
    of the best static row in hindsight, by seed; and which rows these are. Where the dense run of a seed
    misses the target, dense counts with the mean of its other seeds."""
    seconds = partial(g.seconds_to_target, one=one, target=one.target, clock=g.MODELLED)
    table = frame.measure(one.runs, {SECONDS: Quantity("s", seconds, g.MODELLED)})
    table["method"] = table["row"].astype(str).str.replace(r"^[^.]*\.", "", regex=True)
    own = table[table["method"].isin(methods)]
    is_static = table["method"].str.fullmatch(_STATIC) & np.isfinite(table["value"])
    static = table[is_static].pivot(index="seed", columns="method", values="value")
    tried = static.reindex(sorted({run.seed for run in one.of(*methods)}))
    if DENSE in tried:
        tried[DENSE] = tried[DENSE].fillna(static[DENSE].mean())
    ranked = tried.melt(ignore_index=False).dropna().sort_values(["value", "method"])
    best = ranked.groupby(level="seed").first()
    over = own["value"] / own["seed"].map(best["value"])
    regrets = own.assign(value=over, quantity=REGRET, unit="x")
    named = zip(best["method"], best["value"], strict=True)
    which = (f"{gravac.LOOKS[name].label} ({took:.0f} s)" for name, took in named)
    return frame.lines(join(table, regrets)), facts.distinct(which)


# -- the page


def page(number: int, runs: Sequence[Run], scale: str) -> Page:
    """The page of a figure. Raises UserError if the runs are not alike."""
    shown = SHOWN[number]
    (whole,) = g.courses(runs, scale, (shown.model,))
    own = g.compared(whole.of(DENSE, *shown.methods, *shown.others))
    one = replace(whole, runs=tuple(own))
    regrets, best = regret(whole, shown.methods)
    found, claims = join(_numbers(one), regrets), claims_of(number)
    if own and all(math.isnan(decay_step(run)) for run in own):  # a schedule without steps
        claims = tuple(c for c in claims if all(check.quantity != DIP for check in c.checks))
    known = {(row_id(shown.model, m), FEWER_FLOATS): n for m, n in REDUCTIONS[shown.model].items()}
    drawn = _panels(one, shown, found)
    title = f"{gravac.PAPER.label}, figure {number}: {one.family}, compression factors"
    said = {
        "number": number, "model": MODELS[shown.model], "on_throughput": shown.on_throughput,
        "dip": DIP_READING, "target": g.target_text(whole), "best": best,
    }  # fmt: skip
    keys = (
        "train.step_time",
        "policy.gain",
        "policy.smoothing",
        "policy.freeze",
        "policy.throughput",
    )
    return g.made(
        __file__, scale, own, found, [g.which_gain, *_sections(one, shown, found, known)], claims,
        judge=g.judge_sent_apart, head=[*g.head(one), *g.recorded(own)], said=said, printed=known,
        notes=notes_of(number), choices=g.choices(*keys),
        figures={
            f"fig{number}": lambda: plot.figure(
                title, facts.caption(one.runs, scale), drawn, columns=len(drawn) // 2, size=(4.6, 3.3),
                legend=2 * (len(drawn) // 2) - 1,
            )
        },
    )  # fmt: skip


ARTIFACTS = {
    f"fig{number}": SimpleNamespace(page=partial(page, number), POOL="training") for number in SHOWN
}


def labels(model: str, methods: Sequence[str]) -> dict[str, str]:
    """Labels by row, without the model."""
    return {row: look.label for row, look in gravac.looks(model, methods).items()}


def by_factor(
    one: g.Course,
    found: pd.DataFrame,
    methods: Sequence[str],
    quantity: str = THROUGHPUT,
    form: Callable[[Sequence[float]], str] | None = None,
) -> pd.DataFrame:
    """A quantity of rows by factor."""
    names = {f: "dense" if f == 1 else f"{f:g}x" for f in g.factors_of(one.of(*methods))}
    columns = [Column(name, quantity, form, at_factor(factor)) for factor, name in names.items()]
    return pivot(found, labels(one.model, methods), columns)


def _sections(one: g.Course, shown: Shown, found: pd.DataFrame, known: Known) -> list[Section]:
    rows, dense = (labels(one.model, methods) for methods in (shown.methods, (DENSE,)))
    count, quality = frame.seeds(one.final), Column(f"final {one.metric.label}", one.final, 2)
    branches = [Column(name, BRANCH, percent, name) for name in g.BRANCHES]
    theta_min, largest = (
        Column("largest theta_min", g.THETA_MIN),
        Column("largest candidate", g.CANDIDATE),
    )
    floats = Column("floats", FEWER_FLOATS, times)
    sent = [
        count,
        replace(floats, printed=known, printed_unit="x"),
        *(Column(name, g.FEWER[name], times) for name in ("payload", "wire")),
        Column("wire of 32", g.WIRE_MANY, times),
        quality,
    ]
    decay = [
        Column("before", BEFORE, 2),
        Column("lowest after", LOWEST, 2),
        Column("dip", DIP),
        Column("gain before", GAIN_BEFORE),
        Column("gain after", GAIN_AFTER),
    ]
    timed = [Column("seconds", SECONDS, 0), Column("regret", REGRET, times), floats]
    more = [count, quality, *branches, largest, floats]
    has_dips = DIP in set(found["quantity"])
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


def _panels(one: g.Course, shown: Shown, found: pd.DataFrame) -> list[panels.Panel]:
    rows = gravac.looks(one.model, shown.methods)
    names = dict(enumerate(look.label.removeprefix("GraVAC ") for look in rows.values()))
    by_row = partial(panels.panel, yticks=names, ylim=(len(rows) - 0.5, -1.0))
    sent = [(run.row, list(g.column(run, "factor"))) for run in one.runs if run.row in rows]
    drawn = [
        g.quality_panel(one, gravac.looks(one.model, (DENSE, *shown.methods))),
        by_row(
            f"density of steps by factor (bandwidth {BANDWIDTH:g})",
            panels.histogram(sent, rows, BANDWIDTH),
            **FACTOR_AXIS,
        ),
        throughput_panel(one, found, rows),
        by_row(
            "regret, best of dense and static rows = 1x", *_regrets(found, rows), log="x", unit="x",
            x="modelled time over the best static row's",
        ),
    ]  # fmt: skip
    if one.of(*(method for method in shown.others if method in EPS_SWEEP)):
        drawn += [
            _sweep(one, found, one.metric.label, one.final, f"final {one.metric.axis}"),
            _sweep(one, found, "floats", FEWER_FLOATS, "times less than dense"),
        ]
    return drawn


FACTOR_AXIS: dict[str, Any] = {
    "x": "compression factor, 1 = dense",
    "log": "x",
    "xlim": (0.4, 3000),
}


def throughput_panel(one: g.Course, found: pd.DataFrame, rows: Mapping[str, Look]) -> panels.Panel:
    """Compression throughput by factor, rows a little aside of each other."""
    drawn = []
    for place, (row, look) in enumerate(rows.items()):
        for factor in g.factors_of([run for run in one.runs if run.row == row]):
            if values := frame.of(found, THROUGHPUT, row, at_factor(factor)):
                aside = [factor * 1.12 ** (place - (len(rows) - 1) / 2)] * len(values)
                drawn.append(panels.points({row: (aside, values)}, {row: replace(look, label="")}))
    unit = g.samples_unit(one.runs).replace(" of ", "\nof ")  # else longer than the panel is high
    axis = FACTOR_AXIS | {"log": "xy", "y": f"gain x {unit}"}
    return panels.panel("modelled compression throughput", *drawn, **axis)


def _regrets(found: pd.DataFrame, rows: Mapping[str, Look]) -> list[panels.Draw]:
    """Mean and range over seeds; a row without regret says why."""
    seeds = [frame.of(found, REGRET, row) for row in rows]
    finite = [[value for value in own if math.isfinite(value)] for own in seeds]
    notes = []
    for row, own, values in zip(rows, seeds, finite, strict=True):
        fewer = frame.of(found, FEWER_FLOATS, row)
        note = times(values) if values else "target not reached" if fewer else "not run"
        if 0 < len(values) < len(own):
            note += f", reached by {len(values)} of {len(own)}"
        notes.append(
            note + ("; nearly dense" if fewer and np.mean(fewer) <= COMPRESSED_FROM else "")
        )

    def write(axes: Axes) -> None:
        style: dict[str, Any] = {"ha": "right", "fontsize": 7, "backgroundcolor": "white"}
        for place, note in enumerate(notes):
            axes.text(0.98, place - 0.3, note, transform=axes.get_yaxis_transform(), **style)

    def widen(axes: Axes) -> None:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.3), max(high, 5.0))

    looks = [replace(look, label="") for look in rows.values()]
    reach = panels.strip(finite, lambda v: (float(np.mean(v)), min(v), max(v)), looks)
    return [reach, write, panels.rule("x", 1.0), widen]


def _sweep(
    one: g.Course, found: pd.DataFrame, what: str, quantity: str, label: str
) -> panels.Panel:
    """Mean by eps with one standard deviation over seeds; dense as a pale line."""
    eps = {row_id(one.model, method): value for method, value in EPS_SWEEP.items()}
    own = found[found["quantity"] == quantity]
    dense = frame.of(found, quantity, row_id(one.model, DENSE))
    line = {"color": plot.BLACK, "marker": "o", "capsize": 3}
    swept = own.assign(eps=own["row"].map(eps))
    unit = "x" if quantity == FEWER_FLOATS else ""
    return panels.panel(
        f"eps with the norm gain: {what}",
        *([panels.rule("y", float(np.mean(dense)), **gravac.LOOKS[DENSE].line)] if dense else []),
        panels.means(swept, "eps", "value", spread=True, **line),
        x="eps", y=label, log="y" if unit else "", unit=unit, xlim=(0.47, 0.98),
        xticks={value: f"{value:g}" for value in eps.values()},
    )  # fmt: skip
