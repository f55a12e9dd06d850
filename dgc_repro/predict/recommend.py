"""``recommend``: which setting to use for a model on a network, at most so much worse than dense training.

``python -m dgc_repro recommend network=ethernet_1gbit workers=8 model=resnet101 max_loss=0.5`` answers in
seconds: it reads the published benchmark and models the rest. ``method=topk`` shows what one method is
predicted to take. ``measure=true`` times the model and the first settings on this machine (measure.py), and
with ``compressor=`` a method of the user's beside them.

Loss        measured on the benchmark's slim model, with its interval; for another model an extrapolation
Payload     counted in the benchmark's runs, their warm-ups included, and scaled to the sizes of the model
Compress    and decompress, on a GPU: modelled from counted launches, waits and bytes (a lower bound). On a
            CPU: measured in the benchmark and scaled
Compute     given (``compute_ms``), or counted operations over the stated rate of a GPU
Network     modelled (network/cost.py). Communication is hidden behind backward where buckets can overlap
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from dgc_repro.bench.modelled import BATCH, GPUS, USED, compute_seconds, exchange_seconds
from dgc_repro.errors import UserError
from dgc_repro.launch import cli_args
from dgc_repro.launch.paths import add_conf_dirs, conf_dirs_apart, option, options
from dgc_repro.launch.typed import nearest
from dgc_repro.names import conf_dir
from dgc_repro.network.cost import Calls, Costs, seconds_of
from dgc_repro.network.profile import Network
from dgc_repro.paper import facts, pool
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.classes import Shown, judge
from dgc_repro.paper.benchmark.workloads import DENSE, TUNES, cost, workloads
from dgc_repro.paper.page import console_of_width, grid
from dgc_repro.paper.records import Run
from dgc_repro.predict.known import MODELS, Model, model_of, network_of
from dgc_repro.results import RESULTS

POOL = "benchmark/small"
CPU = "cpu"
UNDECIDED = " ?"
"""After a loss that is not shown to be at most the allowed one."""
METHOD = ("compressor", "wrap", "wrapper", "policy")
"""Keys of a run that make up a method."""
OTHER_OPTIMIZER = ("adam", "onebit_adam", "demo", "signsgd", "muon", "muloco", "dion")
"""Name prefixes of settings whose loss is not an effect of compression alone."""
MEASURED = 3
"""Settings that ``measure=true`` times."""
YOURS = "yours"
"""The row of a method that is given as a run's."""


def one_of_devices(key: str, text: str) -> str:
    """A GPU of the table, or cpu."""
    if text.lower() not in (*GPUS, CPU):
        raise UserError(f"{key}: one of {', '.join((*GPUS, CPU))}, got {text!r}")
    return text.lower()


KEYS: cli_args.Keys = {
    "network": (
        *(cli_args.some_text, None),
        "A name of conf/network, a file, or what calibrate wrote. Also network.rate=100mbit, and other keys "
        "of a profile.",
    ),
    "workers": (cli_args.workers_range, [8], "8, or several: 2,4,8 or doublings as 2..256."),
    "model": (cli_args.some_text, "resnet101", f"One of {', '.join(MODELS)}, at full size."),
    "parameters": (cli_args.positive, None, "Of a model like this one that is larger or smaller."),
    "max_loss": (cli_args.from_zero, 0.5, "The allowed loss: points of accuracy, % of perplexity."),
    "method": (cli_args.some_text, None, "Only settings with this in their names, at any loss."),
    "device": (one_of_devices, "v100", f"What workers compute on: {', '.join(GPUS)}, or {CPU}."),
    "compute_ms": (
        *(cli_args.positive, None),
        "Forward, backward and optimizer of a step; without it modelled for the GPU.",
    ),
    "batch": (cli_args.count, BATCH, "Samples a worker and step, for the modelled compute."),
    "measure": (
        *(cli_args.yes_no, False),
        "Time the model and the first settings on this machine, in minutes. Then other keys of a run are "
        "allowed, such as dataset=cifar10, or compressor=, wrap= and policy= for a method of your own.",
    ),
    "paths.runs": (cli_args.some_text, "runs", "Where calibrate has written networks."),
}


@dataclass(frozen=True)
class Question:
    """A model on a device and a network, seconds of its forward and backward, and the loss that is
    allowed. ``method``: a part of the names of the only settings to look at."""

    model: Model
    network: Network
    device: str
    compute: float
    max_loss: float
    method: str | None


@dataclass(frozen=True)
class Row:
    """A setting among so many workers; seconds. ``run``: the first of its runs; ``loss``: what its seeds
    show, None for dense training, of no seeds for a method that the benchmark does not have; ``is_shown``:
    they show that it is at most the allowed one; ``exchange``: compress and decompress; ``hidden``:
    communication behind backward."""

    run: Run
    loss: Shown | None
    is_shown: bool
    calls: Calls
    compute: float
    exchange: float
    communicate: float
    hidden: float

    @property
    def step(self) -> float:
        return self.compute + self.exchange + self.communicate - self.hidden


