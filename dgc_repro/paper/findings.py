"""The findings in words: the blocks of findings.md, filled in with the numbers of the published pools.

A block stands between ``<!-- name -->`` and ``<!-- /name -->``. The `PAGES` of the repository hold blocks of
these names, which `refresh` writes again, and results/README.md is made of them (index.py). In findings.md a
number is a field, such as ``{low[topk_0.01].change}``:

=========================  ===================================================================================
``low``, ``gpt``, ...      the workloads of the benchmark: by name, a `Setting`
``numbers``                by ``<page> <row>, <quantity>``, a `Number` of numbers.csv
``claims``                 by ``<page> <claim>``, an `Effect`; ``<page> <claim> 2``: its second check
``tally``                  by ``<page> <end of a claim's id> <verdict>``, how many claims; ``*``: any
``differ``                 how many claims differ above scale quick
=========================  ===================================================================================

A page is ``<paper>/<scale>/<artifact>``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.paper import frame, pool
from dgc_repro.paper.benchmark import net, paired, speed
from dgc_repro.paper.benchmark.classes import Judged, Shown, in_words
from dgc_repro.paper.benchmark.equivalent import calibrations, is_shortened
from dgc_repro.paper.benchmark.workloads import DENSE, TUNES, Workload, workloads
from dgc_repro.paper.records import Run
from dgc_repro.paper.verdict import MIN_SEEDS

PAGES = ("README.md", "docs/findings.md", "docs/benchmark.md")
BLOCK = re.compile(r"<!-- (\w+) -->\n(.*?)<!-- /\1 -->", re.DOTALL)
BENCHMARK = Path("benchmark") / "small"
DIFFERS, QUICK, ANY = "differs", "quick", "*"
NO_RUNS = "no runs"


def filled(root: Path) -> dict[str, str]:
    """Return the blocks by name, filled in from the pools below ``root``, with links as a page of docs/ has
    them. None where ``root`` lacks the benchmark or has no docs/ beside it: it is not the repository's.
    Raises UserError where another page is missing whose numbers the blocks have."""
    docs = root.resolve().parent / "docs"
    if not ((root / BENCHMARK / pool.RUNS_FILE).is_file() and docs.is_dir()):
        return {}
    template = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    tables = _Lookup(lambda place: _table(root / place))
    verdicts = _Lookup(lambda page: pool.records((root / page).parent)[Path(page).name]["verdicts"])
    known = {
        **benchmark(root / BENCHMARK),
        "numbers": _Lookup(partial(_number, tables)),
        "claims": _Lookup(partial(_effect, verdicts)),
        "tally": _Lookup(partial(_count, verdicts)),
        "differ": sum(differing(root).values()),
    }
    try:
        return {name: text.format_map(known) for name, text in BLOCK.findall(template)}
    except (LookupError, FileNotFoundError) as error:
        raise UserError(
            f"{root}: lacks a page or a number that findings.md names ({error}); restore it, or correct "
            "findings.md. README.md and the findings are as they were"
        ) from error


def refresh(root: Path) -> dict[str, str]:
    """Write the blocks of the pages beside a root of results again, and return them: `filled`."""
    blocks = filled(root)
    for name in PAGES:
        page = root.resolve().parent / name
        if blocks and page.is_file():
            text = refreshed(page.read_text(encoding="utf-8"), blocks, Path(name).parent)
            page.write_text(text, encoding="utf-8", newline="\n")
    return blocks


def refreshed(text: str, blocks: Mapping[str, str], folder: Path) -> str:
    """Return a page of a folder of the repository with its blocks as they are filled in."""

    def block(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{linked(blocks[found[1]], folder)}<!-- /{found[1]} -->"

    return BLOCK.sub(block, text)


def linked(text: str, folder: Path) -> str:
    """Return a text of docs/ with its links as a page of another folder of the repository has them."""
    if folder == Path("docs"):
        return text
    up = "../" * len(folder.parts)
    text = re.sub(r"\]\((?!\.\./|https?:|#)", f"]({up}docs/", text)
    text = text.replace("](../", f"]({up}")
    return text.replace(f"]({up}{folder.as_posix()}/", "](") if folder.parts else text


@dataclass(frozen=True)
class Setting:
    """A setting of a workload in the words of a table.

    shown   its cost against dense training: above 0 is worse, in points of accuracy or percent
    bytes   by quantity of the benchmark's page, its mean
    steps   its cost in percent of dense training's steps, with the interval
    net     net speedup of the workload's model of full size by network, where it is modelled
    """

    workload: Workload
    shown: Shown
    bytes: Mapping[str, float]
    steps: str
    net: Mapping[str, str]

    @property
    def n(self) -> str:
        return str(self.shown.n)

    @property
    def times(self) -> str:
        """How many times fewer bytes than dense training one worker hands over."""
        return frame.number([self.bytes[paired.LESS]])

    @property
    def payload(self) -> str:
        return frame.amount([self.bytes[paired.PAYLOAD]])

    @property
    def wire(self) -> Mapping[int, str]:
        """The traffic by number of workers."""
        return {workers: frame.amount([self.bytes[name]]) for workers, name in paired.WIRE.items()}

    @property
    def quality(self) -> str:
        return frame.number([self.bytes[paired.QUALITY]])

    @property
    def mean(self) -> str:
        return f"{abs(self.shown.mean):.1f}"

    @property
    def change(self) -> str:
        """The change against dense training with its 95 % interval; of accuracy below 0 is worse."""
        if self.shown.diverged:
            return "diverged"
        sign = -1 if self.workload.is_difference else 1
        mean = _signed(sign * self.shown.mean, 1)
        if not self.shown.has_interval:
            return f"{mean} (one seed)" if self.shown.n == 1 else mean
        low, high = sorted((sign * self.shown.low, sign * self.shown.high))
        return f"{mean} ({_signed(low, 2)} to {_signed(high, 2)})"

    @property
    def cell(self) -> str:
        """The change: bold where the setting costs, = where it is equivalent."""
        if self.shown.word == "costs":
            return f"**{self.change}**"
        return f"{self.change} =" if self.shown.word == "equivalent" else self.change

    @property
    def words(self) -> str:
        return in_words(self.shown, self.workload)


class _Lookup(dict[str, Any]):
    """A mapping that finds the value of a key once, when a field asks for it."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, key: str) -> Any:
        self[key] = self._find(key)
        return self[key]


