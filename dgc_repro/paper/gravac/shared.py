"""What GraVAC's pages of training runs share: runs of a model, quantities, words of claims, parts of pages.

Target    of a model: the mean final quality of our dense runs less one standard deviation (a perplexity:
          plus one); with one seed the mean. For time to target only: claims on quality compare a row with
          dense, paired by seed.
Reached   after the first epoch whose quality is the target or better: times are whole epochs.
Plateau   the last epoch that beats the last counted one by more than a share (``stopping.plateau``)
          of the run's best; the first epoch counts.
Failed    quality came less than a seventh of the way from chance to the target, or it or the training loss is
          not finite. For a perplexity the way is in nats a word, and chance is the test perplexity of the
          training part's word frequencies, or the vocabulary where these are not known.

Seconds are modelled, and infinite where a run never reaches the target, or has failed. Long runs record the
decisions of evenly spaced steps: shares and means are of the recorded steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dgc_repro.paper import facts, frame, gravac, page, panels, plot
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import SENT, Column, Quantity, Relative, lines, longer
from dgc_repro.paper.gravac import (
    DATA,
    DENSE,
    LABELS,
    LSTM,
    MODELS,
    REDUCTIONS,
    SETUP,
    norm_of,
    row_id,
)
from dgc_repro.paper.page import Page, Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, require_alike

Series = NDArray[np.float64]
ALIKE = (*facts.ALIKE, "train.step_time", "stopping.metric")
QUALITY, PERPLEXITY = "final accuracy", "final perplexity"
ABOVE_FAILING, FLOATS = "quality above the failing level", "floats sent"
RUN_SECONDS, PLATEAU_SECONDS = "seconds of the run", "seconds to the plateau"
TARGET_SECONDS = "seconds to the target"
FEWER = {name: f"{name}, times less than dense" for name in SENT}
PRINTED_FLOATS: frame.Known = {
    (row_id(model, method), FEWER[FLOATS]): times
    for model, of in REDUCTIONS.items()
    for method, times in of.items()
}
ASSUMED = "compute times and free compression"
"""Nobody has measured these inputs of modelled seconds: verdicts on seconds hold given them."""
WORD_FREQUENCIES: dict[tuple[str, int | None, int | None], float] = {
    ("ptb (valid as train)", 63_720, 20_000): 447.2,
    ("topics of Python 3.11's documentation (embedded, sha256 d9dc35bc)", 1_936, 800): 468.7,
    ("scikit-learn's descriptions (embedded, sha256 ed191c36)", None, None): 87.1,
}
"""Chance of a language model: test perplexity of the training part's word frequencies, by text,
``dataset.train_size`` and ``dataset.test_size`` (None: all), as
tests/dataset/test_word_frequencies.py computes it. Not known for the whole Penn Treebank."""

# -- the runs of a model


@dataclass(frozen=True)
class Metric:
    """The quality of a run: ``column`` of its epochs; ``sign``: -1 where less is better."""

    column: str
    label: str
    unit: str = "%"
    sign: int = 1

    @property
    def axis(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def steps(self) -> str:
        """The unit of `above_failing`."""
        return "points" if self.sign > 0 else "nats"


METRICS = {
    "accuracy": Metric("test/accuracy_percent", "test accuracy"),
    "top5": Metric("test/top5_percent", "top-5 test accuracy"),
    "perplexity": Metric("test/perplexity", "test perplexity", "", -1),
}
"""By ``stopping.metric``."""


@dataclass(frozen=True)
class Course:
    """The runs of one model and how they are judged. ``target``: of our dense runs, NaN without one;
    ``papers_target``: NaN but at scale paper and for `low`."""

    model: str
    runs: tuple[Run, ...]
    metric: Metric
    target: float = math.nan
    papers_target: float = math.nan

    @property
    def final(self) -> str:
        """The quantity of the final quality."""
        return QUALITY if self.metric.sign > 0 else PERPLEXITY

    @property
    def family(self) -> str:
        """The name of our model in tables and figures."""
        return gravac.families(self.runs)[self.model]

    def of(self, *methods: str) -> list[Run]:
        """The runs of these rows, by row and seed."""
        return [run for run in self.runs if run.method in methods]

    def quality(self, run: Run) -> Series:
        """The metric after each epoch."""
        return np.asarray(run.epochs[self.metric.column], dtype=np.float64)

    def last(self, run: Run) -> float:
        """The metric after the last epoch."""
        return float(self.quality(run)[-1])


def courses(
    runs: Sequence[Run],
    scale: str,
    models: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
) -> list[Course]:
    """The runs of each model (``models``, ``methods``: only of these). Raises UserError where those of one
    model are not alike."""
    own = [run for run in runs if methods is None or run.method in methods]
    shown = gravac.families(runs) if models is None else models
    return [_course([run for run in own if run.model == model], model, scale) for model in shown]


def _course(runs: Sequence[Run], model: str, scale: str) -> Course:
    require_alike(runs, ALIKE)
    named = "perplexity" if model == LSTM else "accuracy"
    metric = METRICS[str(runs[0].setting("stopping.metric", named)) if runs else named]
    one = Course(model, tuple(sorted(runs, key=lambda run: (run.row, run.seed))), metric)
    target = math.nan
    if dense := list(map(one.last, one.of(DENSE))):
        spread = float(np.std(dense, ddof=1)) if len(dense) > 1 else 0.0
        target = float(np.mean(dense)) - metric.sign * spread
    has_papers = scale == facts.PAPER_SCALE or gravac.is_low(runs)
    return replace(
        one, target=target, papers_target=SETUP(model, "target") if has_papers else math.nan
    )


def runs_of(found: Sequence[Course]) -> list[Run]:
    """The runs of all models."""
    return [run for one in found for run in one.runs]


# -- quality, what is sent, seconds


def met_at(values: Series, target: float, sign: int) -> int | None:
    """The place of the first value that is the target or better, None where there is none."""
    places = np.flatnonzero(sign * values >= sign * target)
    return int(places[0]) if places.size else None


def plateau_at(values: Series, sign: int, share: float) -> int:
    """The place of the last value that beats the last counted one by more than ``share`` of the best; the
    first counts."""
    goodness = sign * values
    known = goodness[np.isfinite(goodness)]
    step = share * abs(float(known.max())) if known.size else math.inf
    counted, place = -math.inf, 0
    for number, value in enumerate(goodness):
        if value > counted + step:
            counted, place = float(value), number
    return place


def chance(run: Run, metric: Metric) -> float:
    """The quality of guessing, NaN where it is not known."""
    classes = float(run.summary.get("classes") or math.nan)
    if metric.sign > 0:
        return min(100.0, 100.0 * (5 if metric == METRICS["top5"] else 1) / classes)
    sizes = (run.setting("dataset.train_size"), run.setting("dataset.test_size"))
    return WORD_FREQUENCIES.get((str(run.environment.get("data")), *sizes), classes)


def above_failing(run: Run, one: Course) -> float:
    """How far a run came beyond the level at which it has failed: points, or nats a word. A run that is not
    finite counts as guessing. NaN where chance is not known. Without a target the way leads to a perfect
    answer."""
    guess, last = chance(run, one.metric), one.last(run)
    perfect = 100.0 if one.metric.sign > 0 else 1.0
    goal = perfect if math.isnan(one.target) else one.target
    is_finite = math.isfinite(last) and math.isfinite(run.last("train/loss"))
    levels = (guess, goal, last if is_finite else guess)
    start, end, came = levels if one.metric.sign > 0 else (-math.log(level) for level in levels)
    return came - start - gravac.failed_share() * max(0.0, end - start)


def seconds(run: Run) -> Series:
    """Modelled seconds since the start of the run after each epoch, NaN where none are recorded."""
    missing = pd.Series(math.nan, run.epochs.index)
    return np.asarray(run.epochs.get("time/modelled_seconds", missing), dtype=np.float64)


def plateau_seconds(run: Run, one: Course) -> float:
    """Seconds to the plateau; infinite where the run has failed."""
    share = run.setting("stopping.plateau") or 0.0
    place = plateau_at(one.quality(run), one.metric.sign, share)
    return math.inf if above_failing(run, one) <= 0 else float(seconds(run)[place])


def target_seconds(run: Run, one: Course) -> float:
    """Seconds to the target; infinite where it is not reached, NaN without one."""
    place = met_at(one.quality(run), one.target, one.metric.sign)
    if math.isnan(one.target):
        return math.nan
    return math.inf if place is None else float(seconds(run)[place])


def measure(one: Course, more: Mapping[str, Quantity | Relative] | None = None) -> pd.DataFrame:
    """Final quality and what is sent of every run, how many times less than dense of the same seed, and
    ``more`` quantities."""
    dense = row_id(one.model, DENSE)
    less = {new: Relative(name, dense, inverse=True) for name, new in FEWER.items()}
    final = {one.final: Quantity(one.metric.unit, one.last)}
    return frame.measure(one.runs, {**final, **SENT, **less, **(more or {})})


# -- recorded decisions

STEPS = 18_000
"""Steps of a run of the paper. Ours: its learning rate decays at 9,000 and 14,000, and figure 10 speaks of
16,000 and later. A printed step counts as its share of these, so that a shorter run has the same moments."""
ENERGY, NORM = "energy", "norm"
"""The two gains: as printed (squared norms), and as in the authors' code (sums of norms over the gradient
without its residual)."""
GAIN = {ENERGY: "energy gain", NORM: "norm gain"}
SHARE, THROUGHPUT = "share of steps", "compression throughput"
AT_GAIN = "gain of what was sent"
MOSTLY = 0.5
"""Mostly: more than this share of the steps."""


def at(run: Run, paper_step: float) -> float:
    """A step of the paper, as a step of this run."""
    return paper_step / STEPS * float(run.last("step"))


def column(run: Run, name: str) -> Series:
    """A column of the recorded decisions, empty where there is none."""
    if name not in run.decisions.columns:
        return np.empty(0)
    return np.asarray(run.decisions[name], dtype=np.float64)


def mean(values: Series) -> float:
    """The mean of the finite values, NaN where there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def largest(run: Run, name: str) -> float:
    """The largest value of a column of the decisions, NaN where there is none."""
    values = column(run, name)
    return float(values.max()) if values.size else math.nan


