"""What GraVAC's pages of training runs share: the runs of a model, quantities, words of claims, tables.

Target    of a model: the mean final quality of our dense runs less one standard deviation (a perplexity:
          plus one); with one seed the mean. At scale paper and for `low` also the paper's. For time to
          target only: claims on quality compare a row with dense, paired by seed.
Reached   after the first epoch whose quality is the target or better: times are whole epochs.
Plateau   the last epoch that beats the last counted one by more than a share (``stopping.plateau``)
          of the run's best; the first epoch counts.
Failed    quality came less than a seventh of the way from chance to the target, or it or the training loss is
          not finite. For a perplexity the way is in nats a word, and chance is the test perplexity of the
          training part's word frequencies, or the vocabulary where these are not known.

Seconds are infinite where a run never reaches the target, or has failed. Long runs record the decisions of
evenly spaced steps: shares and means are of the recorded steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dgc_repro.paper import facts, frame, gravac, page, panels, verdict
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import SENT, Quantity, join, lines, longer
from dgc_repro.paper.gravac import (
    DATA,
    DENSE,
    LABELS,
    LSTM,
    MODELS,
    RESNET101,
    SETUP,
    WORKERS,
    norm_of,
    row_id,
)
from dgc_repro.paper.page import Page, Section
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.verdict import Verdict

Series = NDArray[np.float64]
ALIKE = (*facts.ALIKE, "train.step_time", "stopping.metric")
QUALITY, PERPLEXITY, TEST_LOSS, FAILED = "final accuracy", "final perplexity", "test loss", "failed"
ABOVE_FAILING = "quality above the failing level"
FLOATS = "floats sent"
RUN_SECONDS, PLATEAU_SECONDS = "seconds of the run", "seconds to the plateau"
TARGET_SECONDS, REACHED = "seconds to the target", "target reached"
PAPERS = ", the paper's target"
"""Appended to the last two at scale paper and for `low`."""
LESS_DENSE = "final quality less dense's"
FEWER = {name: f"{name}, times less than dense" for name in SENT}
WIRE_MANY = f"wire of {WORKERS} workers, times less than dense"
MODELLED, WORKERS_HERE, MEASURED = "modelled", "modelled, workers as here", "measured"
"""Settings of quantities in seconds."""
CLOCK_TEXTS = {
    MODELLED: "the paper's network, assumed compute, free compression",
    WORKERS_HERE: "the same network; compute, compression and decompression of one worker as measured here, "
    "for models of full size",
    MEASURED: "wall time here, where simulated workers take turns and no data moves",
}
ASSUMED = "compute times and free compression"
"""Nobody has measured these inputs of modelled seconds: verdicts on seconds hold given them."""
HYPER = {
    "batch": "train.batch_size", "momentum": "optimizer.momentum",
    "weight decay": "optimizer.weight_decay", "lr": "optimizer.lr",
}  # fmt: skip
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


def compared(runs: Sequence[Run]) -> list[Run]:
    """Without dense runs of seeds that no other row has: these count for the target alone."""
    seeds = {run.seed for run in runs if run.method != DENSE}
    return [run for run in runs if run.seed in seeds or not seeds]


def num_steps(run: Run) -> int:
    """Steps of the whole run."""
    return int(run.epochs["step"].iloc[-1])


# -- quality and seconds


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


def _column(run: Run, name: str) -> Series:
    missing = pd.Series(math.nan, run.epochs.index)
    return np.asarray(run.epochs.get(name, missing), dtype=np.float64)


def _workers_here(run: Run) -> Series:
    """Steps of an epoch x ((compute + compress) / workers + decompress), summed, + communication.

    Compute and compress of simulated workers are sums over the workers; what is gathered is decompressed
    once for all. NaN for a reduced model (``network.message_scale`` is not 1), whose milliseconds times the
    scale of its messages were 3 times (compute) to 12 times (compression) those of the full model."""
    if float(run.setting("network.message_scale", 1.0)) != 1.0:
        return np.full(len(run.epochs), math.nan)
    simulated = run.setting("launch.kind") == "simulated"
    workers = int(run.setting("launch.workers")) if simulated else 1
    compute, compress, decompress = (
        _column(run, f"time/{span}_ms") for span in ("compute", "compress", "decompress")
    )
    steps = np.diff(_column(run, "step"), prepend=0.0)
    here = np.cumsum(steps * ((compute + compress) / workers + decompress) / 1e3)
    return np.asarray(here + _column(run, "time/modelled_communicate_seconds"), dtype=np.float64)


CLOCKS: dict[str, Callable[[Run], Series]] = {
    MODELLED: lambda run: _column(run, "time/modelled_seconds"),
    WORKERS_HERE: _workers_here,
    MEASURED: lambda run: _column(run, "time/train_seconds"),
}
"""Seconds since a run's start after each epoch, NaN without such a clock."""


