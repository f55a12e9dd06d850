"""``reproduce <artifact> plan=true device=t4``: what its runs take, before anything is trained.

The hours of a GPU are reckoned from counts (counted.py), and those of this machine's CPU come from steps that
are timed here. A claim is decided by the rows that it names, with `MIN_SEEDS` seeds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from dgc_repro.errors import UserError
from dgc_repro.launch import environment
from dgc_repro.launch.devices import choose_device
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.ranks import last_checkpoint
from dgc_repro.launch.reproduction import Reproduction
from dgc_repro.launch.run import Job, is_done, published_run
from dgc_repro.paper.claims import Claim
from dgc_repro.paper.frame import Relative
from dgc_repro.paper.publish import artifact_of
from dgc_repro.paper.screen import console_of_width, grid
from dgc_repro.paper.verdict import MIN_SEEDS
from dgc_repro.predict.counted import Counts, counted, hours_here
from dgc_repro.predict.modelled import GPUS
from dgc_repro.predict.ranked import CPU
from dgc_repro.predict.recommend import one_of_devices
from dgc_repro.progress import Progress

CONTEXT_BYTES = 6e8  # of CUDA and its libraries
EITHER_WAY = 1.25
"""A factor around hours that were timed: other rows, other images and a warmer machine."""
Hours = Callable[["Counts"], tuple[float, float]]
"""The hours of a run on a device, low and high."""


class Planned(NamedTuple):
    """A run to train or to continue, and what it takes."""

    job: Job
    counts: Counts
    is_done: bool
    checkpoint: int | None


def show(asked: Reproduction, device: str | None) -> None:
    """Print the plan. ``device``: a name of `GPUS`, or cpu, alone; None: the device of this machine, and
    after it all GPUs. Raises UserError, also for runs that do not fit into the memory of the device."""
    device = device and one_of_devices("device", device)
    given = device is not None
    if not asked.is_trained:
        raise UserError(f"plan: {asked.name} trains nothing; leave plan=true out")
    runs = [_planned(job, takes_published=bool(asked.own.get("published"))) for job in asked.jobs]
    left = [run for run in runs if not run.is_done]
    for line in _head(asked, runs, left):
        print(line)
    device = device or _device_here(asked.jobs[0].config)
    hours: dict[str, Hours] = {name: partial(Counts.hours, gpu=gpu) for name, gpu in GPUS.items()}
    if device == CPU:
        timed = _timed_here(left)
        hours[CPU] = lambda counts: timed.get(counts, (0.0, 0.0))
    if device is not None:  # first, and alone where it was asked for
        hours = {device: hours[device], **({} if given else hours)}
    headings = ("device", "hours, low", "high", "memory", "of")
    rows = [_row(name, left, one) for name, one in hours.items()]
    console_of_width().print(grid("what is left to train", headings, rows))
    first = next(iter(hours))
    for line in _claims(asked, runs, first, hours[first]):
        print(line)
    if CPU in hours:
        print("Hours of the CPU: steps that were timed on this machine now.")
    if hours.keys() - {CPU}:
        print(
            "Hours of GPUs: reckoned from counted operations and stated rates, for one GPU whose workers "
            "take turns; none was timed."
        )
    if device in GPUS:
        refuse_memory(left, str(device))


def _device_here(config: Mapping[str, Any]) -> str | None:
    """The device of this machine that would train a run; None for a GPU that `GPUS` lacks."""
    if choose_device(config).device == CPU:
        return CPU
    name = torch.cuda.get_device_name(0).lower()
    return next((known for known in GPUS if known in name), None)


def refuse_memory(runs: Iterable[Planned], device: str) -> None:
    """Raise UserError where a run does not fit into a card's memory."""
    gpu = GPUS[device]
    every = [run.counts for run in runs]
    if every and (needed := _memory(counts := max(every, key=Counts.memory), device)) > gpu.bytes:
        raise UserError(
            f"launch.workers: {counts.row} needs {needed / 1e9:.0f} GB, a {device} has "
            f"{gpu.bytes / 1e9:.0f}: {counts.workers} simulated workers keep {counts.states / 1e9:.2f} GB of "
            "compressor state each; use fewer workers, or a GPU with more memory"
        )


def _planned(job: Job, *, takes_published: bool) -> Planned:
    folder = run_folder(job.config)
    done = is_done(folder) or (takes_published and published_run(job.config) is not None)
    return Planned(job, counted(job.config), done, None if done else last_checkpoint(folder))


def _head(asked: Reproduction, runs: Sequence[Planned], left: Sequence[Planned]) -> list[str]:
    """Say how many runs there are, how large they are, and what they leave on the disk."""
    steps = sorted({run.counts.steps for run in runs})
    operations = sorted({run.counts.operations for run in runs})
    resumable = sum(run.checkpoint is not None for run in left)
    disk = sum(run.counts.disk() for run in left)
    found = [
        f"{asked.name} at scale {asked.scale}: {len(runs)} runs, {len(runs) - len(left)} of them finished"
        + (f", {resumable} more begun" if resumable else ""),
        f"a run: {_range(steps)} steps of {_range(sorted({r.counts.workers for r in runs}))} workers, "
        f"{_range(operations)} floating-point operations",
        f"checkpoints: {_gigabytes(disk)} of disk; a run that is stopped continues from its last one",
    ]
    return [*found, asked.note] if asked.note else found


