"""What compression is worth on a network: step replays on shaped links, against plain DDP.

make bench-network                      everything, about half an hour on 2 idle cores
make bench-network ARGS="--model resnet18 --rates 100mbit --workers 2 --methods dense,topk1"
make bench-network ARGS=--tables        the tables again, from the points that have been measured

Tables and figures go to reproduced/bench/; --publish writes them to results/bench/ instead.

Each point is kept as it is measured (runs/bench-network/): the same command goes on where it was
stopped, and measures a point again only with --again or when the code of the exchange has changed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from dgc_repro.bench import network_tables
from dgc_repro.bench.command_line import (
    REPOSITORY,
    TimeLeft,
    at_least_one,
    output_of,
    parser,
    run,
    words,
    worker_counts,
)
from dgc_repro.bench.network_points import (
    AGAIN,
    COMPUTE_WORKERS,
    GPU,
    LOOPBACK,
    METHODS,
    MOST_REPEATS,
    NONE,
    OPEN_STEPS,
    PAIRED_BELOW_SECONDS,
    PLAIN,
    WORLD_SECONDS,
    Point,
    code_hash,
    compute_of,
    expected_seconds,
    least_repeats,
    left_out,
    local_seconds,
    places,
)
from dgc_repro.bench.ranks import Ranks, RanksFailed, RanksLate
from dgc_repro.bench.record import MODELS, MOST_WORKERS, Recorded, record
from dgc_repro.bench.replay import JUNCTIONS, TORCH, Case, Compute
from dgc_repro.bench.tables import Machine
from dgc_repro.errors import UserError
from dgc_repro.network.lab import HIGHEST, Lab, check_rates
from dgc_repro.network.units import bits_per_second

RATES = ("100mbit", "1gbit", LOOPBACK)
COMPUTES = (NONE, GPU)
SETTLE_BELOW_SECONDS = 0.5  # steps shorter than this are preceded by one at the new rate
PLAIN_CASE = Case("plain DDP")
SLACK = 4.0  # times what is expected, before a world is given up


@dataclass(frozen=True)
class Options:
    """What is asked for."""

    models: Sequence[str] = tuple(MODELS)
    workers: Sequence[int] = (2, 4)
    rates: Sequence[str] = RATES
    computes: Sequence[str] = COMPUTES
    methods: Sequence[str] = tuple(METHODS)
    junctions: Sequence[str] = JUNCTIONS
    repeats: int | None = None
    minutes: float = 24.0
    again: bool = False
    tables: bool = False
    dry: bool = False
    runs: Path = REPOSITORY / "runs"
    data: Path = REPOSITORY / "data"
    output: Path = REPOSITORY / "reproduced" / "bench"
    overrides: Sequence[str] = ()


@dataclass
class Store:
    """Measured points, one JSON line each; of several of one point the last counts. ``code`` and
    ``torch``: what a point must have been measured with to count."""

    path: Path
    code: str
    torch: str
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.path.is_file():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # a line that was cut by a crash
                row = json.loads(line)
                self.rows[row["key"]] = row

    def has(self, point: Point, recorded: Recorded) -> bool:
        """Whether it was measured as it would be now."""
        row = self.rows.get(point.key)
        return row is not None and self.counts(row, recorded)

    def counts(self, row: Mapping[str, Any], recorded: Recorded) -> bool:
        """Whether a point is of this code and torch, these gradients, this compressor and compute."""
        try:
            compute = compute_of(row["compute"], recorded)
        except ValueError:
            return False
        method = METHODS.get(row["method"])
        now = {
            "code": self.code,
            "torch": self.torch,
            "gradients": recorded.folder.name,
            "compressor": repr(method.compressor if method else None),
            "forward_seconds": compute.forward_seconds,
            "backward_seconds": compute.backward_seconds,
        }
        return now == {name: row.get(name) for name in now}

    def add(self, row: dict[str, Any]) -> None:
        self.rows[row["key"]] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@dataclass(frozen=True)
class Task:
    """A point that is to be measured: one step is expected to take ``expected`` seconds."""

    point: Point
    compute: Compute
    expected: float
    beside: float  # what the paired step of plain DDP takes, 0 where there is none

    @property
    def place(self) -> tuple[str, str]:
        return self.point.rate, self.point.compute

    @property
    def cost(self) -> float:
        return self.expected + self.beside


@dataclass(frozen=True)
class World:
    """Ranks of one model on one kind of links, and what is to be measured there."""

    recorded: Recorded
    workers: int
    shaped: bool
    tasks: Sequence[Task]
    plain: Sequence[Task]

    @property
    def name(self) -> str:
        return f"{self.recorded.model}, {self.workers} workers, {'shaped' if self.shaped else LOOPBACK}"

    def cases(self) -> list[list[Task]]:
        """Tasks by method and junction, in the order in which the cases are opened."""
        by_case: dict[tuple[str, str], list[Task]] = {}
        for task in self.tasks:
            by_case.setdefault((task.point.method, task.point.junction), []).append(task)
        return list(by_case.values())


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure what is missing, print and write the tables; the folder that was written to."""
    options = parsed(arguments)
    machine = Machine.here()
    kept = options.runs / "bench-network" / machine.slug / "points.jsonl"
    store = Store(kept, code_hash(), machine.torch_version)
    recorded = {
        name: record(name, options.runs, options.overrides, data=options.data)
        for name in options.models
    }
    cores = os.cpu_count() or 1
    if not options.tables:
        worlds = plan(options, recorded, store, cores)
        allowance = allowed(worlds, options, cores)
        points = sum(len(world.plain) + len(world.tasks) for world in worlds)
        print(
            f"{points} points in {len(worlds)} worlds of ranks"
            if points
            else "everything asked for is measured (--again measures it again)"
        )
        left = TimeLeft(
            "bench-network", {w.name: duration([w], allowance, options, cores) for w in worlds}
        )
        if options.dry:
            return options.output / machine.slug
        for world in worlds:
            measure(world, allowance, options, store, machine)
            left.done(world.name)
    folder = options.output / machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    known = [
        row
        for row in store.rows.values()
        if row["model"] in recorded and store.counts(row, recorded[row["model"]])
    ]
    if not known:
        raise UserError("nothing has been measured with this code; run without --tables")
    missing = not_measured(of_everything(options, known), recorded, store, cores)
    print(network_tables.write(known, recorded, machine, folder, missing))
    print(f"written to {folder}")
    return folder


