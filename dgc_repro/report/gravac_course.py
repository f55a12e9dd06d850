"""The course of a training run: the target, when it is met, when quality improves no further, what it took.

Target    of a model: our own dense runs' final quality, the mean over seeds less one standard deviation
          (a perplexity: plus); with one seed the mean. At scale paper the paper's, beside it.
Met       after the first epoch whose quality is the target or better: times are whole epochs.
Plateau   the last epoch that was better than the last one that counted by more than a share
          (``goal.plateau``) of the run's best; the first epoch counts.
Failed    quality has come less than a seventh of the way from chance to the target, or it or the training
          loss is not finite. Of a perplexity the way is in nats a word, and chance is the test perplexity
          of the training part's word frequencies; the vocabulary where that is not known.

Two speedups: to the target, and to the plateau. Three clocks: seconds as the network model has them with an
assumed compute time, the same with what was measured here in its place (models of full size alone), and this
machine's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dgc_repro.paper import gravac_training as printed
from dgc_repro.report.gravac_pool import (
    METRICS,
    Metric,
    Numbers,
    Series,
    collect,
    merged,
    metric_of,
    num_steps,
    of_model,
    quality,
    quotients,
    rows_of,
    sent,
)
from dgc_repro.report.records import Run
from dgc_repro.report.table import Measured, spread
from dgc_repro.report.verdict import PAPER_SCALE

MODELLED, WORKERS_HERE, MEASURED = "modelled", "modelled: workers as here", "measured"
CLOCK_TEXTS = {
    MODELLED: "the paper's cluster: its network, assumed compute, free compression",
    WORKERS_HERE: "the same network, with compute, compression and decompression as measured of a worker "
    "here, of models of full size alone",
    MEASURED: "wall time here, where simulated workers take turns and nothing is moved",
}
PLATEAU_SHARE = 0.01
"""Where a run names none."""
CLASSES = {"Digits": 10, "Cifar10": 10, "Cifar100": 100, "Ptb": 10_000}
"""Answers there are, by data set, where a summary does not say."""
OURS, PAPERS = "our dense", "the paper's"


@dataclass(frozen=True)
class Target:
    """A quality to meet: ``whose``, its ``value``, and the dense runs that it comes from."""

    whose: str
    value: float
    dense: Measured | None = None


@dataclass(frozen=True)
class Course:
    """The runs of one model, what they are judged by, and the targets (ours first)."""

    model: str
    runs: tuple[Run, ...]
    metric: Metric
    targets: tuple[Target, ...]

    @property
    def target(self) -> Target | None:
        """Our own, None without a dense run."""
        return next((target for target in self.targets if target.whose == OURS), None)

    def of(self, method: str) -> list[Run]:
        """The runs of one row, by seed."""
        return rows_of(self.runs, printed.row_id(self.model, method))


def course(runs: Sequence[Run], model: str, scale: str) -> Course:
    """The runs of a model; UserError if they are not alike."""
    own = of_model(runs, model)
    metric = metric_of(own) if own else METRICS[printed.METRICS[model]]
    dense = spread([float(quality(run, metric)[-1]) for run in rows_of(own, f"{model}.dense")])
    targets = []
    if dense is not None:
        targets.append(Target(OURS, dense.mean - metric.sign * (dense.sd or 0.0), dense))
    if scale == PAPER_SCALE:
        targets.append(Target(PAPERS, printed.SETUP.printed(model, "target")))
    return Course(model, tuple(own), metric, tuple(targets))


def met_at(values: Series, target: float, sign: int) -> int | None:
    """The place of the first value that is the target or better, None where there is none."""
    places = np.flatnonzero(sign * values >= sign * target)
    return int(places[0]) if places.size else None


def plateau_at(values: Series, sign: int, share: float) -> int:
    """The place of the last value that was better than the last one that counted by more than ``share``
    of the best one; the first counts."""
    goodness = sign * values
    if not np.isfinite(goodness).any():
        return 0
    step = share * abs(float(np.nanmax(np.where(np.isfinite(goodness), goodness, np.nan))))
    counted, place = -math.inf, 0
    for number, value in enumerate(goodness):
        if value > counted + step:
            counted, place = float(value), number
    return place


def _column(run: Run, name: str) -> Series:
    """By epoch; NaN where the run has no such column."""
    if name not in run.epochs.columns:
        return np.full(len(run.epochs), math.nan)
    return np.asarray(run.epochs[name], dtype=np.float64)


def _workers_here(run: Run) -> Series:
    """Steps of an epoch x ((compute + compress) / workers + decompress), summed, + communication.

    Spans of simulated workers: compute and compress are sums over the workers. The span decompress is taken
    as one worker's: it holds the mean of what was gathered, which is made once for all of them, and what
    each worker does with it (new residuals, low-rank products), which is small beside it.

    NaN of a slim model (``network.message_scale`` is not 1): a full one does not take so many times longer.
    Against a bench of the full ResNet101 on one machine, milliseconds times the messages' scale were 3 times
    too long in compute, 12 in compression (a slim model's is Python, by the tensor), 8 in decompression."""
    if float(run.setting("network.message_scale", 1.0)) != 1.0:
        return np.full(len(run.epochs), math.nan)
    is_simulated = run.setting("launch.kind") == "simulated"
    workers = int(run.setting("launch.workers")) if is_simulated else 1
    compute, compress, decompress = (
        _column(run, f"time/{span}_ms") for span in ("compute", "compress", "decompress")
    )
    steps = np.diff(_column(run, "step"), prepend=0.0)
    here = steps * ((compute + compress) / workers + decompress) / 1e3
    return np.cumsum(here) + _column(run, "time/modelled_communicate_seconds")


CLOCKS: dict[str, Callable[[Run], Series]] = {
    MODELLED: lambda run: _column(run, "time/modelled_seconds"),
    WORKERS_HERE: _workers_here,
    MEASURED: lambda run: _column(run, "time/train_seconds"),
}
"""Seconds since a run's start, after each epoch; NaN where it has no such clock."""


def shown_clocks(courses: Iterable[Course]) -> tuple[str, ...]:
    """The clocks of a table: that of workers as here only where a run has it."""
    runs = [run for one in courses for run in one.runs]
    has_workers = any(np.isfinite(CLOCKS[WORKERS_HERE](run)).any() for run in runs)
    return tuple(clock for clock in CLOCKS if clock != WORKERS_HERE or has_workers)


def clocks_text(clocks: Sequence[str]) -> str:
    """What each of them is, for the text of a table."""
    *first, last = (f"{clock} ({CLOCK_TEXTS[clock]})" for clock in clocks)
    return f"{', '.join(first)} and {last}. What is measured is rough where other work ran beside a run."


def n_label(counts: Sequence[int]) -> str:
    """How many seeds rows have, for a figure's title: ``n = 3``, or ``n = 1 to 3``."""
    ends = dict.fromkeys((min(counts, default=0), max(counts, default=0)))
    return "n = " + " to ".join(map(str, ends))


def seconds_at(run: Run, place: int, clock: str) -> float:
    """Seconds from the start to the end of an epoch; NaN where the run has no such clock."""
    return float(CLOCKS[clock](run)[place])


@dataclass(frozen=True)
class Chance:
    """The quality of guessing, and ``how`` one guesses."""

    value: float
    how: str


def chance(run: Run, metric: Metric) -> Chance | None:
    """One answer, or five, of all; words by their frequencies, or all alike. None: unknown."""
    if metric.sign < 0 and (known := _word_frequencies(run)) is not None:
        return Chance(known, "perplexity of the training part's word frequencies")
    name = str(run.setting("dataset._target_", "")).rpartition(".")[2]
    classes = run.summary.get("classes") or CLASSES.get(name)
    if classes is None:
        return None
    if metric.sign < 0:
        return Chance(float(classes), "the vocabulary: word frequencies of this text are not known")
    answers = 5 if metric == METRICS["top5"] else 1
    return Chance(
        min(100.0, 100.0 * answers / float(classes)), f"{answers} of {int(classes)} classes"
    )


def _word_frequencies(run: Run) -> float | None:
    """Of the text that a run was trained on, where it is known."""
    sizes = (run.setting("dataset.train_size"), run.setting("dataset.test_size"))
    return printed.WORD_FREQUENCIES.get((str(run.environment.get("data")), *sizes))


def has_failed(run: Run, metric: Metric, target: Target | None) -> bool:
    """The rule at the top of this file; without a target it is the way to a perfect answer."""
    final, loss = float(quality(run, metric)[-1]), float(run.epochs["train/loss"].iloc[-1])
    if not (math.isfinite(final) and math.isfinite(loss)):
        return True
    guess = chance(run, metric)
    if guess is None:
        return False
    perfect = 100.0 if metric.sign > 0 else 1.0
    start, end, came = (
        _level(value, metric) for value in (guess.value, target.value if target else perfect, final)
    )
    return came <= start + printed.failed_share() * max(0.0, end - start)


def failed_text(one: Course) -> str:
    """The rule with the chance that was used, for the text of a table."""
    guesses = {g.how: g.value for run in one.runs if (g := chance(run, one.metric)) is not None}
    said = "; ".join(
        f"{value:.4g} {one.metric.unit}".rstrip() + f", {how}" for how, value in guesses.items()
    )
    text = (
        f"Failed: less than {printed.failed_share():.3f} of the way from chance ({said or 'not known'}) to "
        "the target, or not finite; such a row has no speedup."
    )
    worse = one.target is not None and any(
        one.metric.sign * (one.target.value - value) <= 0 for value in guesses.values()
    )
    return text + (" The target itself is no better than chance." if worse else "")


def _level(value: float, metric: Metric) -> float:
    """More is better, and a way is a difference: percent, or nats a word with a minus."""
    return value if metric.sign > 0 else -math.log(value)


def seconds_to_plateau(run: Run, course: Course, clock: str) -> float:
    """Infinite where the run has failed; NaN without such a clock."""
    if has_failed(run, course.metric, course.target):
        return math.inf
    share = run.setting("goal.plateau")
    place = plateau_at(
        quality(run, course.metric),
        course.metric.sign,
        PLATEAU_SHARE if share is None else float(share),
    )
    return seconds_at(run, place, clock)


def seconds_to_target(run: Run, course: Course, target: Target, clock: str) -> float:
    """Infinite where it is not met; NaN without such a clock."""
    place = met_at(quality(run, course.metric), target.value, course.metric.sign)
    return math.inf if place is None else seconds_at(run, place, clock)


def clocked(quantity: str, clock: str) -> str:
    """The name of a number of seconds: the modelled one is what claims name."""
    return quantity if clock == MODELLED else f"{quantity}, {clock}"


def numbers(course: Course) -> Numbers:
    """What claims and tables are made of, by quantity, row and seed."""
    metric, runs = course.metric, course.runs
    final = printed.QUALITY if metric.sign > 0 else printed.PERPLEXITY
    found = merged(
        sent(runs),
        collect(runs, {
            final: lambda run: float(quality(run, metric)[-1]),
            printed.FAILED: lambda run: float(has_failed(run, metric, course.target)),
            printed.TEST_LOSS: lambda run: float(run.epochs["test/loss"].iloc[-1]),
            printed.LOG10_FLOATS: lambda run: math.log10(
                float(run.epochs["comm/floats"].iloc[-1]) / num_steps(run)
            ),
        }),
        *(_seconds(course, clock) for clock in CLOCKS),
    )  # fmt: skip
    if course.target is not None:
        seeds = {run.seed for run in runs}
        goal = printed.target_row(course.model)
        found[final][goal] = dict.fromkeys(seeds, course.target.value)
    return found


def _seconds(course: Course, clock: str) -> Numbers:
    """Seconds of a clock: of the whole run, and to the plateau."""
    return collect(course.runs, {
        clocked(printed.RUN_SECONDS, clock): lambda run: seconds_at(run, -1, clock),
        clocked(printed.PLATEAU_SECONDS, clock): lambda run: seconds_to_plateau(run, course, clock),
    })  # fmt: skip


def speedups_to_plateau(
    found: Numbers, model: str, method: str, baseline: str, clock: str
) -> list[float]:
    """Of a row over another, by seed; none where one of the two has failed."""
    rows = printed.row_id(model, baseline), printed.row_id(model, method)
    pairs = quotients(found, clocked(printed.PLATEAU_SECONDS, clock), *rows)
    return [speedup for speedup in pairs if math.isfinite(speedup) and speedup > 0]


def differences(course: Course, method: str, target: Target) -> list[float]:
    """By how much each run of a row ends better than a target, by seed."""
    return [
        course.metric.sign * (float(quality(run, course.metric)[-1]) - target.value)
        for run in course.of(method)
    ]


def wire_reduction(run: Run, dense: Run, workers: int) -> float:
    """Wire bytes of dense over this run's at another number of workers, from payload and wire bytes as
    counted: what is gathered is handed on N - 1 times, what is averaged 2 (N - 1) / N times. NaN where
    the run's own workers are two, for which both are the same."""
    own = int(run.setting("launch.workers"))
    if own <= 2:
        return math.nan
    averaged, gathered = 2 * (own - 1) / own, own - 1
    payload = float(run.epochs["comm/payload_bytes"].iloc[-1]) / num_steps(run)
    wire = float(run.epochs["comm/wire_bytes"].iloc[-1]) / num_steps(run)
    share = min(1.0, max(0.0, (wire / payload - averaged) / (gathered - averaged)))
    there = 2 * (workers - 1) / workers
    whole = float(dense.epochs["comm/payload_bytes"].iloc[-1]) / num_steps(dense)
    return whole * there / (payload * (share * (workers - 1) + (1 - share) * there))