class Settings(_Lookup):
    """The settings of a workload by name. One that only other workloads have is `NO_RUNS` in every word.

    parameters, workers   of the model, in millions, and among whom it trained
    margin, seeds         of the workload, and of its settings with enough of them
    count                 how many settings have a class
    kept                  how many of the equivalent ones are so in their family too
    """

    def __init__(
        self,
        judged: Judged,
        found: pd.DataFrame,
        dense: Run,
        known: set[str],
        same: Mapping[str, str],
        worth: Mapping[str, net.Worth],
    ) -> None:
        super().__init__(self._setting)
        self._same, self._worth = same, worth
        self._judged, self._found, self._known, self._name = judged, found, known, dense.model
        self.parameters = f"{dense.summary['parameters'] / 1e6:.2g}"
        self.workers = speed.workers_of(dense)
        self.margin = f"{judged.workload.margin:g}"
        self.names = list(judged.settings)
        own = [shown for row, shown in judged.shown.items() if row != judged.reference]
        self.count = Counter(shown.word for shown in own)
        small = [shown for shown in own if shown.word == "equivalent"]
        self.kept = sum(shown.survives or False for shown in small) or "none"
        counts = {shown.n for row, shown in judged.shown.items() if shown.n >= MIN_SEEDS}
        self.seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))

    def _setting(self, setting: str) -> Any:
        row = f"{self._name}.{setting}"
        row = self._same.get(row, row)
        if row in self._judged.shown:
            quantities = (*paired.WIRE.values(), paired.PAYLOAD, paired.LESS, paired.QUALITY)
            worth = self._worth.get(row.partition(".")[2], net.Worth("-", {}))
            return Setting(
                self._judged.workload,
                self._judged.shown[row],
                {name: float(np.mean(frame.of(self._found, name, row))) for name in quantities},
                *worth,
            )
        if setting not in self._known:
            raise KeyError(f"{setting}: no workload of the benchmark has this setting")
        return SimpleNamespace(change=NO_RUNS, cell=NO_RUNS, words=NO_RUNS, times=NO_RUNS)