class Benchmark:
    """The published runs of the workload that is like the model, and what they show. Raises UserError where
    there are none."""

    def __init__(self, name: str, results: Path = RESULTS) -> None:
        place = results / POOL
        pages = pool.records(place)
        if "methods" not in pages:
            raise UserError(
                f"results/{POOL} is not here (no {pool.VERDICTS_FILE}); recommend "
                f"needs a clone of the repository"
            )
        every = pages["methods"]["runs"]
        own = [run for run in every if f"-{name}." in run and TUNES not in run]
        self.runs: Sequence[Run] = pool.read(place, own)
        self.workload = workloads()[name]
        dense = {run.seed: run for run in self.runs if run.method == DENSE}
        losses: dict[str, list[float]] = {}
        for run in self.runs:
            if run.seed in dense:
                losses.setdefault(run.row, []).append(cost(run, dense[run.seed]))
        self.judged = judge(losses, self.workload)
        counts = speed.counts(results)
        self._counted = {} if counts is None else _by_method(counts, self.workload.full_size)
        self._work = speed.Workload(self.runs)
        self._first = {run.method: run for run in sorted(self.runs, key=lambda run: -run.seed)}

    @property
    def dense(self) -> Run:
        """Dense training."""
        return self._first[DENSE]

    def rows(self, asked: Question, workers: int) -> tuple[list[Row], list[str]]:
        """A row a setting, dense training first; and the names of those left out: they use another
        optimizer, change with the steps, or nobody has counted them."""
        try:
            costs = Costs(asked.network, workers)
        except ValueError as error:
            raise UserError(f"network.{error}") from error
        good = self.judged.at_most(asked.max_loss)
        rows, left_out = [], []
        for name, run in sorted(self._first.items(), key=lambda item: item[0] != DENSE):
            exchange = None if _changes(run) else self._exchange(asked, run, workers)
            if exchange is None:
                left_out.append(name)
                continue
            calls = speed.calls_at(run, workers)
            calls = speed.enlarged(
                run, calls, self._work.parameters, self._work.vectors, asked.model.sizes
            )
            lost = None if name == DENSE else self.judged.shown[run.row]
            communicate = seconds_of(calls, costs)
            most = speed.BACKWARD * asked.compute if speed.can_overlap(run) else 0.0
            rows.append(
                Row(
                    run, lost, lost is None or run.row in good, calls,
                    asked.compute, exchange, communicate, min(communicate, most),
                )
            )  # fmt: skip
        return rows, sorted(left_out)

    def _exchange(self, asked: Question, run: Run, workers: int) -> float | None:
        """Seconds of compress and decompress; None where they were not counted."""
        own = asked.model.sizes.parameters
        if asked.device == CPU:
            step = self._work.step(run, workers)
            return float(own / self._work.parameters * (step.compress + step.decompress))
        counted = self._counted.get(run.method)
        if counted is None:
            return None
        full = MODELS[self.workload.full_size].sizes.parameters
        return exchange_seconds(counted, own / full, GPUS[asked.device])


def _by_method(counts: pd.DataFrame, full_size: str) -> dict[str, dict[str, float]]:
    own = counts[(counts["model"] == full_size) & counts["launches"].notna()]
    lines = own.set_index("method")[["launches", "syncs", "touched_mb"]].iterrows()
    return {str(method): dict(line) for method, line in lines}


def _changes(run: Run) -> bool:
    """Whether the setting changes with the steps by more than a plan, or its optimizer is not SGD."""
    return (
        run.method.startswith(OTHER_OPTIMIZER)
        or run.setting("train.local_steps", 1) > 1
        or speed.policy_of(run.config) not in speed.PLANNED
    )


