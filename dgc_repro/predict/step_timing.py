"""What a worker's step takes on this machine: measured, or read from a file of such times.

Compute is the trainer's own (one worker, real batches, forward, backward, optimizer); beside it, when
each gradient is there. Everything is timed with the threads that a worker of the run has: launch.threads,
or the cores at hand divided by the workers that share them (launch.workers). The exchange is that of
bench/alone.py on the gradients of the last step: compress and decompress times and the payloads, all at
once and by DDP's buckets.
"""

from __future__ import annotations

import datetime
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dgc_repro.bench.alone import buckets, time_exchange
from dgc_repro.bench.record import EMBEDDED
from dgc_repro.compressor.gtopk import GTopK, turns
from dgc_repro.compressor.interface import nested
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.errors import UserError
from dgc_repro.exchange.clock import WARMUP_STEPS
from dgc_repro.exchange.ddp import fit_together
from dgc_repro.kernel import native
from dgc_repro.launch import environment
from dgc_repro.launch.build import choose_device, validate
from dgc_repro.launch.components import build_compressor, build_policy, settled
from dgc_repro.launch.measure import gradients_of, trained
from dgc_repro.launch.sections import SLURM_KEYS
from dgc_repro.launch.worker import write_json
from dgc_repro.names import with_first_names
from dgc_repro.network.iteration import (
    CONSTANT,
    LINEAR,
    OF_OWNERS,
    TO_OWNERS,
    Calls,
    Growth,
    Part,
    Step,
)
from dgc_repro.policy.interface import Plan, Policy
from dgc_repro.train.step import train_step

VERSION = 3
OPTIMIZER_KEYS = ("_target_", "compressed", "clip_norm")  # a step's time depends on these
SIGNAL_BYTES = 40  # train/step.py: five float64
GATHER_WORKERS = (2, 8)  # decompression is measured for so many, and is linear in between
OTHERS_WORKERS = (2, 4, 8)  # simulated in one process: shards and trees
MOST_SIMULATED_BYTES = 0.5  # of what memory is available
ALL_TO_ALL = "alltoall"
SHARDED = {ALL_TO_ALL: TO_OWNERS, "allgather": OF_OWNERS}
"""How the payloads of `Sharded` grow with N."""
Config = Mapping[str, Any]