def benchmark(folder: Path) -> dict[str, Settings]:
    """Return the workloads of the benchmark's pool by name."""
    runs = pool.read(folder, pool.records(folder)["methods"]["runs"])
    fitted = calibrations(runs, workloads())
    runs = [run for run in runs if TUNES not in run.method and not is_shortened(run)]
    same = frame.twins(runs)
    found = paired.numbers(runs)
    dense = {run.model: run for run in runs if run.method == DENSE}
    known = {run.method for run in runs}
    return {
        name: Settings(paired.judged_of(runs, name), found, dense[name], known, same, worth)
        for name in workloads()
        if name in dense
        for own in [[run for run in runs if run.model == name]]
        for worth in [net.worth(own, fitted[name].shares(own)) if name in fitted else {}]
    }


@dataclass(frozen=True)
class Number:
    """Mean and sample standard deviation over ``n`` seeds, and the paper's number."""

    mean: float
    sd: float
    n: int
    printed: float

    def __format__(self, spec: str) -> str:
        return f"{self.mean:{spec}}" if spec else f"{self.mean:.2f} ± {self.sd:.2f}"


def _table(folder: Path) -> pd.DataFrame:
    """The numbers of a pool by artifact, row and quantity."""
    table = pd.read_csv(folder / pool.NUMBERS_FILE)
    return table.set_index(["artifact", "row", "quantity"]).sort_index()


def _number(tables: Mapping[str, pd.DataFrame], key: str) -> Number:
    """The number of ``<page> <row>, <quantity>``."""
    page, _, rest = key.partition(" ")
    place, _, artifact = page.rpartition("/")
    row, _, quantity = rest.partition(", ")
    line = tables[place].loc[[(artifact, row, quantity)]].iloc[0]
    return Number(line["mean"], line["sd"], int(line["n"]), line["printed"])


@dataclass(frozen=True)
class Effect:
    """A check of a claim with its interval."""

    kind: str
    unit: str
    measured: float
    low: float | None
    high: float | None
    printed: float

    def __format__(self, spec: str) -> str:
        """The measured number as ``spec`` says (``1/.3g``: its inverse), else with unit and interval."""
        if spec.startswith("1/"):
            return f"{1 / self.measured:{spec[2:]}}"
        if spec:
            return f"{self.measured:{spec}}"
        measured = _digits(self.measured)
        points = " points" if self.unit == "%" else f" {self.unit}".rstrip()
        unit = {"ratio": "x", "difference": points}.get(self.kind, self.unit)
        if self.low is None or self.high is None or self.low == self.high:
            return f"{measured}{unit}"
        return f"{measured}{unit} ({_digits(self.low)} to {_digits(self.high)})"


def _effect(verdicts: Mapping[str, Sequence[Mapping[str, Any]]], key: str) -> Effect:
    """The check of ``<page> <claim>``, the first one unless a number follows."""
    page, claim, *which = key.split(" ")
    (own,) = (verdict for verdict in verdicts[page] if verdict["claim"] == claim)
    found = own["effects"][int(which[0]) - 1 if which else 0]
    return Effect(**{field.name: found[field.name] for field in fields(Effect)})


def _count(verdicts: Mapping[str, Sequence[Mapping[str, Any]]], key: str) -> int:
    """How many claims of ``<page> <end of the id> <verdict>`` there are."""
    page, end, word = key.split(" ")
    return sum(
        (end == ANY or own["claim"].endswith(end)) and word in (ANY, own["verdict"])
        for own in verdicts[page]
    )


def differing(root: Path) -> dict[str, int]:
    """Return by page how many of its claims differ, above scale quick; pages without one are left out."""
    counts = {
        f"{file.parent.relative_to(root).as_posix()}/{artifact}": sum(
            verdict["verdict"] == DIFFERS for verdict in record["verdicts"]
        )
        for file in root.glob(f"*/*/{pool.VERDICTS_FILE}")
        if file.parent.name != QUICK
        for artifact, record in pool.records(file.parent).items()
    }
    return {page: count for page, count in counts.items() if count}


def _digits(value: float) -> str:
    """Three digits, zeros at the end among them."""
    return f"{value:#.3g}".rstrip(".")


def _signed(value: float, decimals: int) -> str:
    """A change with its sign; without one where it rounds to 0."""
    rounded = round(value, decimals)
    return f"{rounded:+.{decimals}f}" if rounded else f"{0:.{decimals}f}"
