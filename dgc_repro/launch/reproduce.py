"""``reproduce <paper>/<artifact>``: make the runs an artifact needs, write its page and figures, print them.

The page goes to ``paths.reproduced``, which git ignores, or with ``publish=true``, a maintainer's setting,
to ``paths.results``. Finished runs are found by their settings and not made again. With ``published=true``
a run that is not in runs/ is taken from the published ones; otherwise it is made, so that every printed
number was measured here. Other settings: `reproduction`. ``share=2/3`` makes the second, fifth, ... run and
no page: several machines then share the runs of an artifact.

``reproduce list=<file>`` trains what is missing of a list of artifacts, one run after another on one core;
conf/queue.yaml describes the file. A run that is finished or published is not trained again, and a run of
several entries is trained once. Within an entry all runs of a seed come before those of the next seed, dense
training first, so that an unfinished entry can be compared. A run that fails is named, and the others go on.
A run that another process trains is left to it, so that several commands can share ``paths.runs``, one a
core. The same command continues after any stop.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from dgc_repro import files
from dgc_repro.checked import Positive, checked
from dgc_repro.errors import UserError
from dgc_repro.launch.cli_args import read
from dgc_repro.launch.devices import choose_device, emulated_bf16
from dgc_repro.launch.environment import RUNS_AT_ONCE, available_cores, code_has_changed
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.overrides import in_one_line, made, nearest
from dgc_repro.launch.paths import add_conf_dirs, conf_dir, conf_dirs_apart
from dgc_repro.launch.ranks import RunFailed, RunHeld
from dgc_repro.launch.reproduce_help import KEYS, LIST, LIST_KEYS
from dgc_repro.launch.reproduction import DEVICE, PLAN, ROOTS, SHARE, Reproduction, prepared
from dgc_repro.launch.run import (
    MISTAKES,
    Job,
    check_rows,
    complete,
    finished,
    is_done,
    outcome,
    published_run,
    run_config,
    summary_of,
)
from dgc_repro.launch.worker import CPU_SECONDS
from dgc_repro.names import published_in
from dgc_repro.paper import index
from dgc_repro.paper.publish import is_published, other_scales, page_of, published, run_ids
from dgc_repro.paper.screen import console_of_width, grid, show
from dgc_repro.progress import TimeLeft

SHOW_PLAN = (
    "dgc_repro.predict.plan:show"  # above this package, as the other commands of launch/main.py
)
NICENESS = 10  # low, but not starved by a busy machine, as 19 is
MOST_NAMED = 5  # failed runs in the last line
GROUPS = ("paths", ROOTS, "sink")
"""Overrides for all entries of a list: settings that change no number."""


def reproduce(arguments: Sequence[str]) -> None:
    """``arguments``: the artifact, then overrides for all of its runs (``scale=small seed=1``); or
    ``list=<file>``. Raises UserError, RunFailed and RunStopped."""
    if any(argument.startswith(f"{LIST}=") for argument in arguments):
        reproduce_list(arguments)
        return
    asked = prepared(arguments)
    if asked.own.get(PLAN):
        pkgutil.resolve_name(SHOW_PLAN)(asked, asked.own.get(DEVICE))
        return
    name, jobs, takes_published = asked.name, asked.jobs, bool(asked.own.get("published"))
    target = asked.target(bool(asked.own.get("publish")))
    ready = [published_run(job.config) if takes_published else None for job in jobs]
    pairs = list(zip(jobs, ready, strict=True))
    is_new = [run is None and not is_done(run_folder(job.config)) for job, run in pairs]
    check_rows(job for job, new in zip(jobs, is_new, strict=True) if new)
    if asked.note:
        print(asked.note, flush=True)
    time_left = TimeLeft(sum(is_new))
    for number, (job, run) in enumerate(pairs, start=1):
        left = f", {words}" if (words := time_left.words()) else ""
        print(f"[{number}/{len(jobs)}] {name} {job.name}{left}", flush=True)
        if run is not None:
            print(f"already published: {run.id}", flush=True)
        else:
            run_config(*job)
        time_left.advance(is_new[number - 1])
    part, parts = asked.own.get(SHARE, (1, 1))
    if parts > 1:
        print(
            f"share {part} of {parts} is finished; run the same command without share to make the page"
        )
        return
    found = finished(jobs, asked.optional, takes_published)
    listed = {job.config["seed"] for job in (*jobs, *asked.optional)}
    stated = jobs[0].config["scale"]["seeds"]
    if asked.is_trained and (more := sorted({run.seed for run in found} - listed - {*stated})):
        print(f'the page has finished seeds {more} too ("scale.seeds={stated}" leaves them out)')
    written = asked.publish(found, target)
    others = other_scales(written, published_in(jobs[0].config["paths"]["results"]))
    show(page_of(written), console_of_width(), written, others)
    if asked.mirror is not None:
        page = f"{name.replace('/', '-')}-{asked.scale}"
        place = Path(jobs[0].config["paths"]["runs"], page)
        asked.mirror.log_page(written, place, page, {"runs": [run.id for run in found]})


# -- a list of artifacts ---------------------------------------------------------------------------


@checked
class Entry:
    """An entry of the list, as conf/queue.yaml describes it."""

    run: str
    minutes: Positive
    rows: Annotated[Sequence[str], "patterns, as ['*.dense']"] = ("*",)
    why: str = ""


@dataclass
class Part:
    """The work of an entry. ``jobs``: its runs in order, by the names of their folders, without those of
    earlier entries; ``left``: the names of those to train; ``spent``: core-minutes of those that are done."""

    entry: Entry
    asked: Reproduction
    jobs: dict[str, Job]
    left: set[str] = field(default_factory=set)
    spent: list[float] = field(default_factory=list)

    def add(self, summary: Mapping[str, Any]) -> str:
        """Count a finished run; what it took, in words."""
        if CPU_SECONDS not in summary:  # a record of an older version
            return "finished"
        self.spent.append(summary[CPU_SECONDS] / 60)
        return f"{self.spent[-1]:.1f} core-minutes"

    @property
    def minutes(self) -> float:
        """Core-minutes of a run: the mean of those that are done, else what the list expects."""
        return sum(self.spent) / len(self.spent) if self.spent else self.entry.minutes

    @property
    def hours_left(self) -> float:
        """Core-hours of the runs that are left."""
        return len(self.left) * self.minutes / 60


def reproduce_list(arguments: Sequence[str]) -> None:
    """``arguments``: `LIST_KEYS`, and overrides for all entries (`GROUPS`)."""
    added, others = conf_dirs_apart(arguments)
    add_conf_dirs(added)
    for argument in others:
        if "=" not in argument:
            raise UserError(f"{LIST}: its file names the artifacts; leave {argument} out")
    own, given = read(others, "reproduce", {key: KEYS[key] for key in LIST_KEYS}, GROUPS)
    if own[PLAN] and own["publish"]:
        raise UserError(f"{PLAN}: prints and publishes nothing; give {PLAN} or publish")
    if not (own[PLAN] or own["publish"]):
        os.nice(NICENESS)  # before the runs of the list are composed, which takes minutes
    parts = read_list(own[LIST], given)
    if own[PLAN]:
        _show(parts)
    elif own["publish"]:
        _publish_finished(parts)
    else:
        _train(parts)


def read_list(name: str, given: Sequence[str]) -> list[Part]:
    """Return the entries of a list with their runs. ``name``: a YAML file, or the name of one in conf/.
    Raises UserError, which names the entry that is wrong."""
    if name.lower() in ("true", "false"):
        raise UserError(f"{LIST}: {name}; {LIST}=<file> names a list, and {PLAN}=true prints it")
    is_file = os.path.isfile(name) or "/" in name or name.endswith((".yaml", ".yml"))
    file = Path(name) if is_file else conf_dir() / f"{name}.yaml"
    try:
        nodes = files.parsed_yaml(files.text(file.resolve()))["queue"]
        if not isinstance(nodes, list):
            raise TypeError("a list")
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{LIST}: {file} has no list `queue:` ({reason}); write it as conf/queue.yaml says"
        ) from error
    parts: list[Part] = []
    seen: set[str] = set()
    known: dict[str, Reproduction] = {}  # to compose a run takes 0.1 s; entries may have the same
    for number, node in enumerate(nodes, start=1):
        place = f"{file}, entry {number}"
        entry = made(Entry, node, place)
        with _naming(f"{place} ({entry.run})"):
            asked = known[entry.run] = known.get(entry.run) or _asked(entry, given)
            parts.append(_part(entry, asked, seen))
        seen |= parts[-1].jobs.keys()
    return parts


@contextlib.contextmanager
def _naming(place: str) -> Iterator[None]:
    """Put the place in the list before what is wrong with it."""
    try:
        yield
    except MISTAKES as error:
        raise UserError(f"{place}: {in_one_line(error)}") from error


def _asked(entry: Entry, given: Sequence[str]) -> Reproduction:
    """What an entry reproduces. Raises UserError."""
    try:
        arguments = [*shlex.split(entry.run), *given]
    except ValueError as error:
        raise UserError(f"run: {error}; close the quotes, or leave them out") from error
    if not any(argument.startswith("sink") for argument in arguments):
        arguments.append("sink=none")
    asked = prepared(arguments)
    for key in KEYS:
        if key in asked.own:
            raise UserError(f"{key}: not for an entry; leave it out")
    if not asked.is_trained:
        raise UserError(f"run: {asked.name} is not trained; make it with reproduce")
    return asked


def _part(entry: Entry, asked: Reproduction, seen: set[str]) -> Part:
    """The work of an entry; ``seen``: runs of earlier entries. Raises UserError."""
    rows = {job.row for job in asked.jobs}
    for pattern in entry.rows:
        if not any(fnmatchcase(row, pattern) for row in rows):
            raise UserError(f"rows: no row {pattern!r}; {nearest(pattern, rows)}")
    seeds = list(dict.fromkeys(config["seed"] for config, _ in asked.jobs))
    part = Part(entry, asked, {})
    for job in sorted(
        (job for job in asked.jobs if any(fnmatchcase(job.row, p) for p in entry.rows)),
        key=lambda job: (seeds.index(job.config["seed"]), not _is_dense(job.config)),
    ):
        folder, launch = run_folder(job.config), job.config["launch"]
        if folder.name in seen:
            continue
        if launch["kind"] != "simulated" or launch["threads"] not in (None, 1):
            raise UserError(
                "launch: a list has one core; add launch=simulated launch.threads=1 to the entry"
            )
        part.jobs[folder.name] = job
        if is_done(folder):
            part.add(summary_of(folder))
        elif (run := published_run(job.config)) is not None:
            part.add(run.summary)
        else:
            part.left.add(folder.name)
    return part


def _is_dense(config: Mapping[str, Any]) -> bool:
    """Whether a run sends gradients as they are."""
    return str(config["compressor"]["_target_"]).endswith(".Dense")


def _total(parts: Sequence[Part]) -> str:
    return f"{sum(part.hours_left for part in parts):.1f} core-hours left"


def _show(parts: Sequence[Part]) -> None:
    """Print a line an entry, and the sum."""
    rows = [
        (
            f"{number} {part.asked.name} {part.asked.scale}",
            len(part.jobs),
            len(part.jobs) - len(part.left),
            len(part.left),
            f"{part.minutes:.1f} {'measured' if part.spent else 'expected'}",
            f"{part.hours_left:.1f}",
        )
        for number, part in enumerate(parts, start=1)
    ]
    headings = ("entry", "runs", "done", "left", "core-minutes a run", "core-hours left")
    console_of_width().print(grid(_total(parts), headings, rows, wraps=True))


def _train(parts: Sequence[Part]) -> None:
    """Train what is left. Raises RunFailed at the end where runs have failed, RunStopped for a signal."""
    for part in parts:
        with _naming(part.entry.run):
            check_rows(part.jobs[name] for name in part.left)
    if code_has_changed():
        print("the code has changes that are not committed, which the records will say", flush=True)
    if line := _slow_bf16(parts):
        print(f"warning: {line}", flush=True)
    os.environ[RUNS_AT_ONCE] = str(available_cores())  # a thread for a run that states no number
    jobs = [(part, name, job) for part in parts for name, job in part.jobs.items()]
    total, failed = len(jobs), []
    print(
        f"{sum(len(part.left) for part in parts)} of {total} runs to train, {_total(parts)}",
        flush=True,
    )
    for number, (part, name, job) in enumerate(jobs, start=1):
        if name not in part.left:
            continue
        folder, why, error = run_folder(job.config), None, None
        if not is_done(folder):  # another process may have trained it meanwhile
            # A run in a process and session of its own is as nice as this one, and what it leaves behind
            # does not grow over days.
            why, error = outcome(lambda f=folder, j=job: complete(f, j.config, apart=True))  # type: ignore[misc]
        if error is None:
            said = part.add(summary_of(folder)) + (f" (warning: {why})" if why else "")
        elif isinstance(error, RunHeld):
            said = "another process trains it"
        else:
            said = f"failed: {error}"
            failed.append(name)
        part.left.remove(name)
        print(
            f"[{number}/{total}] {part.asked.name} {job.name}: {said}; {_total(parts)}", flush=True
        )
    if failed:
        more = ", ..." if len(failed) > MOST_NAMED else ""
        raise RunFailed(
            f"{len(failed)} of {total} runs failed: {', '.join(failed[:MOST_NAMED])}{more}; the same command "
            "tries them again"
        )


def _slow_bf16(parts: Sequence[Part]) -> str | None:
    """A warning where a run to train is in bfloat16, which this machine's CPU emulates."""
    left = (part.jobs[name].config for part in parts for name in part.left)
    slow = (
        emulated_bf16(config["train"]["precision"], choose_device(config).device) for config in left
    )
    return next(filter(None, slow), None)