def parsed(arguments: Sequence[str] | None) -> Options:
    """The command line. Raises UserError."""
    default = Options()
    lists: dict[str, Collection[str]] = {
        "models": MODELS,
        "methods": METHODS,
        "junctions": JUNCTIONS,
    }
    made = parser(__doc__)
    for name, known in lists.items():
        made.add_argument(
            "--model" if name == "models" else f"--{name}",
            dest=name,
            help=f"some of {','.join(known)}",
        )
    made.add_argument("--rates", help="such as 100mbit,1gbit,loopback")
    made.add_argument("--workers", help=f"such as 2,4; at most {MOST_WORKERS}")
    made.add_argument(
        "--compute", dest="computes", help="none, gpu (an assumed V100's), or a duration as 50ms"
    )
    made.add_argument("--repeats", type=int, help="of every point, in the place of --minutes")
    made.add_argument("--minutes", type=float, default=default.minutes, help="for all of it")
    made.add_argument("--again", action="store_true", help="measure what is known again")
    made.add_argument("--dry-run", dest="dry", action="store_true", help="print the estimate")
    made.add_argument("--tables", action="store_true", help="measure nothing")
    made.add_argument("--runs", type=Path, default=default.runs, help="folder of the points")
    made.add_argument("--data", type=Path, default=default.data, help="folder of data sets")
    made.add_argument(
        "--override", dest="overrides", action="append", help="of the recorded run (model.width=8)"
    )
    given = made.parse_args(arguments)
    found = vars(given) | {"output": output_of(given, "bench")}
    del found["publish"]
    for name, known in lists.items():
        found[name] = words(name, found[name], known)
    for name in ("rates", "computes"):
        found[name] = found[name].split(",") if found[name] else None
    found["workers"] = worker_counts(given.workers) if given.workers else None
    options = replace(
        default, **{name: value for name, value in found.items() if value is not None}
    )
    try:
        for rate in options.rates:
            if rate != LOOPBACK:
                check_rates("rates", [bits_per_second("rates", rate)])
        for compute in options.computes:
            compute_of(compute, Recorded(Path(), "", 0, 0, 0, 0, "", {}))
    except ValueError as error:
        raise UserError(f"--{error}") from error
    if given.repeats is not None:
        at_least_one(given.repeats)
    if not given.minutes > 0:
        raise UserError(f"--minutes: a number above 0, got {given.minutes}")
    return options


def plan(
    options: Options, recorded: Mapping[str, Recorded], store: Store, cores: int
) -> list[World]:
    """All that is asked for and not known yet, the small models first."""
    worlds = []
    for workers in options.workers:
        for model in options.models:
            for shaped in (True, False):
                rates = [rate for rate in options.rates if (rate != LOOPBACK) == shaped]
                world = _world(options, recorded[model], workers, shaped, rates, store, cores)
                if world.tasks or world.plain:
                    worlds.append(world)
    return worlds


