"""Records: the fewest wire bytes to a frozen target. conf/records.yaml has the rules; a record is a folder.

==============  ==========================================================================================
`config.yaml`   the resolved config that all seeds share, without the seed and the paths of a machine
`runs.json`     of each seed: the id of its run, its environment and its summary
`log.csv`       the log and the curve of each seed: one line an epoch, with every recorded metric
`record.json`   what follows from the other files, and their sizes and checksums (checksums.py)
==============  ==========================================================================================

`read` computes record.json again from the other files and compares it. Reading imports and runs nothing that
a record names: records may be somebody else's. launch/record.py makes records and checks their configs.

Bytes are one worker's, of the gradient exchange, computed for ``Rules.workers`` workers from the recorded
collectives as the benchmark computes them (`wire_until` of benchmark/methods.py).
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from dgc_repro.checksums import Damaged, read_sealed, sealed_summary, verified
from dgc_repro.errors import UserError, refuse_first_of
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.names import conf_dir, with_current_names
from dgc_repro.paper import statistics
from dgc_repro.paper.benchmark.methods import wire_until
from dgc_repro.paper.frame import amount
from dgc_repro.paper.page import markdown_table, plain
from dgc_repro.paper.records import FINISHED, REQUIRED_METRICS, Run
from dgc_repro.paper.statistics import Estimate

CONFIG_FILE, RUNS_FILE, LOG_FILE, FILE = "config.yaml", "runs.json", "log.csv", "record.json"
FILES = (CONFIG_FILE, LOG_FILE, FILE, RUNS_FILE)
PAGE_FILE = "README.md"
NOT_SHARED = ("seed", "paths", "sink")
"""Sections that a record's config does not have: a seed's own, or a machine's."""
NAME = r"[a-z0-9][a-z0-9._-]*"
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError, Damaged)
"""What reading a broken record may raise."""
INTRODUCTION = """\
# Records

The fewest wire bytes to a frozen target. `python -m dgc_repro record` wrote this page from the folders beside
it. `docs/records.md` says how a record is made, checked and submitted.

Bytes are one worker's of the gradient exchange, up to the first test that reaches the target. They are
computed for {workers} workers, with the factors of ring collectives, from the collectives that runs with the
recipe's number of workers (4) recorded. *bytes*: the geometric mean over n seeds, with its 95 % interval
where the seeds differ. *p*: of "it sends no fewer bytes than the record below" (Welch's test on the
logarithms of bytes); 0 where the seeds of neither record differ. *epoch*: where seeds reach the target.
"""


@dataclass(frozen=True)
class Target:
    """A quality that the runs of one recipe may reach.

    run     overrides of the recipe
    metric  a column of a run's epochs
    bound   its value at the target; reached from below (``at_least``) or from above
    """

    name: str
    title: str
    run: tuple[str, ...]
    metric: str
    bound: float
    at_least: bool

    def is_reached(self, value: float) -> bool:
        """Whether a test has the target. NaN never has it."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True)
class Rules:
    """The frozen rules, which conf/records.yaml explains."""

    targets: Mapping[str, Target]
    workers: int
    seeds: int
    p: float
    more_bytes: float
    may_differ: tuple[str, ...]

    @classmethod
    def read(cls) -> Rules:
        """Return the rules of conf/records.yaml."""
        node = yaml.safe_load((conf_dir() / "records.yaml").read_text(encoding="utf-8"))
        return cls.of(node)

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Rules:
        """Return the rules that a node of YAML states."""
        targets = {}
        for name, own in node["targets"].items():
            bound = float(own["at_least" if "at_least" in own else "at_most"])
            run, metric, title = tuple(own["run"]), own["metric"], own["title"]
            targets[name] = Target(name, title, run, metric, bound, "at_least" in own)
        return cls(**{**node, "targets": targets, "may_differ": tuple(node["may_differ"])})


@dataclass(frozen=True)
class Record:
    """Runs of one config, a seed each, that reach a target.

    name  of its folder
    by    who submits it
    runs  in the order of their seeds
    """

    name: str
    by: str
    target: Target
    rules: Rules
    runs: tuple[Run, ...]

    @cached_property
    def reached(self) -> list[tuple[int, float]]:
        """Of each seed the epoch that first has the target, and the wire bytes until its end."""
        return [reached(run, self.target, self.rules.workers) for run in self.runs]

    @cached_property
    def bytes(self) -> Estimate:
        """The geometric mean of the seeds' bytes to the target, and its 95 % interval."""
        return statistics.estimate([sent for _, sent in self.reached], ratio=True)

    def computed(self) -> dict[str, Any]:
        """Return what record.json says, checksums aside."""
        metric = self.target.metric
        seeds = [
            {"seed": run.seed, "epoch": epoch, "bytes_to_target": sent, "last_test": run.last(metric)}
            for run, (epoch, sent) in zip(self.runs, self.reached, strict=True)
        ]  # fmt: skip
        named = {"target": self.target.name, "by": self.by, "workers": self.rules.workers}
        return {**named, "n": len(seeds), "seeds": seeds}

    def check(self) -> None:
        """Raise UserError, which begins with the key, unless the seeds are complete, the runs are whole,
        committed and consistent, and each seed reaches the target."""
        seeds, metric = [run.seed for run in self.runs], self.target.metric
        if seeds != list(range(len(seeds))) or len(seeds) < self.rules.seeds:
            raise UserError(
                f"seed: a record has the seeds 0 to n-1, each once, and n is at least {self.rules.seeds}, "
                f"got {seeds}; train the seeds that are missing"
            )
        for run in self.runs:
            _check_run(run, metric)
        for run, (epoch, sent) in zip(self.runs, self.reached, strict=True):
            if not epoch:
                raise UserError(
                    f"seed: each seed reaches {metric} {self.target.bound:g}, and seed {run.seed} ends at "
                    f"{run.last(metric):.5g}; it is no record"
                )
            if not sent:
                raise UserError(
                    f"comm/wire_bytes: a record sends something, got 0 bytes in {run.id}"
                )


