"""Lines of ``compare`` beside one of them, the reference: judged as the benchmark's pages judge settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from dgc_repro.paper import frame
from dgc_repro.paper.benchmark import paired, tradeoff
from dgc_repro.paper.benchmark.classes import MOST_MORE, UNDECIDED, Judged, Shown
from dgc_repro.paper.benchmark.paired import Reference
from dgc_repro.paper.benchmark.workloads import Workload, usual_margin
from dgc_repro.paper.frame import number
from dgc_repro.paper.records import Run, values_of
from dgc_repro.paper.untrusted import one_line
from dgc_repro.paper.verdict import MIN_SEEDS


@dataclass(frozen=True)
class Against:
    """What the seeds show of each line.

    reference  the name of the line that all others are compared with
    judged     by line, most bytes first
    less       how many times fewer bytes a line sends in a step
    unpaired   lines that cannot be compared: without a seed of the reference, or on other processors
    notes      what a reader of the table needs besides
    """

    reference: str
    judged: Judged
    less: Mapping[str, float]
    unpaired: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def workload(self) -> Workload:
        """What is judged."""
        return self.judged.workload

    @property
    def margin(self) -> str:
        return f"{self.workload.margin:g} {self.workload.unit_in_words}"

    @property
    def headings(self) -> tuple[str, ...]:
        less, cost = "times\nfewer\nbytes", f"cost,\n{self.workload.unit}"
        return (
            "settings",
            "n",
            less,
            cost,
            "95 %\ninterval",
            "class",
            "in the\nfamily",
            "more\nseeds",
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """A row of text for each line, most bytes first."""
        found = [
            self._row(line, shown)
            for line, shown in self.judged.shown.items()
            if line not in self.unpaired
        ]
        none = (f"{UNDECIDED}, n = 0", "-", f"{MIN_SEEDS}+")
        return found + [(line, "0", "-", "-", "-", *none) for line in self.unpaired]

    def _row(self, line: str, shown: Shown) -> tuple[str, ...]:
        less = number([self.less[line]], None, "x") if line in self.less else "-"
        words: tuple[str, ...] = (shown.word, shown.family, "-")
        if line == self.reference:
            words = ("-", "-", "-")
        elif shown.word == UNDECIDED and shown.n < MIN_SEEDS:
            words = (f"{UNDECIDED}, n = {shown.n}", "-", f"{MIN_SEEDS - shown.n}+")
        elif shown.word == UNDECIDED:
            more = self.judged.more_seeds(line)
            words = (shown.word, shown.family, f">{MOST_MORE}" if more is None else str(more))
        return (line, str(shown.n), less, shown.cost, shown.interval, *words)

    @property
    def numbers(self) -> pd.DataFrame:
        """The rows as numbers: a line, most bytes first. The ends of an interval are empty without one."""
        own = {line: one for line, one in self.judged.shown.items() if line not in self.unpaired}
        return pd.DataFrame(
            [
                {
                    "settings": line,
                    "reference": self.reference,
                    "margin": self.workload.margin,
                    "n": one.n,
                    "times_fewer_bytes": self.less.get(line),
                    "cost": one.mean,
                    "low": one.low if one.has_interval else None,
                    "high": one.high if one.has_interval else None,
                    "class": "" if line == self.reference else one.word,
                    "in_family": one.family,
                }
                for line, one in own.items()
            ]
        )

    @property
    def points(self) -> dict[str, tradeoff.Point]:
        """Times fewer bytes and cost of each line, for a figure."""
        shown = self.judged.shown
        return {line: tradeoff.Point(less, shown[line]) for line, less in self.less.items()}


def against(lines: Mapping[str, Sequence[Run]], reference: str, workload: Workload) -> Against:
    """Judge lines against the one that is called ``reference``. A line has one run a seed. Raises UserError
    for a record without the numbers that are compared."""
    runs = [_as_row(run, line) for line, own in lines.items() for run in own]
    for run in runs:
        with one_line(Path(run.id), "a record without the numbers that --against compares"):
            quality, _ = workload.quality(run), paired.payload(run)
            if not workload.is_difference and quality <= 0:
                raise ValueError(f"{workload.metric}: above 0, got {quality:g}")
    own, base = paired.with_reference(runs, reference, workload)
    found = frame.measure(own, paired.quantities(base))
    judged = paired.judged(own, base)
    return Against(
        reference,
        judged,
        less={
            line: float(np.mean(values))
            for line in judged.shown
            if (values := frame.of(found, paired.LESS, line)) and np.isfinite(values).all()
        },
        unpaired=tuple(
            line for line in lines if line not in judged.shown or not judged.shown[line].n
        ),
        notes=(*_not_paired(lines, base), *_unlike(lines, reference)),
    )


def workload_of(title: str, metric: str, margin: float | None) -> Workload:
    """Return what is judged of runs with this metric of the last test; without a margin, the benchmark's."""
    return Workload(title, metric, usual_margin(metric) if margin is None else margin)


def unlike(runs: Sequence[Run]) -> list[str]:
    """Return the keys of a workload in which these runs differ."""
    return [key for key in paired.OF_WORKLOAD if len(values_of(runs, key)) > 1]


def _as_row(run: Run, line: str) -> Run:
    experiment = {**(run.config.get("experiment") or {}), "row": line}
    return replace(run, config={**run.config, "experiment": experiment})


def _not_paired(lines: Mapping[str, Sequence[Run]], reference: Reference) -> list[str]:
    """Name the seeds that one side lacks where runs are compared by seed, and those in which the reference
    diverged."""
    base = {run.seed for run in lines[reference.row]}
    paired_seeds = set(reference.by_seed)
    found = []
    if lost := base - paired_seeds:
        found.append(f"the reference diverged with {_seeds(lost)}, left out here")
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for line, runs in lines.items():
        own = {run.seed for run in runs}
        if alone := own - base:
            missing[f"{_seeds(alone)}, which the reference lacks"].append(line)
        if lacking := paired_seeds - own:
            missing[f"no {_seeds(lacking)}, which the reference has"].append(line)
    return found + [f"{'; '.join(names)}: {what}" for what, names in missing.items()]


def _unlike(lines: Mapping[str, Sequence[Run]], reference: str) -> list[str]:
    """Name the lines whose workload is not the reference's."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line, runs in lines.items():
        if keys := unlike([*lines[reference], *runs]):
            found[", ".join(keys)].append(line)
    return [
        f"{'; '.join(names)}: {keys} differs from the reference, so the cost is not that of compression alone"
        for keys, names in found.items()
    ]


def _seeds(seeds: set[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, sorted(seeds)))}"