def shown_clocks(found: pd.DataFrame) -> list[str]:
    """The clocks that a frame's runs have."""
    used = set(found.loc[found["quantity"] == RUN_SECONDS, "setting"])
    return [clock for clock in CLOCKS if clock in used]


def clocks_text(clocks: Sequence[str]) -> str:
    """What each clock is, for the text above a table."""
    said = "; ".join(f"{clock}: {CLOCK_TEXTS[clock]}" for clock in clocks)
    return f"Seconds, {said}. Measured seconds are rough where the machine was busy."


def chance(run: Run, metric: Metric) -> tuple[float, str] | None:
    """The quality of guessing, and how one guesses; None where it is not known."""
    if metric.sign < 0:
        sizes = (run.setting("dataset.train_size"), run.setting("dataset.test_size"))
        known = WORD_FREQUENCIES.get((str(run.environment.get("data")), *sizes))
        if known is not None:
            return known, "perplexity of the training part's word frequencies"
    if not (classes := run.summary.get("classes")):
        return None
    if metric.sign < 0:
        return float(classes), "the vocabulary, since word frequencies are not known"
    answers = 5 if metric == METRICS["top5"] else 1
    return min(100.0, 100.0 * answers / classes), f"{answers} of {int(classes)} classes"


def has_failed(run: Run, one: Course) -> bool:
    """The rule at the top of this file; without a target the way leads to a perfect answer."""
    return not _is_finite(run, one) or above_failing(run, one) <= 0


def _is_finite(run: Run, one: Course) -> bool:
    return math.isfinite(one.last(run)) and math.isfinite(run.last("train/loss"))


def above_failing(run: Run, one: Course) -> float:
    """How far a run came beyond the level at which it has failed: points, or nats a word. A run that is not
    finite counts as guessing. NaN where chance is not known."""
    guess = chance(run, one.metric)
    if guess is None:
        return math.nan
    perfect = 100.0 if one.metric.sign > 0 else 1.0
    goal = perfect if math.isnan(one.target) else one.target
    levels = (guess[0], goal, one.last(run) if _is_finite(run, one) else guess[0])
    start, end, came = levels if one.metric.sign > 0 else (-math.log(v) for v in levels)
    return came - start - gravac.failed_share() * max(0.0, end - start)


def failed_text(one: Course) -> str:
    """The rule with the chance that was used, for the text above a table."""
    found = [guess for run in one.runs if (guess := chance(run, one.metric)) is not None]
    unit = f" {one.metric.unit}".rstrip()
    said = facts.distinct(f"{value:.4g}{unit}, {how}" for value, how in found)
    worse = any(one.metric.sign * (one.target - value) <= 0 for value, _ in found)
    return (
        f"Failed: less than {gravac.failed_share():.3f} of the way from chance ({said}) to the target, or "
        "not finite; a failed row has no speedup."
        + (" The target itself is no better than chance." if worse else "")
    )


def target_text(one: Course) -> str:
    """The target with the dense runs behind it."""
    if math.isnan(one.target):
        return "No dense run: no target."
    dense = list(map(one.last, one.of(DENSE)))
    sign = "less" if one.metric.sign > 0 else "plus"
    spread = "one seed" if len(dense) < 2 else f"n = {len(dense)}; {sign} one standard deviation"
    return (
        f"Target for times: {one.target:.2f}, from dense {frame.number(dense, 2)} ({spread}). The paper's "
        f"target: {SETUP(one.model, 'target'):g} on {DATA[one.model]}."
    )