def asked_computes(options: Options, workers: int) -> Sequence[str]:
    """With more workers than overlap needs none, unless it is asked for."""
    if options.computes == COMPUTES and workers != COMPUTE_WORKERS:
        return (NONE,)
    return options.computes


def of_everything(options: Options, known: Sequence[Mapping[str, Any]]) -> Options:
    """What the tables are about, whatever the last command asked for: the default, and what is known."""
    default = Options()

    def both(usual: Sequence[Any], column: str) -> list[Any]:
        return list(dict.fromkeys([*usual, *(row[column] for row in known)]))

    return replace(
        options,
        workers=both(default.workers, "workers"),
        rates=both(default.rates, "rate"),
        computes=both(default.computes, "compute"),
        methods=default.methods,
        junctions=default.junctions,
    )


def not_measured(
    options: Options, recorded: Mapping[str, Recorded], store: Store, cores: int
) -> dict[str, list[str]]:
    """Points of what is asked for that have no numbers, by the reason."""
    found: dict[str, list[str]] = {}
    for model, workers, rate, compute in itertools.product(
        options.models, options.workers, options.rates, options.computes
    ):
        place = f"{model}, {workers} workers, {rate}, compute {compute}"
        if (
            compute != NONE
            and workers != COMPUTE_WORKERS
            and not _is_known(store, workers, compute)
        ):
            reason = f"compute is looked at with {COMPUTE_WORKERS} workers"
            found.setdefault(reason, []).append(place)
            continue
        asleep = compute_of(compute, recorded[model])
        reasons: dict[str, list[str]] = {}
        for case in places(options.methods, options.junctions):
            point = Point(model, workers, rate, compute, *case)
            if store.has(point, recorded[model]):
                continue
            expected = expected_seconds(point, recorded[model].values, asleep.seconds, cores)
            reason = left_out(point, expected, asleep.seconds) or "not measured yet"
            label = point.about.label
            shown = label if point.junction == TORCH else f"{label}, {point.junction}"
            reasons.setdefault(reason, []).append(shown)
        for reason, cases in reasons.items():
            found.setdefault(reason, []).append(f"{place}: {'; '.join(cases)}")
    return found


def _is_known(store: Store, workers: int, compute: str) -> bool:
    rows = store.rows.values()
    return any((row.get("workers"), row.get("compute")) == (workers, compute) for row in rows)


def _world(
    options: Options,
    recorded: Recorded,
    workers: int,
    shaped: bool,
    rates: Sequence[str],
    store: Store,
    cores: int,
) -> World:
    def tasks(method: str, junction: str) -> Iterator[Task]:
        """Of a case, at all rates and computes, where it is worth its time."""
        for rate, compute in itertools.product(rates, asked_computes(options, workers)):
            point = Point(recorded.model, workers, rate, compute, method, junction)
            asleep = compute_of(compute, recorded)
            beside = Point(recorded.model, workers, rate, compute, PLAIN, TORCH)
            expected, plain = (
                expected_seconds(one, recorded.values, asleep.seconds, cores)
                for one in (point, beside)
            )
            if method == PLAIN or not left_out(point, expected, asleep.seconds):
                pairs = method != PLAIN and plain <= PAIRED_BELOW_SECONDS
                yield Task(point, asleep, expected, plain if pairs else 0.0)

    def known(task: Task) -> bool:
        return store.has(task.point, recorded) and not options.again

    asked = (tasks(*case) for case in places(options.methods, options.junctions))
    found = [task for task in itertools.chain(*asked) if not known(task)]
    # Plain DDP stands where something is compared with it, and where nothing else was asked for. What is
    # not paired with it is divided by its steps of the same session.
    compared = {task.place for task in found}
    unpaired = {task.place for task in found if not task.beside}
    plain = [
        task
        for task in tasks(PLAIN, TORCH)
        if (task.point.compute == NONE or task.place in compared)
        and (task.place in unpaired or not known(task))
    ]
    return World(recorded, workers, shaped, found, plain)


def repeats_of(task: Task, allowance: float, options: Options) -> int:
    """Of a point that may take ``allowance`` seconds."""
    if options.repeats is not None:
        return options.repeats
    least = least_repeats(task.expected, task.point.workers)
    return max(least, min(MOST_REPEATS, int(allowance / task.cost)))


def duration(worlds: Sequence[World], allowance: float, options: Options, cores: int) -> float:
    """About how many seconds all of it takes."""
    total = 0.0
    for world in worlds:
        total += WORLD_SECONDS
        step = local_seconds(world.workers, world.recorded.values, cores)
        total += OPEN_STEPS * step * (len(world.cases()) + 1)
        for task in (*world.plain, *world.tasks):
            settling = task.expected if task.expected < SETTLE_BELOW_SECONDS else 0.0
            steps = repeats_of(task, allowance, options)
            total += steps * task.cost + settling
    return total