def recommend(arguments: Sequence[str]) -> None:
    """Answer on the terminal. Raises UserError."""
    added, arguments = conf_dirs_apart(arguments)
    add_conf_dirs(added)
    own, overrides = _apart(arguments)
    settings, _ = cli_args.read(own, "recommend", KEYS, ())
    asked, measured = question(settings, overrides), settings["measure"]
    benchmark = Benchmark(asked.model.workload)
    workers = settings["workers"]
    rows, left_out = benchmark.rows(asked, workers[-1])
    rows, others = chosen(rows, asked)
    if measured:
        from dgc_repro.predict.measure import timed

        gathered = [row for row in rows if row.run.setting("exchange.aggregation") == speed.GATHER]
        rows = timed(gathered[: MEASURED + 1], settings, overrides, workers[-1], asked.network)
    rows = sorted(rows, key=lambda row: row.step)
    console = console_of_width()
    for line in head(asked, settings, measured):
        console.print(line, soft_wrap=True)
    console.print(table(rows, workers[-1]))
    best = next(row for row in rows if row.is_shown)
    if len(workers) > 1:
        console.print(by_workers(benchmark, asked, workers, [best, rows[0]]))
    for line in answer(rows, best, benchmark, asked):
        console.print(line, soft_wrap=True, markup=False)
    if others:
        console.print(f"mean loss above {asked.max_loss:g}: {len(others)} settings", soft_wrap=True)
    why = "another optimizer, a setting that changes with the steps, or not counted for GPUs"
    console.print(f"left out ({why}): {', '.join(left_out) or 'none'}", soft_wrap=True)


