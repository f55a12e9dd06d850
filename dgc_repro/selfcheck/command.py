"""``python -m dgc_repro selfcheck``: a row of PASS, FAIL or SKIP for each thing that has to work here.

Each row runs in processes of its own. The report has the environment, every case, and the whole log of each
row that failed; it is written again after each row, so that it is complete whatever ends the command.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from dgc_repro.errors import UserError
from dgc_repro.launch import cli_args
from dgc_repro.launch.environment import describe
from dgc_repro.launch.overrides import nearest
from dgc_repro.launch.ranks import STOP_SIGNALS, RunFailed
from dgc_repro.progress import Progress, console_of, duration
from dgc_repro.selfcheck import rows as table
from dgc_repro.selfcheck.process import FAIL, PASS, SKIP, STOPPED, Result, as_json, run_row
from dgc_repro.selfcheck.rows import CUDA, PER_GPU, Row

COLORS = {PASS: "green", FAIL: "bold red", SKIP: "yellow", STOPPED: "yellow"}


def rows_of(key: str, text: str) -> list[Row]:
    """Rows to run, as names or patterns separated by commas: ``kernels-*,machine``."""
    names = [row.name for row in table.ROWS]
    chosen: set[str] = set()
    for pattern in text.split(","):
        found = fnmatch.filter(names, pattern.strip())
        if not found:
            raise UserError(f"{key}: no row is called {pattern!r}; {nearest(pattern, names)}")
        chosen.update(found)
    return [row for row in table.ROWS if row.name in chosen]


def file_of(key: str, text: str) -> Path:
    """The file to write, in a folder that exists."""
    path = Path(text)
    if not text or path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{key}: a file in a folder that exists, got {text!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{key}: no permission to write {path}")
    return path


KEYS: cli_args.Keys = {
    "rows": (rows_of, None),
    "timeout": (cli_args.positive, 300.0, "Seconds in which each case of a row must end."),
    "report": (file_of, Path("selfcheck.json")),
}


def selfcheck(arguments: Sequence[str]) -> None:
    """Run the rows and print a line for each. Raises UserError for bad input, RunFailed where a row
    failed."""
    if {"-h", "--help"} & set(arguments):
        rows = ((row.name, row.about) for row in table.ROWS)
        more = ["\nRows, each in a process of its own:", *cli_args.in_columns(rows, 16)]
        cli_args.show_help("selfcheck [key=value ...]", KEYS, more=more)
    given, _ = cli_args.read(arguments, "selfcheck", KEYS, ())
    chosen = table.ROWS if given["rows"] is None else given["rows"]
    report = Report(file_of("report", str(given["report"])), chosen, given["timeout"])
    before = {number: signal.signal(number, _stop) for number in STOP_SIGNALS}
    try:
        for row in chosen:
            report.add(_run(row, report))
    except KeyboardInterrupt as stop:
        report.end(stopped=True)
        number = stop.args[0] if stop.args else signal.SIGINT
        print(f"error: stopped; {report.path} has the rows so far", file=sys.stderr, flush=True)
        sys.exit(128 + number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    report.end()
    if report.failed:
        raise RunFailed(
            f"{len(report.failed)} of {len(chosen)} rows failed: {', '.join(report.failed)}; attach "
            f"{report.path} to an issue"
        )


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def _run(row: Row, report: Report) -> Result:
    """Run a row, or say why it cannot run here."""
    if row.device == CUDA and report.no_gpu:
        return Result(row.name, SKIP, report.no_gpu)
    report.progress.advance(0, row.name)
    row = placed(row, torch.cuda.device_count())
    return run_row(row, report.timeout, lambda now: report.progress.advance(0, now))


def placed(row: Row, gpus: int) -> Row:
    """Return the row with the number of its ranks, and whether they share a GPU, on a machine with ``gpus``
    GPUs."""
    ranks = min(2, max(1, gpus)) if row.ranks == PER_GPU else row.ranks
    return replace(row, ranks=ranks, shares_gpu=row.device == CUDA and ranks > gpus)


class Report:
    """The screen and the file."""

    def __init__(self, path: Path, chosen: Sequence[Row], timeout: float) -> None:
        self.path, self.timeout = path, timeout
        self.no_gpu = "" if torch.cuda.is_available() else "no CUDA device"
        self._rows = {row.name: row for row in chosen}
        self._results: list[Result] = []
        self._began = time.monotonic()
        self._head: Mapping[str, Any] = {
            "command": ["python -m dgc_repro", *sys.argv[1:]],
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "environment": describe(torch.device("cpu"), "none", 1, "none"),
            "variables": {n: v for n, v in os.environ.items() if n.startswith(TOLD)},
        }
        runs = [row for row in chosen if row.device != CUDA or not self.no_gpu]
        total = sum(row.seconds for row in runs)
        self._console = console_of(sys.stdout)
        print(
            f"selfcheck: {len(chosen)} rows, about {duration(total)} on two idle cores; a case may take "
            f"{timeout:g} s",
            flush=True,
        )
        self.progress = Progress("selfcheck", total, console=self._console)
        self._write("running")

    @property
    def failed(self) -> list[str]:
        """The names of rows that failed."""
        return [result.row for result in self._results if result.status == FAIL]

    def add(self, result: Result) -> None:
        """Print a row and write the file."""
        self._results.append(result)
        took = duration(result.seconds) if result.seconds else ""
        self._line(result.status, f"{result.row:<14} {took:>7}  {result.detail}")
        if result.status != SKIP:
            self.progress.advance(self._rows[result.row].seconds)
        self._write("running")

    def end(self, *, stopped: bool = False) -> None:
        """Write the file for the last time. ``stopped``: rows without a result were not run."""
        self.progress.close()
        done = {result.row for result in self._results}
        left = [name for name in self._rows if name not in done]
        self._results += [Result(name, STOPPED, "the command was stopped") for name in left]
        self._write("stopped" if stopped else "finished")
        count = {s: sum(r.status == s for r in self._results) for s in (PASS, FAIL, SKIP)}
        took = duration(time.monotonic() - self._began)
        print(
            f"{count[PASS]} passed, {count[FAIL]} failed, {count[SKIP]} skipped in {took}; report: "
            f"{self.path}",
            flush=True,
        )

    def _line(self, status: str, text: str) -> None:
        """A line of the screen; of a failure all of it."""
        if not self._console.is_terminal:
            print(f"{status}  {text}", flush=True)
            return
        whole = status == FAIL
        color = COLORS[status]
        self._console.print(
            f"[{color}]{status}[/]  {escape(text)}",
            soft_wrap=whole, no_wrap=not whole, overflow="fold" if whole else "ellipsis",
        )  # fmt: skip

    def _write(self, state: str) -> None:
        told = {**self._head, "state": state, "rows": [as_json(one) for one in self._results]}
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        part.replace(self.path)


TOLD = ("CUDA", "NCCL", "TORCH", "TRITON", "GLOO", "DGC_REPRO", "OMP")
"""Beginnings of environment variables that explain a failure."""