def _publish_finished(parts: Sequence[Part]) -> None:
    """Write the page of each artifact of the list from the runs that are finished, and the overview.
    Published runs stay as they are. Raises RunFailed at the end where a page could not be made."""
    pages: dict[str, list[Reproduction]] = {}
    for part in parts:
        pages.setdefault(f"{part.asked.name} scale={part.asked.scale}", []).append(part.asked)
    failed = []
    for what, several in pages.items():
        first, root = several[0], several[0].target(True)
        jobs = [job for asked in several for job in asked.jobs]
        optional = [job for asked in several for job in asked.optional]
        found = finished(jobs, optional, True)
        paper, _, artifact = first.name.partition("/")
        before = published(root, paper, first.scale)
        found = [before.get(run.id, run) for run in found]
        place = root / paper / first.scale / artifact
        said = f"{len(found)} runs, published"
        if not found:
            said = "no finished run yet"
        elif not is_published(place) and all(run.id in before for run in found):
            said = "no finished run of its own yet"
        elif any(_is_dense(c) for c, _ in jobs) and not any(_is_dense(run.config) for run in found):
            said = "no finished dense run yet, not published"
        elif is_published(place) and set(run_ids(place)) == {run.id for run in found}:
            said += " already"
        else:
            try:
                first.publish(found, root)
            except UserError as error:
                failed.append(what)
                said = f"not published: {error}"
            else:
                index.write(root)
                said += f" in {place}"
        print(f"{what}: {said}", flush=True)
    if failed:
        raise RunFailed(f"not published: {', '.join(failed)}")