def allowed(worlds: Sequence[World], options: Options, cores: int) -> float:
    """Seconds a point, so that all of it takes about ``options.minutes``."""
    low, high = 0.0, 60.0
    for _ in range(30):
        middle = (low + high) / 2
        if duration(worlds, middle, options, cores) > 60 * options.minutes:
            high = middle
        else:
            low = middle
    return low


def measure(
    world: World, allowance: float, options: Options, store: Store, machine: Machine
) -> None:
    """One world, until nothing of it is missing. A case that ends its ranks is noted, and the others go
    on with new ones; one that is only late is asked for again by the next call."""
    left = world.cases() or [[]]
    plain_left = list(world.plain)
    session = Session()
    while left:
        with _links(world) as links, Ranks(world.workers, links, timeout_seconds=600) as ranks:
            bench = _Bench(world, allowance, options, store, machine, session, links, ranks)
            ranks.load(world.recorded)
            bench.open(PLAIN_CASE)
            for task in plain_left:
                bench.point(task)
            plain_left = []
            try:
                while left:
                    bench.case(left[0])
                    left.pop(0)
            except RanksLate as error:
                case = left.pop(0)[0].point.case.key
                print(f"{world.name}: {case} not measured: {error}", flush=True)
            except RanksFailed as error:
                tasks = left.pop(0)
                case = tasks[0].point.case.key
                print(f"{world.name}: {case} does not run: {error}", flush=True)
                bench.failed(tasks, str(error))


@contextlib.contextmanager
def _links(world: World) -> Iterator[Lab | None]:
    if not world.shaped:
        yield None
        return
    with Lab([HIGHEST] * world.workers, name="bench-network") as lab:
        yield lab


@dataclass
class Session:
    """What a world has measured so far, also where it had to start ranks anew: ``plain``, plain DDP's
    steps in seconds by rate and compute, and ``done``, the keys of points."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    plain: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)


@dataclass
class _Bench:
    """A world that runs, and where its numbers go."""

    world: World
    allowance: float
    options: Options
    store: Store
    machine: Machine
    session: Session
    links: Lab | None
    ranks: Ranks

    def open(self, case: Case) -> None:
        self._shape(HIGHEST)
        self.ranks.open(case)

    def case(self, tasks: Sequence[Task]) -> None:
        """All points of a case."""
        opens = [task.point.case for task in tasks[:1] if task.point.method != AGAIN]
        for case in opens:
            self.open(case)
        for task in tasks:
            self.point(task)
        for case in opens:
            self.ranks.close_case(case)

    def point(self, task: Task) -> None:
        """Measure one, and keep it."""
        if task.point.rate != LOOPBACK:
            self._shape(bits_per_second("rates", task.point.rate))
        repeats = repeats_of(task, self.allowance, self.options)
        settle = int(task.expected < SETTLE_BELOW_SECONDS)
        found = self.ranks.steps(
            task.point.case,
            task.compute,
            repeats=repeats,
            settle=settle,
            beside=PLAIN_CASE if task.beside else None,
            seconds=60 + SLACK * (repeats + settle) * task.cost,
        )
        if task.point.method == PLAIN:
            self.session.plain[task.place] = found.seconds
        beside = [] if task.beside else self.session.plain.get(task.place, [])
        self._keep(task, {**asdict(found), "plain_seconds": beside})
        self.session.done.add(task.point.key)
        print(f"{task.point.key}: {1e3 * median(found.seconds):.0f} ms ({repeats})", flush=True)

    def failed(self, tasks: Sequence[Task], reason: str) -> None:
        """Keep that a case does not run, in the place of older numbers too."""
        for task in tasks:
            if task.point.key not in self.session.done:
                self._keep(task, {"reason": reason})

    def _shape(self, rate: float) -> None:
        if self.links is not None and self.links.rates[0] != rate:
            self.links.set_rates([rate] * self.world.workers)

    def _keep(self, task: Task, found: dict[str, Any]) -> None:
        point = task.point
        self.store.add(
            {
                "key": point.key,
                **asdict(point),
                "label": point.about.label,
                "compressor": repr(point.about.compressor),
                "forward_seconds": task.compute.forward_seconds,
                "backward_seconds": task.compute.backward_seconds,
                "code": self.store.code,
                "gradients": self.world.recorded.folder.name,
                "session": self.session.name,
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "busy_cores": self.machine.busy_cores,
                "torch": self.store.torch,
                **found,
            }
        )


def command() -> None:
    """Entry point of scripts/bench_network.py."""
    run("bench-network", main, "the same command goes on")