def gains(run: Run, gain: str) -> Series:
    """The gain of each recorded step, not smoothed; NaN where the record lacks it. The norm gain of a dense
    step is not recorded."""
    if gain == ENERGY:
        return column(run, "gain")
    raw = column(run, "raw_norms")
    found: Series = column(run, "sent_norms") / np.where(raw > 0, raw, np.nan)
    return found


def factor_table(run: Run, more: Iterable[float] = ()) -> pd.DataFrame:
    """A line for each factor of what was sent, ascending, and for ``more``; none where no step is recorded.
    Factor 1 is dense.

    Columns: `SHARE` of the recorded steps, mean `AT_GAIN`, and mean `THROUGHPUT` (samples a second of the
    workers whose step is modelled)."""
    recorded = run.decisions.reindex(columns=["factor", "gain", "throughput"])
    grouped = recorded.replace([np.inf, -np.inf], np.nan).groupby("factor")
    counts = grouped.size()
    table = grouped.mean().rename(columns={"gain": AT_GAIN, "throughput": THROUGHPUT})
    table[SHARE] = counts / counts.sum()
    workers = int(run.setting("launch.workers"))
    table[THROUGHPUT] *= (run.setting("network.as_workers") or workers) / workers
    factors = table.index.union(sorted(set(more))) if len(table) else table.index
    return table.reindex(factors).fillna({SHARE: 0.0}).rename_axis("factor")


