"""What compression is worth on a network: step replays on shaped links, against plain DDP.

make bench-network                      everything, about half an hour on 2 idle cores
make bench-network ARGS="--model resnet18 --rates 100mbit --workers 2 --methods dense,topk1"

Tables and figures go to reproduced/bench/; --publish writes them to results/bench/ instead.

Each point is kept as it is measured (runs/bench-network/, a file for each version of the code and of torch):
the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from dgc_repro.bench import network_tables
from dgc_repro.bench.command_line import (
    REPOSITORY,
    folder_of,
    listed,
    one_of,
    parser,
    run,
    whole,
    worker_counts,
)
from dgc_repro.bench.network_points import (
    AGAIN,
    GPU,
    LOOPBACK,
    METHODS,
    NONE,
    OPEN_STEPS,
    PLAIN,
    WORLD_SECONDS,
    Point,
    Task,
    code_hash,
    compute_of,
    local_seconds,
    repeats_of,
    tasks,
)
from dgc_repro.bench.record import MODELS, Recorded, record
from dgc_repro.bench.replay import SPANS, Case, Replay
from dgc_repro.bench.rounds import Steps, rounds
from dgc_repro.bench.runner import BYTES, WARMUP_STEPS, Runner
from dgc_repro.bench.tables import Machine
from dgc_repro.bench.world import RanksFailed, RanksLate, is_first, on_ranks, set_rate
from dgc_repro.errors import UserError
from dgc_repro.network.lab import HIGHEST, Lab, check_rates
from dgc_repro.network.units import bits_per_second
from dgc_repro.progress import Progress, TimeLeft, announce

SETTLE_BELOW_SECONDS = 0.5  # steps shorter than this are preceded by one at the new rate
BESIDE, OWN = "beside", "own"


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Raises UserError."""
    made = parser(__doc__)
    lists: Mapping[str, tuple[Callable[[str], Any], Sequence[Any], str]] = {
        "--model": (one_of(MODELS), tuple(MODELS), f"some of {','.join(MODELS)}"),
        "--methods": (one_of(METHODS), tuple(METHODS), f"some of {','.join(METHODS)}"),
        "--overlap": (yes_no, (True, False), "true, false or both: exchange.overlap"),
        "--rates": (rate, ("100mbit", "1gbit", LOOPBACK), "such as 100mbit,1gbit,loopback"),
        "--compute": (compute, (NONE, GPU), "none, gpu (an assumed V100's), or as 50ms"),
    }
    for name, (read, default, words) in lists.items():
        made.add_argument(name, type=listed(read), default=default, help=words)
    made.add_argument("--workers", type=worker_counts, default=[2, 4], help="as 2,4")
    made.add_argument("--repeats", type=whole, help="steps of every point")
    given = made.parse_args(arguments)
    given.methods = list(dict.fromkeys((PLAIN, AGAIN, *given.methods)))
    return given


def yes_no(text: str) -> bool:
    """true or false."""
    return one_of(("true", "false"))(text) == "true"


def rate(text: str) -> str:
    """A rate that a lab can have, or loopback."""
    if text != LOOPBACK:
        check_rates("rates", [bits_per_second("rates", text)])
    return text


def compute(text: str) -> str:
    """none, gpu, or a duration."""
    compute_of(text, Recorded(Path(), "", 0, 0, 0, 0, "", {}))
    return text