def seconds_to_plateau(run: Run, one: Course, clock: str) -> float:
    """Infinite where the run has failed, NaN without such a clock."""
    share = run.setting("stopping.plateau") or 0.0
    place = plateau_at(one.quality(run), one.metric.sign, share)
    return _seconds_at(run, None if has_failed(run, one) else place, clock)


def seconds_to_target(run: Run, one: Course, target: float, clock: str) -> float:
    """Infinite where it is not reached, NaN without a target or such a clock."""
    if math.isnan(target):
        return math.nan
    return _seconds_at(run, met_at(one.quality(run), target, one.metric.sign), clock)


def _seconds_at(run: Run, place: int | None, clock: str) -> float:
    seconds = CLOCKS[clock](run)
    if np.isnan(seconds).all():
        return math.nan
    return math.inf if place is None else float(seconds[place])


def measure(one: Course) -> pd.DataFrame:
    """Every quantity of a training run of a model; those relative to dense are paired by seed."""
    metric, known = one.metric, {"": one.target, PAPERS: one.papers_target}
    targets = {whose: target for whose, target in known.items() if not math.isnan(target)}

    def is_met(run: Run, target: float) -> float:
        return float(met_at(one.quality(run), target, metric.sign) is not None)

    def timed(clock: str) -> pd.DataFrame:
        seconds: dict[str, Callable[[Run], float]] = {
            RUN_SECONDS: lambda run: float(CLOCKS[clock](run)[-1]),
            PLATEAU_SECONDS: partial(seconds_to_plateau, one=one, clock=clock),
            **{
                TARGET_SECONDS + whose: partial(
                    seconds_to_target, one=one, target=target, clock=clock
                )
                for whose, target in targets.items()
            },
        }
        kind = "measured" if clock == MEASURED else "modelled"
        quantities = {name: Quantity("s", of, kind) for name, of in seconds.items()}
        return frame.measure(one.runs, quantities).assign(setting=clock)

    beyond = "points" if metric.sign > 0 else "nats"
    plain = {
        one.final: Quantity(metric.unit, one.last),
        FAILED: Quantity("runs", lambda run: float(has_failed(run, one))),
        ABOVE_FAILING: Quantity(beyond, partial(above_failing, one=one)),
        TEST_LOSS: Quantity("nats", lambda run: run.last("test/loss")),
        **SENT,
        **{REACHED + w: Quantity("runs", partial(is_met, target=t)) for w, t in targets.items()},
    }
    many = {WIRE_MANY: Quantity("x", partial(_fewer_of_many, one=one))}
    found = join(frame.measure(one.runs, plain), *map(timed, CLOCKS), frame.measure(one.runs, many))
    dense = row_id(one.model, DENSE)
    less = (frame.relative(found, n, dense, inverse=True, name=new) for n, new in FEWER.items())
    return join(found, *less)


def less_dense(one: Course, unit: str) -> Quantity:
    """Final quality less that of dense of the same seed."""
    dense = {run.seed: one.last(run) for run in one.of(DENSE)}
    return Quantity(unit, lambda run: one.last(run) - dense.get(run.seed, math.nan))


def _fewer_of_many(run: Run, one: Course) -> float:
    """Wire bytes of dense over the run's own among the paper's workers, from payload and wire as counted: a
    gathered payload is passed on N - 1 times, an averaged one 2 (N - 1) / N times. NaN where the run's own
    workers are two, for which both are the same."""

    def of_a_step(other: Run, counted: str) -> float:
        return other.last(f"comm/{counted}_bytes") / num_steps(other)

    dense = [of_a_step(other, "payload") for other in one.of(DENSE) if other.seed == run.seed]
    own = int(run.setting("launch.workers"))
    if own <= 2 or not dense:
        return math.nan
    payload, averaged, gathered = of_a_step(run, "payload"), 2 * (own - 1) / own, own - 1
    share = (of_a_step(run, "wire") / payload - averaged) / (gathered - averaged)
    share = min(1.0, max(0.0, share))
    there = 2 * (WORKERS - 1) / WORKERS
    return dense[0] * there / (payload * (share * (WORKERS - 1) + (1 - share) * there))