def ranked(run: Run, by: str, place: int = 0) -> float:
    """The factor with the largest (0), the second largest (1), ... of a column of `factor_table`."""
    order = factor_table(run)[by].dropna().sort_values(ascending=False, kind="stable").index
    return float(order[place]) if len(order) > place else math.nan


def at_factor(factor: float) -> str:
    """The setting of a number at one factor."""
    return f"at {factor:g}x"


def factors_of(runs: Sequence[Run], always: Iterable[float] = ()) -> list[float]:
    """Every factor that was sent, ascending, and those of ``always``."""
    return sorted({*always, *(factor for run in runs for factor in factor_table(run).index)})


def by_factor(runs: Sequence[Run], always: Iterable[float]) -> pd.DataFrame:
    """The frame of `factor_table` at every factor that was sent, and at those of ``always``."""
    if not runs:
        return lines([])
    sent = factors_of(runs, always)
    tables = (factor_table(run, sent).assign(row=run.row, seed=run.seed) for run in runs)
    wide = pd.concat(tables).reset_index()
    wide = wide.assign(setting=wide["factor"].map(at_factor))
    units = {SHARE: (SHARE, ""), AT_GAIN: (AT_GAIN, "")}
    return longer(wide, units | {THROUGHPUT: (THROUGHPUT, "samples/s", "modelled")})