@dataclass
class Store:
    """Measured points, one JSON line each; of several of one point the last counts."""

    path: Path
    rows: dict[Point, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> None:
        """Read the file again: rank 0 writes to it."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        for line in lines:
            with contextlib.suppress(ValueError):  # a line that was cut by a crash
                row = json.loads(line)
                self.rows[Point.of(row)] = row

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a point."""
        keep(self.path, row)
        self.rows[Point.of(row)] = dict(row)

    def counts(self, point: Point, recorded: Recorded) -> bool:
        """Whether a point was measured with these gradients."""
        return self.rows.get(point, {}).get("gradients") == recorded.folder.name


def keep(path: Path, row: Mapping[str, Any]) -> None:
    """Add a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


@dataclass(frozen=True)
class World:
    """Ranks of one model on one kind of links, and what is to be measured there."""

    recorded: Recorded
    workers: int
    shaped: bool
    tasks: Sequence[Task]

    @property
    def name(self) -> str:
        return f"{self.recorded.model}, {self.workers} workers, {'shaped' if self.shaped else LOOPBACK}"

    def seconds(self, repeats: int | None, cores: int) -> float:
        """About how long it takes."""
        cases = len({task.point.case.key for task in self.tasks})
        opened = OPEN_STEPS * local_seconds(self.workers, self.recorded.values, cores) * cases
        steps = (task.seconds(repeats or repeats_of(task)) for task in self.tasks)
        return WORLD_SECONDS + opened + sum(steps)


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure what is missing, print and write the tables; the folder that was written to."""
    given = parsed(arguments)
    machine = Machine.here()
    name = f"{code_hash()}-torch{machine.torch_version}.jsonl"
    store = Store(REPOSITORY / "runs" / "bench-network" / machine.slug / name)
    recorded = {name: record(name, REPOSITORY / "runs") for name in given.model}
    cores = os.cpu_count() or 1
    worlds = list(plan(given, recorded, store, cores))
    expected = [world.seconds(given.repeats, cores) for world in worlds]
    if worlds:
        print(f"{sum(len(world.tasks) for world in worlds)} points in {len(worlds)} worlds")
        announce("bench-network", sum(expected))
    else:
        print(f"everything asked for is measured ({store.path})")
    left = TimeLeft(sum(expected))
    for number, (world, seconds) in enumerate(zip(worlds, expected, strict=True), start=1):
        print(f"[{number}/{len(worlds)}] {world.name} {left.words()}".rstrip(), flush=True)
        measure(world, given.repeats, store, machine)
        left.advance(seconds)
    known = [
        row
        for point, row in store.rows.items()
        if point.model in recorded and store.counts(point, recorded[point.model])
    ]
    if not known:
        raise UserError("--rates: every step that is asked for takes too long, nothing is measured")
    missing = not_measured(parsed(["--model", ",".join(recorded)]), recorded, store, cores)
    folder = folder_of(given, "bench", machine)
    print(network_tables.write(known, recorded, machine, folder, missing))
    print(f"written to {folder}")
    return folder


def plan(
    given: argparse.Namespace, recorded: Mapping[str, Recorded], store: Store, cores: int
) -> Iterator[World]:
    """All that is asked for and not known yet, and plain DDP at each of its places."""
    for workers, own in itertools.product(given.workers, recorded.values()):
        found = [task for task in tasks(given, own, workers, cores) if not task.left_out]
        new = {
            task.point
            for task in found
            if task.point.method != PLAIN and not store.counts(task.point, own)
        }
        places = {point.place for point in new}
        for shaped in (True, False):
            todo = [
                task
                for task in found
                if (task.point.rate != LOOPBACK) == shaped
                and (
                    task.point in new or (task.point.method == PLAIN and task.point.place in places)
                )
            ]
            if todo:
                yield World(own, workers, shaped, todo)


def not_measured(
    asked: argparse.Namespace, recorded: Mapping[str, Recorded], store: Store, cores: int
) -> dict[str, list[str]]:
    """Points that have no numbers, by the reason."""
    found: dict[str, dict[str, list[str]]] = {}
    for own, workers in itertools.product(recorded.values(), asked.workers):
        for task in tasks(asked, own, workers, cores):
            if task.point.method != PLAIN and not store.counts(task.point, own):
                places = found.setdefault(task.left_out or "not measured yet", {})
                places.setdefault(task.point.where, []).append(task.point.exchange)
    return {
        reason: [f"{where}: {'; '.join(cases)}" for where, cases in places.items()]
        for reason, places in found.items()
    }


def measure(world: World, repeats: int | None, store: Store, machine: Machine) -> None:
    """All tasks of a world. A case that ends its ranks is kept as one that does not run; one that is only
    late is left for the next call; the others go on with new ranks."""
    left = list(world.tasks)
    rates = [HIGHEST, *(bits_per_second("rates", r) for r in _rates(world.tasks) if world.shaped)]
    while any(task.point.method != PLAIN for task in left):
        stamp = {
            "code": code_hash(),
            "session": uuid.uuid4().hex[:8],
            "busy_cores": machine.busy_cores,
            "torch": machine.torch_version,
        }
        try:
            with _links(world) as lab:
                on_ranks(
                    *(on_rank, world.recorded, left, repeats, store.path, stamp),
                    workers=world.workers,
                    lab=lab,
                    rates=rates,
                )
            reason = ""
        except RanksFailed as error:
            reason, late = str(error), isinstance(error, RanksLate)
        store.read()
        done = {p for p, row in store.rows.items() if row.get("session") == stamp["session"]}
        if not reason:
            return
        case = next(task.point.case.key for task in left if task.point not in done)
        if case == METHODS[PLAIN].label:
            raise RanksFailed(reason)
        print(f"{world.name}: {case} {'not measured' if late else 'does not run'}: {reason}")
        for task in left:
            point = task.point
            if point.case.key == case and point not in done and not late:
                store.add(_record(point, world.recorded) | stamp | {"reason": reason})
        left = [
            task
            for task in left
            if task.point.method == PLAIN
            or (task.point not in done and task.point.case.key != case)
        ]


def _rates(tasks: Sequence[Task]) -> list[str]:
    return list(dict.fromkeys(task.point.rate for task in tasks))


@contextlib.contextmanager
def _links(world: World) -> Iterator[Lab | None]:
    if not world.shaped:
        yield None
        return
    with Lab([HIGHEST] * world.workers, name="bench-network") as lab:
        yield lab


def on_rank(
    recorded: Recorded,
    tasks: Sequence[Task],
    repeats: int | None,
    path: Path,
    stamp: Mapping[str, Any],
) -> None:
    """Measure the tasks, case by case; rank 0 keeps each point when it is measured. Cases are opened at the
    highest rate: warm-up steps need not crawl through a slow link."""
    gradients = recorded.gradients(dist.get_rank())
    rates = _rates(tasks)
    plain = opened(tasks[0].point.case, gradients, recorded)
    plain_seconds: dict[Any, list[float]] = {}
    expected = [task.seconds(repeats or repeats_of(task)) for task in tasks]
    with Progress("bench-network", sum(expected), quiet=not is_first()) as progress:
        for _, of_case in itertools.groupby(tasks, lambda task: task.point.case.key):
            runner = plain
            for task in of_case:
                point = task.point
                if runner is plain and point.method != PLAIN:
                    set_rate(0)
                    runner = opened(point.case, gradients, recorded)
                set_rate(1 + rates.index(point.rate))
                plain.model.compute = runner.model.compute = task.compute
                if task.expected < SETTLE_BELOW_SECONDS:
                    runner.step()
                ways = {BESIDE: plain.step} if task.paired else {}
                steps = rounds({**ways, OWN: runner.step}, repeats or repeats_of(task))
                seconds = steps[OWN]["seconds"].tolist()
                if point.method == PLAIN:
                    plain_seconds[point.place] = seconds
                unpaired = [] if task.paired else plain_seconds.get(point.place, [])
                if dist.get_rank() == 0:
                    found = as_record(steps) | {"plain_seconds": unpaired}
                    keep(path, {**_record(point, recorded), **stamp, **found})
                    where = f"{point.where}: {point.exchange}"
                    shown = f"{where}: {1e3 * median(seconds):.0f} ms ({len(seconds)})"
                    progress.advance(task.seconds(repeats or repeats_of(task)), shown)
            if runner is not plain:
                runner.close()
            del runner
            gc.collect()


def opened(case: Case, gradients: Mapping[str, torch.Tensor], recorded: Recorded) -> Runner:
    """A case after its warm-up steps."""
    if case.compressor is None:  # its means are written into the gradients that it is given
        gradients = {name: gradient.clone() for name, gradient in gradients.items()}
    runner = Runner(case, Replay(gradients, recorded.multiply_adds))
    for _ in range(WARMUP_STEPS):
        runner.step()
    return runner


def _record(point: Point, recorded: Recorded) -> dict[str, Any]:
    asleep = compute_of(point.compute, recorded)
    return {
        **asdict(point),
        "label": point.about.label,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "gradients": recorded.folder.name,
        "forward_seconds": asleep.forward_seconds,
        "backward_seconds": asleep.backward_seconds,
    }


def as_record(steps: Steps) -> dict[str, Any]:
    """A point's numbers: lists have an entry a step, bytes and calls are a step's mean.

    ``beside_seconds``: of the step of plain DDP right before each, if there was one; ``payload_bytes``,
    ``wire_bytes``: of the gradient exchange; ``total_wire_bytes``: with the signals; ``counter_bytes``: sent
    by a lab's interface."""
    own = steps[OWN]
    lists = [*(f"{name}seconds" for name in ("", "processor_", "exposed_")), *SPAN_COLUMNS]
    means = own.mean()
    return {
        **{name: own[name].tolist() for name in lists},
        "beside_seconds": steps.get(BESIDE, pd.DataFrame({"seconds": []}))["seconds"].tolist(),
        **{name: float(means[name]) for name in BYTES},
        "counter_bytes": float(means["counter_bytes"]) or None,
        "calls": means.filter(like="calls ").rename(lambda name: name.split()[1]).to_dict(),
    }


SPAN_COLUMNS = tuple(f"{span}_ms" for span in SPANS)


def command() -> None:
    """Entry point of scripts/bench_network.py."""
    run("bench-network", main, "the same command goes on")
