"""GraVAC's pages of training runs: quantities, a vocabulary of claims, and the page of an artifact.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dgc_repro.paper import facts, frame, gravac, panels
from dgc_repro.paper.artifact import Artifact, require_names
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import SENT, Column, Quantity, Relative
from dgc_repro.paper.gravac import DENSE, LSTM, RESNET101, VGG16, row_id
from dgc_repro.paper.page import Page, Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, require_alike

Series = NDArray[np.float64]
WORDS = Template.read(__file__)
CHOICES, (PERPLEXITY_NOTE,) = WORDS.choices, WORDS.notes
"""Of all pages of training runs. (a) to (j) are the letters of the project's notes."""
POLICY_CHOICES = [choice for choice in CHOICES if choice.key.startswith("policy.")]
QUALITY, PERPLEXITY = "final accuracy", "final perplexity"
FINAL = {RESNET101: QUALITY, VGG16: QUALITY, LSTM: PERPLEXITY}
FINAL_COLUMN = {
    QUALITY: Column("accuracy %", QUALITY, 2),
    PERPLEXITY: Column("perplexity", PERPLEXITY, 1),
}
ABOVE_FAILING, FLOATS = "quality above the failing level", "floats sent"
PLATEAU_SECONDS, TARGET_SECONDS = "seconds to the plateau", "seconds to the target"
FEWER = {name: f"{name}, times less than dense" for name in SENT}
PRINTED_FLOATS: frame.Known = {
    (row_id(model, method), FEWER[FLOATS]): gravac.REDUCTIONS(model, printed)
    for model in gravac.MODELS
    for printed in gravac.REDUCTIONS.columns
    for method in (printed, gravac.norm_of(printed))
}
SENT_COLUMNS = (
    Column("floats", FEWER[FLOATS], frame.times, printed_unit="x"),
    *(Column(name, FEWER[name], frame.times) for name in ("payload", "wire")),
)
ASSUMED = "compute times, latencies and free compression"
"""Nobody has measured these inputs of modelled seconds: verdicts on seconds hold given them."""
REACHES_TARGET = (facts.PAPER_SCALE, "low")
"""Scales whose dense runs are meant to reach the paper's own target."""
FAILED_BELOW, CHANCE = 20.0, 10.0
"""Per cent: what "failed" means in Table II, and chance among ten classes."""
FAILED_SHARE = (FAILED_BELOW - CHANCE) / (gravac.TARGETS[RESNET101] - CHANCE)
"""Of the way from chance to the target, by these printed numbers: a run that ends below has failed."""
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
    """The quality of a run: ``column`` of its epochs; ``sign``: -1 where less is better; ``steps``: the unit
    of a distance from the failing level."""

    column: str
    label: str
    unit: str = "%"
    sign: int = 1
    steps: str = "points"

    @property
    def axis(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


METRICS = {
    "accuracy": Metric("test/accuracy_percent", "test accuracy"),
    "top5": Metric("test/top5_percent", "top-5 test accuracy"),
    "perplexity": Metric("test/perplexity", "test perplexity", "", -1, "nats"),
}
"""By ``stopping.metric``."""


@dataclass(frozen=True)
class Course:
    """The finished runs of one model at one scale, one or more, and how they are judged."""

    model: str
    runs: tuple[Run, ...]
    scale: str

    @cached_property
    def metric(self) -> Metric:
        """The quality that the model is judged by."""
        usual = "perplexity" if self.model == LSTM else "accuracy"
        return METRICS[str(self.runs[0].setting("stopping.metric", usual))]

    @cached_property
    def target(self) -> float:
        """The target of our dense runs, NaN without one."""
        dense = [self.last(run) for run in self.of(DENSE)]
        if not dense:
            return math.nan
        spread = float(np.std(dense, ddof=1)) if len(dense) > 1 else 0.0
        return float(np.mean(dense)) - self.metric.sign * spread

    @property
    def name(self) -> str:
        """The name of our model in tables and figures."""
        return gravac.name_of(self.runs[0])

    def of(self, *methods: str) -> list[Run]:
        """The runs of these rows, by row and seed."""
        return [run for run in self.runs if run.method in methods]

    def quality(self, run: Run) -> Series:
        """The metric after each epoch."""
        return np.asarray(run.epochs[self.metric.column], dtype=np.float64)

    def last(self, run: Run) -> float:
        """The metric after the last epoch."""
        return float(self.quality(run)[-1])

    def curves(self, looks: Mapping[str, Look]) -> panels.Panel:
        """A panel of quality by iteration."""
        metric, log = self.metric, "y" if self.metric.sign < 0 else ""
        drawn = panels.curves(self.runs, metric.column, looks)
        return panels.panel(metric.label, drawn, x="iteration", y=metric.axis, log=log)


def courses(runs: Sequence[Run], scale: str) -> list[Course]:
    """The runs of each model that has any. Raises UserError where those of one model are not alike."""
    found = []
    for model in gravac.MODELS:
        own = sorted(
            (run for run in runs if run.model == model), key=lambda run: (run.row, run.seed)
        )
        require_alike(own, (*facts.ALIKE, "train.step_time", "stopping.metric"))
        found += [Course(model, tuple(own), scale)] if own else []
    return found


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
    finite counts as guessing. NaN where chance or the target is not known."""
    guess, last = chance(run, one.metric), one.last(run)
    is_finite = math.isfinite(last) and math.isfinite(run.last("train/loss"))
    levels = (guess, one.target, last if is_finite else guess)
    start, end, came = levels if one.metric.sign > 0 else (-math.log(level) for level in levels)
    way = end - start
    return came - start - FAILED_SHARE * (0.0 if way < 0 else way)


def seconds(at: Callable[[Run], int | None]) -> Quantity:
    """Modelled seconds from the start of a run to the end of the epoch at a place; infinite without one."""

    def read(run: Run) -> float:
        place, times = at(run), run.epochs.get("time/modelled_seconds")
        if times is None:
            return math.nan
        return math.inf if place is None else float(times.iloc[place])

    return Quantity("s", read, "modelled")


def measure(one: Course, more: Mapping[str, Quantity | Relative] | None = None) -> pd.DataFrame:
    """Final quality and what is sent of every run, how many times less than dense of the same seed, and
    ``more`` quantities."""
    dense = row_id(one.model, DENSE)
    less = {new: Relative(name, dense, inverse=True) for name, new in FEWER.items()}
    final = {FINAL[one.model]: Quantity(one.metric.unit, one.last)}
    return frame.measure(one.runs, {**final, **SENT, **less, **(more or {})})


# -- recorded decisions

STEPS = 18_000
"""Steps of a run of the paper. Ours: its learning rate decays at 9,000 and 14,000, and figure 10 speaks of
16,000 and later. A printed step counts as its share of these, so that a shorter run has the same moments."""
ENERGY, NORM = "energy", "norm"
"""The two gains: as printed (squared norms), and as in the authors' code (sums of norms over the gradient
without its residual)."""
GAIN = {ENERGY: "energy gain", NORM: "norm gain"}


def at(run: Run, paper_step: float) -> float:
    """A step of the paper, as a step of this run."""
    return paper_step / STEPS * float(run.last("step"))


def column(run: Run, name: str) -> Series:
    """A column of the recorded decisions, empty where there is none."""
    return np.asarray(run.decisions.get(name, ()), dtype=np.float64)


def mean(values: Series) -> float:
    """The mean of the finite values, NaN where there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def gains(run: Run, gain: str) -> Series:
    """The gain of each recorded step, not smoothed; NaN where the record lacks it. The norm gain of a dense
    step is not recorded."""
    if gain == ENERGY:
        return column(run, "gain")
    raw = column(run, "raw_norms")
    found: Series = column(run, "sent_norms") / np.where(raw > 0, raw, np.nan)
    return found