def thinning(runs: Sequence[Run]) -> str:
    """Which steps are recorded, in words."""
    gaps = {
        int(np.median(np.diff(steps))) for run in runs if (steps := column(run, "step")).size > 1
    }
    said = ["every step" if gap == 1 else f"one step in {gap}" for gap in sorted(gaps)]
    return " or ".join(said) or "no step"


# -- the words of claims

MARGIN_POINTS, MARGIN_SHARE = 0.5, 0.02
"""Ours: a row ends as well as dense within half a point, or 2 % of the perplexity. The smallest printed
difference that misses a target is 0.6 points (Redsync 10x)."""
COMPRESSED_FROM = 1.1
"""Ours: a run that sends at most so many times fewer floats than dense says nothing about compression."""
DIFFERENCE_SHARE = GAIN_SHARE = 0.5
"""Ours: a printed difference, and the gain of a printed speedup (speedup - 1), within half either way."""
VOLUME_FACTOR = 2.0
"""Ours: a printed reduction of what is sent, within a factor of two."""
NORM_ROWS = {row: norm_of(row) for row in LABELS if norm_of(row) in LABELS}
"""By row of the energy gain, the same row with the norm gain."""


def better(model: str, good: str, bad: str) -> Check:
    """The method ``good`` ends better than ``bad``."""
    good, bad = row_id(model, good), row_id(model, bad)
    if model != LSTM:
        return Check(QUALITY, good, bad)
    return Check(PERPLEXITY, bad, good, above=1.0, ratio=True)


def as_good(model: str, method: str, other: str = DENSE) -> Check:
    """A method ends at most the margin worse than ``other``."""
    check = better(model, method, other)
    return replace(check, above=1 / (1 + MARGIN_SHARE) if check.ratio else -MARGIN_POINTS)


def better_by(model: str, good: str, bad: str, printed: tuple[float, float]) -> Check:
    """``good`` ends better than ``bad`` as far as their ``printed`` values, within half of it either way and
    not less than the margin."""
    check, (of_good, of_bad) = better(model, good, bad), printed
    if not check.ratio:
        gap = of_good - of_bad
        return near(check, gap, max(MARGIN_POINTS, DIFFERENCE_SHARE * abs(gap)))
    ratio = of_bad / of_good
    return near(check, ratio, 1 + max(MARGIN_SHARE, DIFFERENCE_SHARE * abs(ratio - 1)))


def sooner(quantity: str, model: str, quick: str, than: str, printed: float = math.nan) -> Check:
    """``quick`` takes fewer modelled seconds than the other method."""
    rows = row_id(model, than), row_id(model, quick)
    return Check(quantity, *rows, above=1.0, ratio=True, printed=printed)


def sooner_by(check: Check, speedup: float) -> Check:
    """A printed speedup, within half of its gain either way."""
    margin = GAIN_SHARE * (speedup - 1)
    low, high = sorted((speedup - margin, speedup + margin))
    return replace(check, above=low, below=high, printed=speedup)


def fewer(model: str, method: str, than: str = DENSE, above: float = COMPRESSED_FROM) -> Check:
    """A method sends fewer floats than another one."""
    return Check(FLOATS, row_id(model, than), row_id(model, method), above=above, ratio=True)


def compressed(model: str, *methods: str) -> tuple[Check, ...]:
    """The premise of claims on these rows' quality or speed: they sent fewer floats than dense."""
    return tuple(fewer(model, method) for method in methods)