def reached(run: Run, target: Target, workers: int) -> tuple[int, float]:
    """The epoch whose test first has the target, and the wire bytes until its end of one worker among so
    many; (0, inf): no epoch has it."""
    for _, line in run.epochs.iterrows():
        if target.is_reached(line[target.metric]):
            return int(line["epoch"]), wire_until(run, workers, float(line["step"]))
    return 0, math.inf


def _check_run(run: Run, metric: str) -> None:
    """Raise UserError unless a run was trained to its end on committed code, and its sums agree."""
    if missing := [m for m in (*REQUIRED_METRICS, metric) if m not in run.epochs.columns]:
        raise UserError(f"{run.id}: no {missing[0]} in its epochs; give trained runs of a recipe")
    known, summary, parts = run.environment, run.summary, run.summary.get("collectives", {})
    epochs, workers = list(run.epochs["epoch"]), int(run.setting("launch.workers"))
    wanted = list(range(1, int(run.setting("train.epochs")) + 1))
    wire = run.epochs["comm/wire_bytes"].to_numpy(float)
    payload = sum(of["payload_bytes"] for of in parts.values())
    sent = sum(of["payload_bytes"] * moved_by(name, workers) for name, of in parts.items())
    last = {name: run.last(name) for name in ("step", "comm/payload_bytes", metric)}
    refuse_first_of(
        {
            f"summary.status: finished, got {summary.get('status')} in {run.id}; train it to its end":
                summary.get("status") != FINISHED,
            f"train.epochs: a test after each of {len(wanted)} epochs, got {epochs} in {run.id}; train it "
            "without stopping.stop": epochs != wanted,
            f"environment.dirty: committed code, got changes in {run.id}; commit, and train again":
                known.get("dirty") is not False or not known.get("commit"),
            f"launch.workers: {workers}, and the environment of {run.id} has {known.get('world_size')}":
                known.get("world_size") != workers,
            f"step: {last['step']:g} in the last epoch of {run.id}, summary: {summary.get('steps')}":
                summary.get("steps") != last["step"],
            f"{metric}: {last[metric]} in the last epoch of {run.id}, summary: {summary.get(metric)}":
                summary.get(metric) != last[metric],
            f"comm/payload_bytes: the sum of its collectives, {payload}, got "
            f"{last['comm/payload_bytes']:.0f} in {run.id}": payload != last["comm/payload_bytes"],
            f"comm/wire_bytes: what its collectives move, {sent:.0f}, got {wire[-1]:.0f} in {run.id}":
                not math.isclose(sent, wire[-1]),
            f"comm/wire_bytes: a sum that grows from epoch to epoch, got another in {run.id}":
                not (wire[:-1] <= wire[1:]).all(),
        }
    )  # fmt: skip