def _apart(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Own arguments, and those of the network and of a run."""
    measured = any(one.replace(" ", "").lower() == "measure=true" for one in arguments)
    own: list[str] = []
    others: list[str] = []
    for one in arguments:
        key = one.partition("=")[0]
        if key.split(".")[0] in METHOD and not measured:
            raise UserError(
                f"{key}: recommend chooses among the benchmark's settings; name some with method=, such as "
                "method=topk, or time a method of your own with measure=true"
            )
        is_other = key.startswith("network.") or (measured and "=" in one and key not in KEYS)
        (others if is_other else own).append(one)
    return own, others


def question(settings: Mapping[str, Any], overrides: Sequence[str]) -> Question:
    """What the settings ask. Raises UserError."""
    pairs = (one.partition("=") for one in overrides if one.startswith("network."))
    profile = {key: text for key, _, text in pairs}
    if settings["network"]:
        profile["network"] = settings["network"]
    network = network_of(profile, Path(settings["paths.runs"]))
    model = model_of(settings["model"], settings["parameters"])
    if settings["compute_ms"] is not None:
        seconds = settings["compute_ms"] / 1e3
    elif settings["device"] != CPU:
        seconds = compute_seconds(model.gflop, settings["batch"], GPUS[settings["device"]])
    elif settings["measure"]:
        seconds = 0.0  # until it is measured
    else:
        raise UserError("compute_ms: give it for device=cpu, or let measure=true measure it")
    return Question(
        model, network, settings["device"], seconds, settings["max_loss"], settings["method"]
    )


def chosen(rows: Sequence[Row], asked: Question) -> tuple[list[Row], list[Row]]:
    """Dense training and the settings that are asked for, those whose loss is shown first, then the shortest
    step; and those whose mean loss is larger. Raises UserError for a method that has no setting."""
    dense, *others = rows
    if asked.method is not None:
        own = [row for row in others if asked.method in row.run.method]
        if not own and asked.method in options("compressor"):
            raise UserError(
                f"method: with {asked.model.samples} the published benchmark has no runs of "
                f"{asked.method}, so its loss is not known; "
                f"measure=true compressor={asked.method} times its step beside the others"
            )
        if not own:
            names = [row.run.method for row in others]
            raise UserError(
                f"method: no setting of {asked.method!r}; {nearest(asked.method, names)}"
            )
        return [dense, *sorted(own, key=lambda row: row.step)], []
    good = [row for row in others if row.is_shown or _mean(row) <= asked.max_loss]
    good.sort(key=lambda row: (not row.is_shown, row.step))
    return [dense, *good], [row for row in others if row not in good]


def _mean(row: Row) -> float:
    return 0.0 if row.loss is None else row.loss.mean


def head(asked: Question, settings: Mapping[str, Any], measured: bool) -> list[str]:
    """What each number is: measured, modelled, extrapolated."""
    model = asked.model
    batch = f"{settings['batch']} {model.samples}"
    rate = f"{USED:.0%} of the stated float32 rate of {asked.device.upper()}"
    compute = f"modelled: counted operations for a batch of {batch}, at {rate}"
    exchange = f"modelled for {asked.device.upper()} from counted launches, waits and bytes (a lower bound)"
    if asked.device == CPU:
        exchange = "measured in the benchmark on a slim model, scaled to this one's parameters"
    if measured:
        compute, exchange = "measured here", "measured here with this model's gradients"
    if settings["compute_ms"]:
        compute = "given"
    is_known = settings["compute_ms"] or not measured  # a measured time is in the table
    name = settings["model"]
    return [
        f"{name}, {model.sizes.parameters / 1e6:.4g} M parameters",
        f"compute {1e3 * asked.compute:.3g} ms, {compute}" if is_known else f"compute: {compute}",
        f"compress and decompress: {exchange}",
        "communicate: modelled, hidden behind backward where buckets can overlap; "
        f"{asked.network.source or 'rates as given'}",
        "payload: " + ("measured here" if measured else
                       "counted in the benchmark with its warm-ups, scaled to this model (extrapolated)"),
        "loss: measured in the benchmark on a slim model, 95 % interval; for your model an extrapolation",
    ]  # fmt: skip


def table(rows: Sequence[Row], workers: int) -> Table:
    """Fastest first."""
    dense = next(row for row in rows if row.loss is None)
    headings = ["setting", "loss", "95 %\ninterval", "payload\nMB", "compress +\ndecompress ms"]
    headings += ["communicate\nms", "step\nms", "x dense"]
    cells: list[list[str]] = []
    for row in rows:
        loss = [f"{_mean(row):.2f}" + ("" if row.is_shown else UNDECIDED)]
        loss += ["-" if row.loss is None else row.loss.interval]
        if row.loss is not None and not row.loss.n:
            loss = ["not known", "-"]
        sent = sum(size for _, size in row.calls.values()) / 1e6
        numbers = (sent, *(1e3 * time for time in (row.exchange, row.communicate, row.step)))
        cells.append([row.run.method, *loss, *map(_short, numbers), f"{dense.step / row.step:.2f}"])
    return grid(f"{workers} workers, fastest first", headings, cells)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def by_workers(
    benchmark: Benchmark, asked: Question, workers: Sequence[int], shown: Sequence[Row]
) -> Table:
    """Milliseconds of a step of dense training and of some settings."""
    names = [DENSE, *dict.fromkeys(row.run.method for row in shown if row.loss)]
    cells = []
    for number in workers:
        steps = {row.run.method: 1e3 * row.step for row in benchmark.rows(asked, number)[0]}
        cells.append([str(number), *(_short(steps[name]) for name in names)])
    return grid("Milliseconds of a step", ["workers", *names], cells)


def answer(rows: Sequence[Row], best: Row, benchmark: Benchmark, asked: Question) -> Iterable[str]:
    """The fastest setting that is shown to lose no more; the fastest undecided one, if that is faster."""
    dense = next(row for row in rows if row.loss is None)
    unit = benchmark.workload.unit_in_words
    yield (
        f"{UNDECIDED.strip()}: the seeds do not show that the loss is at most {asked.max_loss:g} {unit} "
        "(moderated t, Holm's correction over the benchmark's settings)"
    )
    if best.loss is None:
        yield f"no faster setting is shown to lose at most {asked.max_loss:g} {unit}: train uncompressed"
    else:
        yield f"fastest that is shown to lose no more, {dense.step / best.step:.2f} times as fast as dense:"
        yield from _typed(best, benchmark.dense)
    first = next(row for row in rows if row.loss is None or row.loss.n)
    if not first.is_shown:
        yield f"faster, {dense.step / first.step:.2f} times as fast as dense, but undecided:"
        yield from _typed(first, benchmark.dense)
    yield (
        f"The losses are those of {facts.model_text(benchmark.dense)}, {facts.data_text(benchmark.runs)}, "
        f"{facts.world_text(benchmark.dense)} (results/{POOL}). Train with the setting and with dense before "
        "you rely on it."
    )


def _typed(row: Row, dense: Run) -> Iterable[str]:
    overlap = " exchange.overlap=true" if row.hidden else ""
    yield f"  {command_of(row.run)}{overlap}"
    yield (
        f"  (the benchmark's rate: {row.run.setting('optimizer.lr')}, of dense training "
        f"{dense.setting('optimizer.lr')}; tune it for your model)"
    )


def command_of(run: Run) -> str:
    """The overrides of a run's method, as they are typed."""
    files = conf_dir().glob("compressor/*.yaml")
    names = [file.stem for file in files if f"{run.method}_".startswith(f"{file.stem}_")]
    own, policy = run.config["compressor"], run.config["policy"]
    words = _typed_group("compressor", max(names, key=len, default=_module(own)), own)
    words.append(f"wrap=[{','.join(run.config['wrap'])}]")
    if policy.get("values"):
        words += _typed_group("policy", _module(policy), policy)
    if (way := run.setting("exchange.aggregation")) != speed.GATHER:
        words.append(f"exchange.aggregation={way}")
    return " ".join(words)


def _typed_group(group: str, name: str, own: Mapping[str, Any]) -> list[str]:
    """A member of a group, and the keys whose values its file does not have."""
    usual = option(group, name)
    usual = usual.get(group, usual)  # a compressor's file may bring its nest too
    changed = {k: v for k, v in own.items() if v is not None and usual.get(k, v) != v}
    words = [f"{group}.{key}={str(value).replace(' ', '')}" for key, value in changed.items()]
    return [f"{group}={name}", *words]


def _module(node: Mapping[str, Any]) -> str:
    return str(node["_target_"]).split(".")[-2]