def fewer_floats(model: str, method: str, reduction: float) -> Check:
    """A method sends ``reduction`` times fewer floats than dense, within the factor."""
    return near(fewer(model, method), reduction, VOLUME_FACTOR)


def of_norm(claim: Claim, rows: Mapping[str, str] = NORM_ROWS) -> Claim:
    """The same claim on rows with the norm gain (``rows``: by row of the energy gain)."""

    def swapped(checks: Sequence[Check]) -> tuple[Check, ...]:
        found = []
        for check in checks:
            greater, lesser = (rows.get(row or "", row) for row in (check.greater, check.lesser))
            found.append(replace(check, greater=greater or "", lesser=lesser))
        return tuple(found)

    return replace(
        claim,
        id=f"{claim.id}.norm",
        text=f"{claim.text[:-1]} (norm gain).",
        checks=swapped(claim.checks),
        premises=swapped(claim.premises),
        cannot_follow="",
    )


def both_gains(claims: Iterable[Claim]) -> Iterator[Claim]:
    """Each claim, and where it is on other rows with the norm gain, that one after it."""
    for claim in claims:
        yield claim
        other = of_norm(claim)
        if other.checks != claim.checks:
            yield other


# -- parts of pages


def made(
    words: str | Template,
    scale: str,
    runs: Sequence[Run],
    found: pd.DataFrame,
    *parts: Any,
    **more: Any,
) -> Page:
    """`page.made` with what is the same on all pages of training runs. ``parts``: sections, claims."""
    said = {"thinning": thinning(runs), **more.pop("said", {})}
    more = {"labels": gravac.labels(runs), "data": DATA, **more}
    return page.made(words, scale, runs, found, *parts, said=said, **more)


def drawn(
    title: str, runs: Sequence[Run], scale: str, shown: Sequence[panels.Panel], **how: Any
) -> Callable[[], Figure]:
    """A figure of these panels, with the runs named below its title; ``how``: arguments of `plot.figure`."""
    said = facts.caption(runs, scale)
    return lambda: plot.figure(f"{gravac.PAPER.label}, {title}", said, shown, **how)


def sent_columns(known: frame.Known) -> list[Column]:
    """What is sent, times less than dense; floats beside the printed number."""
    first, *others = FEWER.items()
    floats = Column("floats", first[1], frame.times, "", known, "x")
    return [floats, *(Column(name, quantity, frame.times) for name, quantity in others)]


def choices(*keys: str) -> list[Any]:
    """The shared choices of these config keys."""
    return [choice for choice in gravac.CHOICES if choice.key in keys]


def head(one: Course) -> list[tuple[str, str]]:
    """The model of a page of `low`, which is no smaller copy of the paper's."""
    if not gravac.is_low(one.runs):
        return []
    texts = facts.distinct(map(facts.model_text, one.runs))
    full = gravac.PARAMETERS[one.model] / 1e6
    return [("model", f"{texts}, in place of {MODELS[one.model]} ({full:.3g} M)")]


def target_text(one: Course) -> str:
    """The target with the dense runs behind it, and chance."""
    if math.isnan(one.target):
        return "No dense run: no target."
    dense = list(map(one.last, one.of(DENSE)))
    sign = "less" if one.metric.sign > 0 else "plus"
    spread = "one seed" if len(dense) < 2 else f"n = {len(dense)}; {sign} one standard deviation"
    guesses = facts.distinct(f"{chance(run, one.metric):.4g}" for run in one.runs)
    return (
        f"{one.family}, {one.metric.label}: target {one.target:.2f}, from dense {frame.number(dense, 2)} "
        f"({spread}), chance {guesses}. The paper's target: {SETUP(one.model, 'target'):g} on "
        f"{DATA[one.model]}."
    )


def quality_panel(one: Course, looks: Mapping[str, Look]) -> panels.Panel:
    """Quality by iteration."""
    metric = one.metric
    drawn = panels.curves(one.runs, metric.column, looks)
    log = "y" if metric.sign < 0 else ""
    return panels.panel(
        f"{metric.label} by iteration", drawn, x="iteration", y=metric.axis, log=log
    )