# -- the vocabulary of claims

MARGIN = {RESNET101: 0.5, VGG16: 0.5, LSTM: 0.02}
"""Ours: a row ends as well as dense within half a point, or 2 % of the perplexity. The smallest printed
difference that misses a target is 0.6 points (Redsync 10x)."""
LARGEST_MISS = {RESNET101: 3.6, VGG16: 2.2, LSTM: 4.78 / 22.0}
"""By how much the worst row with a printed speedup misses its target: points, or a share of the perplexity.
No speedup counts of a row that ends farther below dense: to stop badly is no gain in time."""
COMPRESSED_FROM = 1.1
"""Ours: a run that sends at most so many times fewer floats than dense says nothing about compression."""
HALF = 0.5
"""Ours: a printed difference, and the gain of a printed speedup (speedup - 1), within half either way."""
VOLUME_FACTOR = 2.0
"""Ours: a printed reduction of what is sent, within a factor of two."""


def better(model: str, good: str, bad: str, slack: float = 0.0) -> Check:
    """The method ``good`` ends better than ``bad``, or worse by at most ``slack``: points, or a share of the
    perplexity."""
    good, bad = row_id(model, good), row_id(model, bad)
    if model != LSTM:
        return Check(QUALITY, good, bad, above=0.0 - slack)
    return Check(PERPLEXITY, bad, good, above=1 / (1 + slack), ratio=True)


def better_by(model: str, good: str, bad: str, printed: tuple[float, float]) -> Check:
    """``good`` ends better than ``bad`` as far as their ``printed`` values, within half of it either way and
    not less than the margin."""
    check, (of_good, of_bad) = better(model, good, bad), printed
    by, none = (of_bad / of_good, 1.0) if check.ratio else (of_good - of_bad, 0.0)
    return near(check, by, max(MARGIN[model], HALF * abs(by - none)) + none)


def near_dense(model: str, method: str) -> Check:
    """The premise of a claim that a row is faster: it ends at most the `LARGEST_MISS` worse than dense."""
    return better(model, method, DENSE, LARGEST_MISS[model])


def reaches(model: str, method: str) -> Check:
    """A row ends at the paper's own target or better."""
    row, target = row_id(model, method), gravac.TARGETS[model]
    if model != LSTM:
        return Check(QUALITY, row, above=target)
    return Check(PERPLEXITY, row, above=-math.inf, below=target)