# -- recorded decisions

STEPS = 18_000
"""Steps of a run of the paper. Ours: its learning rate decays at 9,000 and 14,000, and figure 10 speaks of
16,000 and later. A printed step counts as its share of these, so that a shorter run has the same moments."""
BRANCHES = ("candidate", "theta_min", "dense")
ENERGY, NORM = "energy", "norm"
"""The two gains: as printed (squared norms), and as in the authors' code (sums of norms over the gradient
without its residual)."""
GAIN = {ENERGY: "energy gain", NORM: "norm gain"}
SHARE, BRANCH, THROUGHPUT = "share of steps", "share of branch", "compression throughput"
LEAD, RUNNER_UP, RANK = "lead over any other factor", "factor with the second most steps", "rank"
LARGEST, THETA_MIN, CANDIDATE = "largest factor", "largest theta_min", "largest candidate"
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


def branch(run: Run, name: str) -> float:
    """The share of the recorded steps that took a branch, NaN where none is recorded."""
    if "branch" not in run.decisions.columns or run.decisions.empty:
        return math.nan
    return float((run.decisions["branch"] == name).mean())


def factor_table(run: Run, more: Sequence[float] = ()) -> pd.DataFrame:
    """A line for each factor of what was sent, ascending, and for ``more``; none where no step is recorded.
    Factor 1 is dense.

    Columns: `SHARE` of the recorded steps, `LEAD` of this share over any other factor's, mean `AT_GAIN`, mean
    `THROUGHPUT` (samples a second of all workers whose step is timed), and its `RANK` (1: the largest)."""
    recorded = run.decisions.reindex(columns=["factor", "gain", "throughput"])
    grouped = recorded.replace([np.inf, -np.inf], np.nan).groupby("factor")
    counts = grouped.size()
    factors = counts.index.union(sorted(set(more))) if len(counts) else counts.index
    table = grouped.mean().reindex(factors).rename_axis("factor")
    table = table.rename(columns={"gain": AT_GAIN, "throughput": THROUGHPUT})
    table[SHARE] = (counts / counts.sum()).reindex(factors, fill_value=0.0)
    table[LEAD] = [s - table[SHARE].drop(f).max() for f, s in table[SHARE].items()]
    table[LEAD] = table[LEAD].fillna(1.0)  # the only factor
    if modelled := modelled_workers(run):
        table[THROUGHPUT] *= modelled / int(run.setting("launch.workers"))
    table[RANK] = table[THROUGHPUT].rank(ascending=False, method="min")
    return table


def ranked(run: Run, place: int) -> float:
    """The factor with the most steps (0), the second most (1), ..."""
    order = factor_table(run)[SHARE].sort_values(ascending=False, kind="stable").index
    return float(order[place]) if len(order) > place else math.nan


def modelled_workers(run: Run) -> int | None:
    """The workers for which the seconds of a step are modelled, None where they are the run's own."""
    if run.setting("train.step_time") != "modelled":
        return None
    workers = run.setting("network.as_workers")
    return None if workers is None else int(workers)


def samples_unit(runs: Sequence[Run]) -> str:
    """The unit of throughputs: whose samples count."""
    modelled = facts.distinct(modelled_workers(run) for run in runs)
    if modelled == "-":
        return (
            f"samples/s of {facts.distinct(run.setting('launch.workers') for run in runs)} workers"
        )
    return f"samples/s of {modelled} modelled workers"


def by_setting(
    runs: Sequence[Run], quantity: str, unit: str, settings: Mapping[str, Callable[[Run], float]]
) -> pd.DataFrame:
    """One quantity of each run at several settings, as lines of a frame."""
    found = {s: frame.measure(runs, {quantity: Quantity(unit, of)}) for s, of in settings.items()}
    return join(*(table.assign(setting=setting) for setting, table in found.items()))


def at_factor(factor: float) -> str:
    """The setting of a number at one factor."""
    return f"at {factor:g}x"