def _range(values: Sequence[float]) -> str:
    texts = [f"{v:.2g}" if v >= 1e9 else f"{v:,.0f}" for v in (values[0], values[-1])]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


def _memory(counts: Counts, device: str) -> float:
    """Bytes of a device for a run. On a CPU the workers share the machine's memory."""
    return counts.memory() + (CONTEXT_BYTES if device in GPUS else 0)


def _row(name: str, left: Sequence[Planned], hours: Hours) -> list[str]:
    """The hours of all runs that are left, and the memory of the largest of them."""
    low, high = _sum(hours, left)
    needed = max((_memory(run.counts, name) for run in left), default=0.0)
    there = GPUS[name].bytes if name in GPUS else environment.available_bytes()
    more = ": too much" if there is not None and needed > there else ""
    shown = "-" if there is None else _gigabytes(there)
    return [name, _hours(low), _hours(high), f"{_gigabytes(needed)}{more}", shown]


def _sum(hours: Hours, runs: Iterable[Planned]) -> tuple[float, float]:
    found = [hours(run.counts) for run in runs]
    return sum(low for low, _ in found), sum(high for _, high in found)


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def _hours(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{hours * 60:.0f} min" if hours >= 1 / 30 else f"{hours * 3600:.0f} s"


def _claims(
    asked: Reproduction, runs: Sequence[Planned], device: str, hours: Hours
) -> Iterator[str]:
    """For each claim, the cheapest runs that decide it: its rows, with as many seeds as a verdict needs."""
    paper, _, artifact = asked.name.partition("/")
    module = artifact_of(paper, artifact)
    claims = getattr(module.page, "claims", getattr(module, "CLAIMS", ()))
    order = list(dict.fromkeys(run.job.row for run in runs))
    quantities = getattr(module.page, "quantities", {})
    # One GPU trains the workers of a run in turns.
    turns = device in GPUS and any(run.counts.workers > 1 for run in runs)
    simulated = turns or any(run.job.config["launch"]["kind"] == "simulated" for run in runs)
    untimed: list[str] = []
    by_rows: dict[tuple[str, ...], list[str]] = {}
    for claim in claims:
        read = rows_of(claim, quantities)
        rows = tuple(row for row in order if row in read)
        if simulated and _reads_times(claim, quantities):
            untimed.append(claim.id)
        elif rows and not claim.cannot_follow:
            by_rows.setdefault(rows, []).append(claim.id)
    if by_rows:
        yield f"the fewest runs for a verdict, {MIN_SEEDS} seeds a row ({device}):"
    for rows, ids in by_rows.items():
        cheapest: list[Planned] = []
        for row in rows:
            of_row = [run for run in runs if run.job.row == row]
            of_row.sort(key=lambda run: (not run.is_done, run.job.config["seed"]))
            cheapest += of_row[:MIN_SEEDS]
        missing = [run for run in cheapest if not run.is_done]
        low, high = _sum(hours, missing)
        text = f"{len(missing)} runs, {_hours(low)} to {_hours(high)}" if missing else "finished"
        short = MIN_SEEDS * len(rows) - len(cheapest)
        more = (
            f"; {short} more runs are needed: give at least {MIN_SEEDS} scale.seeds"
            if short
            else ""
        )
        yield f"  claim{'s' * (len(ids) > 1)} {', '.join(ids)} ({', '.join(rows)}): {text}{more}"
    if untimed:
        yield f"  needs a GPU for each worker: {', '.join(untimed)} (times, which simulated workers lack)"


def _reads_times(claim: Claim, quantities: Mapping[str, Any]) -> bool:
    """Whether a claim is about times that are measured, which simulated workers do not have."""
    read = [quantities.get(check.quantity) for check in (*claim.checks, *claim.premises)]
    read += [quantities.get(one.quantity) for one in read if isinstance(one, Relative)]
    return any(getattr(one, "clock", "") == "measured" for one in read)


def rows_of(claim: Claim, quantities: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the rows that a claim's checks and premises read, and those that their relative quantities are
    relative to."""
    found: dict[str, None] = {}
    for check in (*claim.checks, *claim.premises):
        found |= dict.fromkeys(check.rows)
        quantity = quantities.get(check.quantity)
        if isinstance(quantity, Relative):
            found[quantity.to] = None
    return tuple(found)


def _timed_here(left: Sequence[Planned]) -> dict[Counts, tuple[float, float]]:
    """Time steps of each kind of run on this CPU; hours, low and high. Raises UserError."""
    kinds = {run.counts: run.job for run in left}
    found = {}
    with Progress("plan", len(kinds)) as progress:
        for counts, job in kinds.items():
            hours = hours_here(job.config)
            found[counts] = hours / EITHER_WAY, hours * EITHER_WAY
            progress.advance(now=f"{job.row} timed")
    return found