def sooner(quantity: str, model: str, quick: str, than: str, printed: float = math.nan) -> Check:
    """``quick`` takes fewer modelled seconds than the other method."""
    rows = row_id(model, than), row_id(model, quick)
    return Check(quantity, *rows, above=1.0, ratio=True, printed=printed)


def sooner_by(check: Check, speedup: float) -> Check:
    """A printed speedup, within half of its gain either way."""
    low, high = sorted((speedup - HALF * (speedup - 1), speedup + HALF * (speedup - 1)))
    return replace(check, above=low, below=high, printed=speedup)


def fewer(model: str, method: str, than: str = DENSE, above: float = COMPRESSED_FROM) -> Check:
    """A method sends fewer floats than another one: than dense, the premise of claims on its quality."""
    return Check(FLOATS, row_id(model, than), row_id(model, method), above=above, ratio=True)


def fewer_by(model: str, method: str, reduction: float, than: str = DENSE) -> Check:
    """A method sends ``reduction`` times fewer floats, within the factor."""
    return near(fewer(model, method, than), reduction, VOLUME_FACTOR)


def both_gains(claims: Iterable[Claim]) -> Iterator[Claim]:
    """Each claim, and where it is on a row that exists with the norm gain, the same claim on that row."""

    def of_norm(row: str) -> str:
        model, _, method = row.partition(".")
        other = gravac.NORM_OF.get(method, method)
        return row_id(model, other)

    def swapped(checks: Sequence[Check]) -> tuple[Check, ...]:
        return tuple(
            replace(one, greater=of_norm(one.greater), lesser=one.lesser and of_norm(one.lesser))
            for one in checks
        )

    for claim in claims:
        yield claim
        of_both = {name: swapped(getattr(claim, name)) for name in ("checks", "premises")}
        named = {"id": f"{claim.id}.norm", "text": f"{claim.text[:-1]} (norm gain)."}
        if of_both["checks"] != claim.checks:
            yield replace(claim, cannot_follow="", **named, **of_both)  # type: ignore[arg-type]


# -- the page


@dataclass(frozen=True)
class Training:
    """The ``page`` of an artifact of training runs. ``looks``: by row; ``make``: makes the page of runs;
    ``claims``: on all models, of which a page has those with runs."""

    looks: Mapping[str, Look]
    make: Callable[[Sequence[Run], str], Page]
    claims: Sequence[Claim]

    def __call__(self, runs: Sequence[Run], scale: str) -> Page:
        """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
        return self.make(runs, scale)

    def require_rows(self, trained: Iterable[str]) -> None:
        """Raise UserError for a row of the YAML files that the page does not show."""
        Artifact("", rows=self.looks).require_rows(trained)


def page(
    words: str,
    methods: Iterable[str],
    claims: Callable[[Course], Iterable[Claim]],
    *,
    numbers: Callable[[Course], pd.DataFrame] = measure,
    quantities: Collection[str] = (),
    models: Sequence[str] = tuple(gravac.MODELS),
    said: Mapping[str, object] | None = None,
    **more: Any,
) -> Training:
    """The ``page`` of an artifact: the rows of each model that has runs, and the claims on them. Raises
    UserError where a claim names no row or quantity.

    numbers     the frame of a model's runs
    quantities  what ``numbers`` has beyond `measure`
    more        fields of `Artifact`, such as tables and figures
    """
    methods = tuple(methods)
    looks = {row_id(model, m): gravac.LOOKS[m] for model in models for m in methods}
    every: list[Claim] = []
    for model in models:
        known = [FINAL[model], *SENT, *FEWER.values(), *quantities]
        own = [row_id(model, method) for method in methods]
        of_model = list(claims(Course(model, (), facts.PAPER_SCALE)))
        require_names(of_model, known, own)
        every += of_model

    def make(runs: Sequence[Run], scale: str) -> Page:
        found = courses([run for run in runs if run.row in looks], scale)
        names = {one.model: f"{one.name} " if len(models) > 1 else "" for one in found}
        made = Artifact(
            words,
            rows={
                row: replace(look, label=f"{names[model]}{look.label}")
                for row, look in looks.items()
                if (model := row.partition(".")[0]) in names
            },
            numbers=lambda _: frame.join(*map(numbers, found)),
            claims=[claim for one in found for claim in claims(one)],
            said=lambda _: {"targets": " ".join(map(target_text, found)), **(said or {})},
            data=gravac.DATA,
            alike=(),
            **(more if found else {**more, "figures": {}}),
        )
        return made([run for one in found for run in one.runs], scale)

    return Training(looks, make, every)


def target_text(one: Course) -> str:
    """The target with the dense runs behind it, and chance."""
    if math.isnan(one.target):
        return "No dense run: no target."
    dense = list(map(one.last, one.of(DENSE)))
    guesses = facts.distinct(f"{chance(run, one.metric):.4g}" for run in one.runs)
    return (
        f"{one.name}, {one.metric.label}: target {one.target:.2f}, from dense {frame.number(dense, 2)} "
        f"(n = {len(dense)}), chance {guesses}."
    )