def factors_of(runs: Sequence[Run], always: Sequence[float] = ()) -> list[float]:
    """Every factor that was sent, ascending, and those of ``always``."""
    return sorted({*always, *(factor for run in runs for factor in factor_table(run).index)})


def by_factor(
    runs: Sequence[Run],
    *,
    lead: Sequence[float] = (),
    rank: Sequence[float] = (),
    always: Sequence[float] = (),
) -> pd.DataFrame:
    """The frame of `factor_table`: shares, throughputs and gains at every factor that was sent and at those
    of ``always``; leads and ranks at the given factors; and shares of the branches."""
    if not runs:
        return lines([])
    sent = factors_of(runs, always)
    tables = (
        factor_table(run, [*sent, *lead, *rank]).assign(row=run.row, seed=run.seed) for run in runs
    )
    wide = pd.concat(tables).reset_index()
    columns = {
        SHARE: ("", "", sent),
        THROUGHPUT: ("samples/s", "modelled", sent),
        AT_GAIN: ("", "", sent),
        LEAD: ("", "", lead),
        RANK: ("", "modelled", rank),
    }
    wide = wide.assign(setting=wide["factor"].map(at_factor)).sort_values("factor", kind="stable")
    found = [
        longer(wide[wide["factor"].isin(factors)], {name: (name, unit, clock)})
        for name, (unit, clock, factors) in columns.items()
    ]
    branches = {name: partial(branch, name=name) for name in BRANCHES}
    return join(*found, by_setting(runs, BRANCH, "", branches))


def thinning(runs: Sequence[Run]) -> str:
    """Which steps are recorded, in words."""
    gaps = {
        int(np.median(np.diff(steps))) for run in runs if (steps := column(run, "step")).size > 1
    }
    said = ["every step" if gap == 1 else f"one step in {gap}" for gap in sorted(gaps)]
    return " or ".join(said) or "no step"