@dataclass
class Times:
    """What was measured. ``ready_ms``: when each gradient is there, from the step's begin; ``exchanges``:
    by method and overlap, then by workers, a list of parts."""

    about: dict[str, Any]
    compute_ms: float
    ready_ms: dict[str, float]
    identity: str
    parameters: int
    exchanges: dict[str, Any] = field(default_factory=dict)
    version: int = VERSION

    @classmethod
    def read(cls, path: Path) -> Times:
        """Raises UserError."""
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            found = cls(**written)
        except OSError as error:
            raise UserError(f"times: cannot read {path} ({error.strerror})") from error
        except (ValueError, TypeError) as error:
            raise UserError(
                f"times: {path} is no file of times; give a new name, it is written there"
            ) from error
        if found.version != VERSION:
            raise UserError(f"times: {path} is of version {found.version}; remove it")
        return found

    def write(self, path: Path) -> None:
        """Raises UserError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, asdict(self))
        except OSError as error:
            raise UserError(f"times: cannot write {path} ({error.strerror})") from error


class Bench:
    """Times of a model on this machine, measured when they are asked for. With ``path``, what it holds is
    not measured again, and what is measured is added to it."""

    def __init__(self, config: Config, path: Path | None, repeats: int) -> None:
        """``config``: of a run. Raises UserError."""
        self._config = as_simulated(config, 1)
        self._config["exchange"] |= {"overlap": False, "aggregation": "gather"}
        validate(self._config)
        self._path = path
        self._repeats = repeats
        self._gradients: dict[str, Tensor] = {}
        self._threads = environment.threads_of_worker(config["launch"])
        self._identity = _identity(self._config, self._threads)
        self._times: Times | None = None
        if path is not None and path.exists():
            self._times = Times.read(path)
            if self._times.identity != self._identity:
                raise UserError(
                    f"times: {path} holds times of another model, data, batch, optimizer, train.compile, "
                    "train.channels_last, processor or GPU, C kernels (on or off) or number of threads "
                    f"({self._threads} a worker here: launch.threads, launch.workers); give another file"
                )

    @property
    def times(self) -> Times:
        """All that is known by now."""
        if self._times is None:
            with environment.threads(self._threads):
                compute, ready, facts = self._train(steps=self._repeats)
            self._times = Times(facts, 1e3 * compute, ready, self._identity, facts["parameters"])
            self._keep()
        return self._times

    def step(self, config: Config, overlap: bool, workers: int, compute_ms: float | None) -> Step:
        """A worker's step among so many, after all warm-ups. ``config``: with the method; ``compute_ms``: in
        the place of the measured time. Raises UserError."""
        times, config = self.times, settled(config)
        scale = 1.0 if compute_ms is None else compute_ms / times.compute_ms
        parts, kind = self._parts(config, overlap)
        found = []
        for part in parts:
            by_workers = {int(n): entry for n, entry in part["by_workers"].items()}
            found.append(
                Part(
                    ready=max(times.ready_ms[name] for name in part["names"]) * scale / 1e3,
                    compress=statistics.median(e["compress"] for e in by_workers.values()),
                    decompress=_decompress(by_workers, kind, workers),
                    first=_calls(by_workers, "first", kind, workers),
                    later=_calls(by_workers, "later", kind, workers),
                )
            )
        signals = {"allreduce": (1.0, float(SIGNAL_BYTES))}
        return Step(times.compute_ms * scale / 1e3, found, signals)

    def _parts(self, config: Config, overlap: bool) -> tuple[list[Any], type | None]:
        """What was measured; `Sharded` or `GTopK` where payloads go by all-to-all."""
        times = self.times
        policy = build_policy(config)
        plan = policy.plan(policy.init(), 0)
        first = with_first_names({**config, "exchange": {**config["exchange"], "overlap": overlap}})
        key = f"{first['exchange']['junction']} {_method(first)} {asdict(plan)}"
        example = build_compressor(as_simulated(config, 2), policy)
        fit_together(example, policy, config["exchange"]["unit"], overlap)
        kinds = {type(part) for part in nested(example)}
        kind = next((kind for kind in (Sharded, GTopK) if kind in kinds), None)
        if key in times.exchanges:
            return times.exchanges[key], kind
        with environment.threads(self._threads):
            found = self._exchanges(config, policy, plan, overlap, simulated=kind is not None)
        times.exchanges[key] = found
        self._keep()
        return found, kind

    def _exchanges(
        self, config: Config, policy: Policy, plan: Plan, overlap: bool, *, simulated: bool
    ) -> list[Any]:
        if not self._gradients:  # the times come from a file
            self._train(steps=1)
        gradients = self._gradients
        groups = buckets(gradients) if overlap else None
        found: list[Any] = [
            {"names": names, "by_workers": {}} for names in groups or [list(gradients)]
        ]
        numbers: Sequence[int] = GATHER_WORKERS
        if simulated:  # a simulated worker keeps states, spares and payloads
            each = 4 * sum(g.nbytes for g in gradients.values())
            room = MOST_SIMULATED_BYTES * (environment.available_bytes() or math.inf) / each
            numbers = [n for n in OTHERS_WORKERS if n <= max(2, room)]
        for workers in numbers:
            compressor = build_compressor(as_simulated(config, workers), policy)
            measured = time_exchange(
                compressor,
                gradients,
                workers,
                plan=plan,
                parts=groups,
                unit=config["exchange"]["unit"],
                repeats=self._repeats,
                seed=config["seed"],
            )
            for part, entry in zip(found, measured, strict=True):
                part["by_workers"][str(workers)] = asdict(entry)
        return found

    def _train(self, steps: int) -> tuple[float, dict[str, float], dict[str, Any]]:
        """Some steps after the warm-up: median seconds of compute, when each gradient is there."""
        device = torch.device(choose_device(self._config)[0])
        busy = environment.busy_cores()
        run, batches = trained(dict(self._config), WARMUP_STEPS, EMBEDDED, device)
        run.link.clock.report()
        named = run.module.named_parameters()
        names: dict[Tensor, str] = {p: name for name, p in named if p.requires_grad}
        came: dict[str, list[float]] = {name: [] for name in names.values()}
        last: dict[str, float] = {}

        def note(parameter: Tensor) -> None:  # the last pass of a step overwrites those before
            last[names[parameter]] = time.perf_counter() - begin

        hooks = [parameter.register_post_accumulate_grad_hook(note) for parameter in names]
        seconds = []
        for _ in range(steps):
            batch = next(batches, None)
            if batch is None:
                break
            begin = time.perf_counter()
            train_step(run, batch)
            for name, moment in last.items():
                came[name].append(moment)
            seconds.append(run.link.clock.report()["time/compute_ms"] / 1e3)
        if not seconds:
            raise UserError(
                f"dataset: the data make only {WARMUP_STEPS} steps; give more data or a smaller batch"
            )
        for hook in hooks:
            hook.remove()
        compute = statistics.median(seconds)
        gradients = gradients_of(run)
        self._gradients = {name: g.detach().clone() for name, g in gradients.items()}
        ready = {name: 1e3 * statistics.median(came[name]) for name in gradients}
        if device.type == "cuda":  # the processor runs ahead of the device: by size instead
            passes = run.settings.accumulate * (1 if run.sam is None else 2)
            ready = _by_size(gradients, 1e3 * compute, passes)
        facts = {
            "hardware": environment.describe(device, "none", 1, run.task.splits.label)["hardware"],
            "threads": torch.get_num_threads(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
            "model": self._config["model"]["_target_"].rsplit(".", 1)[-1],
            "data": run.task.splits.label,
            "batch_size": self._config["train"]["batch_size"],
            "parameters": sum(p.numel() for p in run.module.parameters()),
            "tensors": len(gradients),
            "repeats": len(seconds),
            "busy_cores": busy,
        }
        return compute, ready, facts

    def _keep(self) -> None:
        if self._path is not None and self._times is not None:
            self._times.write(self._path)


def _by_size(
    gradients: Mapping[str, Tensor], compute_ms: float, passes: int = 1
) -> dict[str, float]:
    """Gradients are there in the last of a step's forward and backward passes. Backward takes two thirds of a
    pass, and a layer its share of the parameters."""
    total = sum(g.numel() for g in gradients.values())
    left = total
    ready = {}
    for name, gradient in gradients.items():
        ready[name] = compute_ms * (1 - 2 / 3 * (1 - left / total) / passes)
        left -= gradient.numel()
    return ready


def as_simulated(config: Config, workers: int) -> dict[str, Any]:
    """The config as a run of simulated workers on no network."""
    plain = deepcopy(dict(config))
    launch = {key: value for key, value in plain["launch"].items() if key not in SLURM_KEYS}
    plain["launch"] = launch | {"kind": "simulated", "workers": workers, "workers_per_node": None}
    plain["launch"]["backend"] = "auto"
    plain["network"] = {"_target_": config["network"]["_target_"]}
    return plain


def _identity(config: Config, threads: int) -> str:
    """What compute depends on."""
    keys = ("batch_size", "accumulate", "precision", "compile", "channels_last")
    train = {key: config["train"][key] for key in keys}
    optimizer = {key: config["optimizer"].get(key) for key in OPTIMIZER_KEYS}
    device, _ = choose_device(config)
    on_gpu = device == "cuda"
    hardware = [
        torch.cuda.get_device_name() if on_gpu else environment.cpu_model(),
        on_gpu or native.library() is not None,
    ]
    kept = [config["model"], config["dataset"], train, optimizer, device, hardware, threads]
    return json.dumps(kept, sort_keys=True, default=str)


def _method(config: Config) -> str:
    """What an exchange depends on, of a config with the first names: files of times keep their keys."""
    wrap, exchange = list(config["wrap"]), config["exchange"]
    wrappers = {name: config["wrapper"][name] for name in wrap if name in config["wrapper"]}
    kept = [config["compressor"], wrap, wrappers, config["policy"]]
    return json.dumps([*kept, exchange["unit"], exchange["combine"]], sort_keys=True, default=str)


def _decompress(by_workers: Mapping[int, Any], kind: type | None, workers: int) -> float:
    """Seconds. They grow with N for what is gathered, with the rounds of a tree, and not for a mean that
    comes as one."""
    values = {n: float(entry["decompress"]) for n, entry in by_workers.items()}
    asked = {name for entry in by_workers.values() for name in (*entry["first"], *entry["later"])}
    if asked <= {"allreduce", "broadcast"}:
        return statistics.median(values.values())
    if kind is GTopK:
        rounds = {len(turns(0, n)): value for n, value in values.items()}
        return Growth(rounds, LINEAR).at(len(turns(0, workers)))
    return Growth(values, LINEAR).at(workers)


def _calls(by_workers: Mapping[int, Any], what: str, kind: type | None, workers: int) -> Calls:
    """Calls and payload bytes. Shards grow by `Growth`. Each round of a tree is one call, with the bytes of
    the first for each worker that rank 0 sends to; no rank sends to more."""
    found = {}
    for name in sorted({name for entry in by_workers.values() for name in entry[what]}):
        pairs = {n: entry[what].get(name, (0, 0)) for n, entry in by_workers.items()}
        calls, sizes = ({n: float(pair[i]) for n, pair in pairs.items()} for i in (0, 1))
        basis = SHARDED.get(name, CONSTANT) if kind is Sharded else CONSTANT
        found[name] = (Growth(calls, CONSTANT).at(workers), Growth(sizes, basis).at(workers))
    if kind is GTopK and what == "later":
        first = _calls(by_workers, "first", kind, workers)
        calls_each, size = first.get(ALL_TO_ALL, (0.0, 0.0))
        rounds = turns(0, workers)[1:]
        sends = sum(len(turn.to) for turn in rounds)
        found[ALL_TO_ALL] = (calls_each * len(rounds), size * sends)
    return found