def read(folder: Path, rules: Rules) -> Record:
    """Read a record, check its runs, and compare record.json with what follows from them. Its config is not
    compared with the recipe's (launch/record.py does). Raises UserError."""
    try:
        if (names := sorted(path.name for path in folder.iterdir())) != sorted(FILES):
            raise UserError(f"a record has the files {', '.join(FILES)} and no other, got {names}")
        stated = verified(read_sealed(folder / FILE), folder / FILE)
        text = {name: (folder / name).read_text(encoding="utf-8") for name in FILES}
        config = with_current_names(yaml.safe_load(text[CONFIG_FILE]))
        lines = csv.DictReader(io.StringIO(text[LOG_FILE]))
        log = pd.DataFrame({key: _value(cell) for key, cell in line.items()} for line in lines)
        runs = []
        for one in json.loads(text[RUNS_FILE]):
            own = log[log["seed"] == one["seed"]].drop(columns="seed").reset_index(drop=True)
            seeded = {**config, "seed": one["seed"]}
            runs.append(Run(one["id"], seeded, one["environment"], one["summary"], own))
        target = rules.targets[stated["target"]]
        record = Record(folder.name, str(stated["by"]), target, rules, tuple(runs))
        record.check()
        if record.computed() != stated:
            raise UserError(f"{FILE} does not follow from the files beside it; make it again")
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    except (*DAMAGED, yaml.YAMLError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:150]
        made = "make it with python -m dgc_repro record"
        raise UserError(f"{folder}: not a record ({reason}); {made}") from error
    return record


def _value(cell: str) -> int | float | str:
    """The number in a cell, bit for bit as it was written (pandas rounds, in some versions), or its text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(cell or "nan")
    return cell


def write(record: Record, folder: Path) -> None:
    """Write the files of a record into a new folder. The same runs make the same bytes."""
    folder.mkdir(parents=True)
    first = record.runs[0].config
    shared = {key: value for key, value in first.items() if key not in NOT_SHARED}
    shared["dataset"] = {k: v if k != "root" else None for k, v in shared["dataset"].items()}
    heads = [
        {"id": run.id, "seed": run.seed, "environment": run.environment, "summary": run.summary}
        for run in record.runs
    ]
    log = pd.concat([run.epochs.assign(seed=run.seed) for run in record.runs], ignore_index=True)
    log.insert(0, "seed", log.pop("seed"))
    texts = {
        CONFIG_FILE: yaml.safe_dump(shared, sort_keys=False, allow_unicode=True),
        RUNS_FILE: json.dumps(heads, indent=1, ensure_ascii=False) + "\n",
        LOG_FILE: log.to_csv(index=False, lineterminator="\n"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    (folder / FILE).write_bytes(sealed_summary(folder / FILE, record.computed()))


def folders(root: Path) -> list[Path]:
    """Return the folders of records, by name."""
    return sorted(p for p in root.glob("*") if p.is_dir() and re.fullmatch(NAME, p.name))


def standing(records: Sequence[Record], rules: Rules, target: Target) -> list[tuple[Record, float]]:
    """Return the records of a target, fewest bytes first (of equal ones the last first), each with its
    p-value against the next one, NaN for the last. Raises UserError for one not shown to send less."""
    own = [record for record in reversed(records) if record.target == target]
    own.sort(key=lambda record: record.bytes.mean)
    found = []
    for record, below in itertools.zip_longest(own, own[1:]):
        p = statistics.p_not_below(record.bytes, below.bytes) if below else math.nan
        if below and not p < rules.p:
            raise UserError(
                f"{record.name}: sends fewer bytes than {below.name} with p < {rules.p:g}, got p = {p:.2g} "
                f"({amount([record.bytes.mean])}, and {amount([below.bytes.mean])} of {below.name}); it is "
                "no record, or needs more seeds"
            )
        found.append((record, p))
    return found


def page(records: Sequence[Record], rules: Rules) -> str:
    """Return the page with the records of each target in Markdown. Raises UserError, as `standing` does."""
    parts = [INTRODUCTION.format(workers=rules.workers)]
    for target in rules.targets.values():
        own = standing(records, rules, target)
        sign = "at least" if target.at_least else "at most"
        lines = pd.DataFrame(_line(record, p, own[-1][0]) for record, p in own)
        parts.append(
            f"## {target.name}: {target.title}\n\n`{target.metric}` {sign} {target.bound:g} in each seed.\n\n"
            f"{markdown_table(lines, links=True) if own else 'No record yet.'}\n"
        )
    return "\n".join(parts)


def _line(record: Record, p: float, first: Record) -> dict[str, object]:
    """The line of a record on the page; ``first``: the last one there."""
    found, tests = record.bytes, [run.last(record.target.metric) for run in record.runs]
    return {
        "record": f"[{record.name}]({record.name}/{FILE})",
        "by": plain(record.by) or "-",
        "n": found.n,
        "bytes": amount([found.mean]),
        "95 % interval": f"{amount([found.low])} to {amount([found.high])}" if found.error else "-",
        "times fewer than the first": f"{first.bytes.mean / found.mean:.3g}",
        "p": "-" if math.isnan(p) else f"{p:.1g}",
        "epoch": ", ".join(map(str, sorted({epoch for epoch, _ in record.reached}))),
        "last test": f"{min(tests):.4g} to {max(tests):.4g}",
        "trained": plain(record.runs[0].environment.get("started", "-"))[:10],
    }