def recorded(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The line of a page's head that says which steps are recorded."""
    return [("decisions recorded", f"of {thinning(runs)}")]


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


def sooner(
    quantity: str, model: str, quick: str, than: str, printed: float = math.nan, clock: str = MODELLED
) -> Check:  # fmt: skip
    """``quick`` takes fewer modelled seconds than the other method."""
    rows = row_id(model, than), row_id(model, quick)
    return Check(quantity, *rows, above=1.0, setting=clock, ratio=True, printed=printed)


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


def of_norm(
    claim: Claim,
    rows: Mapping[str, str] = NORM_ROWS,
    quantities: Mapping[str, str] | None = None,
    **changes: Any,
) -> Claim:
    """The same claim with the norm gain: of other ``rows``, or of other ``quantities`` of the same rows.
    ``changes``: other fields."""

    def swapped(checks: Sequence[Check]) -> tuple[Check, ...]:
        return tuple(
            replace(
                check,
                quantity=(quantities or {}).get(check.quantity, check.quantity),
                greater=rows.get(check.greater, check.greater),
                lesser=rows.get(check.lesser or "", check.lesser),
            )
            for check in checks
        )

    changes = {"cannot_follow": "", "text": f"{claim.text[:-1]} (norm gain).", **changes}
    checks, premises = swapped(claim.checks), swapped(claim.premises)
    return replace(claim, id=f"{claim.id}.norm", checks=checks, premises=premises, **changes)


def judge_sent_apart(
    claims: Sequence[Claim], found: pd.DataFrame, *, same: Mapping[str, str], **how: Any
) -> Sequence[Verdict]:
    """Verdicts in order. A claim on what is sent is judged also where two rows are the same training: where
    GraVAC has compressed nothing, that is its answer."""
    on_volume = {c.id: all(check.quantity == FLOATS for check in c.checks) for c in claims}
    verdicts: dict[str, Verdict] = {}
    for is_volume, twins in ((False, same), (True, {})):
        own = [claim for claim in claims if on_volume[claim.id] == is_volume]
        verdicts |= {v.claim.id: v for v in verdict.judge(own, found, same=twins, **how)}
    return tuple(verdicts[claim.id] for claim in claims)


def which_gain(verdicts: Sequence[Verdict]) -> Section:
    """The table that says which gain shows which printed finding: means over seeds, without a test. A
    finding is a claim that is judged with both gains (`of_norm`)."""
    found = {verdict.claim.id: verdict for verdict in verdicts}
    table = pd.DataFrame(
        [
            (verdict.claim.text, shown(verdict), shown(found[f"{name}.norm"]))
            for name, verdict in found.items()
            if f"{name}.norm" in found
        ],
        columns=["finding", "energy gain", "norm gain"],
    )
    counts = [
        f"{(own == 'yes').sum()} of {own.isin(('yes', 'no')).sum()}"
        for own in (table["energy gain"], table["norm gain"])
    ]
    text = (
        f"Of the printed findings that were tested, the energy gain (as printed) shows {counts[0]}, the norm "
        f"gain (the authors' code: sums of L2 norms over the gradient without its residual) {counts[1]}. "
        "Means over seeds, without a test; the verdicts are below."
    )
    return Section("Which gain explains the figure", table, text)


def shown(verdict: Verdict) -> str:
    """Whether the means over seeds lie where the claim says; '-' where it is not tested or not run."""
    if verdict.word == "cannot follow":
        return verdict.word
    complete = len(verdict.effects) == len(verdict.claim.checks)
    if not complete or verdict.word == "not tested":
        return "-"
    return "yes" if all(effect.points_inside for effect in verdict.effects) else "no"


# -- parts of pages


def made(
    file: str, scale: str, runs: Sequence[Run], found: pd.DataFrame, *parts: Any, **more: Any
) -> Page:
    """`page.made` with what is the same on all pages of training runs. ``parts``: sections, claims."""
    said = {
        "thinning": thinning(runs),
        "samples": samples_unit(runs),
        "clocks": clocks_text(shown_clocks(found)),
        **more.pop("said", {}),
    }
    more = {"labels": gravac.labels(runs), "data": DATA, **more}
    return page.made(file, scale, runs, found, *parts, said=said, **more)


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


def quality_panel(one: Course, looks: Mapping[str, Look]) -> panels.Panel:
    """Quality by iteration."""
    metric = one.metric
    drawn = panels.curves(one.runs, metric.column, looks)
    log = "y" if metric.sign < 0 else ""
    return panels.panel(
        f"{metric.label} by iteration", drawn, x="iteration", y=metric.axis, log=log
    )


def setup_section(found: Sequence[Course]) -> Section:
    """The paper's set-up and ours, two lines a model; and rows that are one training."""
    lines = [line for one in found for line in (_papers_setup(one.model), _our_setup(one))]
    twins = frame.twins(runs_of(found))
    labels = gravac.labels(runs_of(found))
    same = [f"{labels[row]} is {labels[first]}" for row, first in twins.items()]
    title = "Set-up: the paper's and ours"
    text = gravac.WORDS.texts[title].format(same="; ".join(same) or "none")
    return Section(title, pd.DataFrame(lines), text)


def _papers_setup(model: str) -> dict[str, str]:
    return {
        "model": f"{MODELS[model]} (paper)",
        "workers": str(WORKERS),
        **{name: f"{SETUP(model, name):g}" for name in HYPER},
        "steps": "-",
        "schedule": f"a tenth at {gravac.MILESTONES}" if model == RESNET101 else "constant",
        "parameters": f"{gravac.PARAMETERS[model]:,}",
        "data": DATA[model],
    }


def _our_setup(one: Course) -> dict[str, str]:
    def used(key: str) -> str:
        found = (run.setting(key) for run in one.runs)
        return facts.distinct(facts.short(value) for value in found if value is not None)

    counts = (f"{n:,}" for run in one.runs if (n := run.summary.get("parameters")))
    keys = {"workers": "launch.workers", **HYPER, "schedule": "schedule"}
    return {
        "model": f"{one.family} (ours)",
        **{name: used(key) for name, key in keys.items()},
        "steps": facts.distinct(f"{num_steps(run):,}" for run in one.runs),
        "parameters": facts.distinct(counts),
        "data": facts.data_text(one.runs),
    }
