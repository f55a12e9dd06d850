"""One rank of a run, in every world: it reads the resolved config of a run folder and trains.

Our launcher starts it as ``python -m dgc_repro worker <run folder>``. The exit code is 0 for finished, 2 for
an error the user can mend (``error.txt`` has its line), 3 for stopped by a signal, 4 for a full disk, on
which no line may fit, 1 for everything else: ``failure.txt`` has the line.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import faulthandler
import functools
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from dgc_repro.checksums import sealed_summary
from dgc_repro.dataset.images import Splits
from dgc_repro.dataset.text import Text
from dgc_repro.errors import UserError
from dgc_repro.files import content, parsed_json, replace
from dgc_repro.kernel import native
from dgc_repro.launch import environment, identity, settings
from dgc_repro.launch.build import build_run, fresh_module
from dgc_repro.launch.devices import Place, choose_device, computed_precision, visible_gpus
from dgc_repro.launch.identity import RESULTS_VERSION
from dgc_repro.launch.networks import Schedule
from dgc_repro.launch.rank_process import leave, lower_session, work
from dgc_repro.launch.ranks import (
    FINISHED,
    OWN_TARGETS,
    STOPPED,
    USER_ERROR,
    RankFailed,
    StopSignals,
    Superseded,
    ask_to_stop,
    refuse_superseded,
)
from dgc_repro.launch.rendezvous import Rendezvous, data_hash, facts, use_loopback
from dgc_repro.launch.settings import component
from dgc_repro.network.lab import description
from dgc_repro.policy.interface import label
from dgc_repro.sink.console import Console
from dgc_repro.sink.interface import FanOut, RunInfo, Sink
from dgc_repro.sink.jsonl import Jsonl
from dgc_repro.study.generalization import Nothing
from dgc_repro.train import checkpoint
from dgc_repro.train.loop import train
from dgc_repro.train.profile import profiled
from dgc_repro.train.run import Run

CPU_SECONDS = "time/cpu_seconds"
RUNGS = {"label": "rung", "next_label": "next_rung"}  # columns of policy.csv


def run_worker(
    folder: Path,
    rendezvous: Rendezvous | None = None,
    stop: StopSignals | None = None,
    log: TextIO | None = None,
) -> int:
    """Train what the folder says, on this rank; the exit code. ``rendezvous``: torchrun.py's, if the ranks
    were started by it; ``stop``: handles stop signals; ``log``: of tracebacks. Raises UserError, or
    RankFailed in a world of processes."""
    stop = stop or StopSignals()
    config = read_config(folder)
    rank = int(os.environ.get("RANK", "0"))
    gpu = int(os.environ.get("LOCAL_RANK", "0")) % max(1, visible_gpus())
    started, launch = int(os.environ.get("WORLD_SIZE", "0")), config["launch"]
    simulated = launch["kind"] == "simulated"
    if started > 1 if simulated else started != launch["workers"]:
        raise UserError(
            f"launch.workers: {folder} is a run of {launch['workers']} workers (launch={launch['kind']}), "
            f"started as {started} ranks; python -m dgc_repro starts them, torchrun -m dgc_repro too"
        )
    if simulated:
        place = choose_device(config)._replace(backend="simulated")
        return _train(config, folder, place, gpu, stop)
    if os.environ.get("LOCAL_WORLD_SIZE") == str(started):
        use_loopback()
    if rendezvous is None:
        rendezvous = Rendezvous(float(launch["start_timeout_seconds"]))
    else:  # torchrun by itself gives its ranks one thread each
        rendezvous.start_seconds = float(launch["start_timeout_seconds"])
        torch.set_num_threads(environment.threads_of_worker(launch))
    has_own = None if launch["device"] == "cpu" else rendezvous.has_own_gpus(gpu)
    place = choose_device(config, has_own)
    device = _device_of(place, gpu)
    precision = computed_precision(config["train"]["precision"], device)
    own = facts(config, f"{place.device} with {place.backend}", precision, rendezvous.arguments)
    rendezvous.agree("start", own)
    timeout = float(launch["timeout_seconds"])
    try:
        if place.device == "cuda":
            torch.cuda.set_device(gpu)
        dist.init_process_group(
            place.backend,
            store=PrefixStore("world", rendezvous.store),
            rank=rank,
            world_size=rendezvous.size,
            timeout=datetime.timedelta(seconds=timeout),
        )
        return _train(config, folder, place, gpu, stop, rendezvous, log)
    except Superseded:
        raise
    except Exception as error:
        line = rendezvous.failed(error, timeout)
        if isinstance(error, UserError):
            rendezvous.refuse(str(error))
            raise
        raise RankFailed(line) from error


def _device_of(place: Place, gpu: int) -> torch.device:
    return torch.device("cuda", gpu) if place.device == "cuda" else torch.device("cpu")


def _train(
    config: dict[str, Any],
    folder: Path,
    place: Place,
    gpu: int,
    stop: StopSignals,
    rendezvous: Rendezvous | None = None,
    log: TextIO | None = None,
) -> int:
    """Train on GPU number ``gpu`` of this process, or on the CPU, as ``place`` says; return the exit code.
    ``rendezvous``: of ranks that are processes; ``log``: for the traceback of a rank that hangs when it is
    sent SIGTERM."""
    device = _device_of(place, gpu)

    def ready(splits: Splits | Text) -> None:
        if rendezvous is not None:
            several = rendezvous.several_nodes
            rendezvous.agree("data", {"dataset": data_hash(splits)} if several else {})

    cpu_seconds = sum(os.times()[:4])
    native.library()  # built now if it is not in the cache: no step's time pays for it
    run = build_run(config, device, ready)
    run.cpu_seconds_at_start = cpu_seconds
    rank = 0
    stop.on(functools.partial(ask_to_stop, run))
    if rendezvous is not None:
        rank = rendezvous.rank
        rendezvous.where = lambda: (run.progress.step + 1, run.world.clock.waits_for)
        faulthandler.register(signal.SIGTERM, log or sys.stderr, all_threads=False, chain=True)
    own_hash = folder.name.rpartition("-")[2]
    progress = run.progress
    notes = [*filter(None, [place.note]), *run.notes, *checkpoint.load(run, folder, own_hash)]
    if device.type == "cpu" and native.library() is None:
        notes.append(
            "kernels run as tensor operations (no C compiler, or switched off): slower, equal values"
        )
    if run.settings.profile:
        notes.append("profiling: each rank leaves trace-<rank>.json.gz and profile-<rank>.txt")
    source = config["train"]["resume_from"]
    if progress.step == 0 and source:
        notes += checkpoint.load(run, Path(source), None)
        if progress.step == 0:
            raise UserError(f"train.resume_from: no checkpoint in {source}")
    here = environment.describe(device, place.backend, run.world.size, run.splits.label)
    here["precision"] = run.settings.precision  # train.precision=half leaves it to the device
    if lab := description():
        notes += lab["notes"]
        here["network"] = lab["facts"]
    refuse_superseded(folder)
    if progress.step:
        _refuse_other_precision(folder / "environment.json", here["precision"])
    if rank == 0:
        if progress.step:
            here |= _continued(folder / "environment.json", progress.step)
        write_json(folder / "environment.json", here)
    sink = make_sink(config) if rank == 0 else FanOut([])
    info = RunInfo(
        folder=folder,
        name=folder.name,
        config=config,
        environment=here,
        num_steps=run.num_steps,
        num_epochs=run.num_epochs,
        start_step=progress.step,
        start_epoch=progress.epoch,
    )
    try:
        sink.start(info)
        for note in notes:
            sink.note(note)
        if progress.step:
            sink.note(f"continuing at step {progress.step} (epoch {progress.epoch + 1})")
        rates = Schedule(
            config, rank, functools.partial(run.world.barrier, "of the schedule"), run.meter
        )
        rates.before(progress.step, first=True)
        with profiled(run, folder) as traced:

            def on_step(metrics: Mapping[str, Any]) -> None:
                if rank == 0:
                    refuse_superseded(folder)
                sink.step(metrics)
                traced()
                rates.before(progress.step)

            def save() -> None:
                refuse_superseded(folder)
                checkpoint.save(run, folder, own_hash)

            finished = train(run, on_step, sink.epoch, save)
        summary = _summary(run, finished)
        if rank == 0:
            summary |= _generalization(config, run) if finished else {}
            refuse_superseded(folder)
            _write_trace(folder / "policy.csv", run)
            write_summary(folder / "summary.json", summary)
        sink.finish(summary)
    finally:
        sink.close()
        faulthandler.unregister(signal.SIGTERM)
        if run.stop_requested:
            signal.alarm(0)
    return FINISHED if finished else STOPPED


def _refuse_other_precision(path: Path, precision: str) -> None:
    """Raise UserError where the steps before were trained in another precision, which train.precision=half
    has left to another device."""
    before = ""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        before = parsed_json(content(path)).get("precision", "")
    if before not in ("", precision):
        raise UserError(
            f"train.precision: the steps so far were trained in {before}, and half is {precision} on this "
            f"device; continue on a device that computes {before}, or start anew in another paths.runs"
        )


def _continued(path: Path, step: int) -> dict[str, Any]:
    """What the record keeps of the process that made the steps before: code and start, oldest first."""
    try:
        before = parsed_json(content(path))
        stretch = {key: before.get(key) for key in ("commit", "dirty", "hardware", "started")}
        return {"before": [*before.get("before", []), {**stretch, "until_step": step}]}
    except (OSError, ValueError, TypeError, AttributeError):
        return {"before": [{"unknown": f"{path.name} could not be read", "until_step": step}]}


def make_sink(config: dict[str, Any]) -> Sink:
    """The record, and what the config asks for beside it."""
    chosen = config["sink"]
    sinks: list[Sink] = [Jsonl(chosen["every_steps"])]
    if chosen["console"]:
        sinks.append(Console())
    if chosen["mirror"]:
        sinks.append(component(chosen["mirror"], "sink"))
    return FanOut(sinks)


def read_config(folder: Path) -> dict[str, Any]:
    """The resolved config of a run folder. Raises UserError, also for a component outside this package that
    the command line does not name."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"paths.runs: no {path}; a run folder is made by python -m dgc_repro ...")
    config = identity.read_config(path)
    named = os.environ.get(OWN_TARGETS, "").split()
    if strange := [target for target in identity.outside(config) if target not in named]:
        raise UserError(
            f"paths.runs: {path} names {strange[0]}, which is not of this package and which no command line "
            "has named; repeat the command that made the run"
        )
    try:
        settings.check(config)
    except UserError as error:
        raise UserError(
            f"paths.runs: {path} is not a whole config ({error}); delete this file, and the command that "
            "made the run writes it again and continues"
        ) from error
    return config


def _summary(run: Run, finished: bool) -> dict[str, Any]:
    parameters = sum(p.numel() for p in run.module.parameters())
    return {
        **run.progress.last_record,
        **run.stopping.summary(run.progress.reached),
        CPU_SECONDS: run.cpu_seconds,  # of rank 0; simulated workers are all in one process
        "status": "finished" if finished else "stopped",
        "results_version": RESULTS_VERSION,
        "steps": run.progress.step,
        "epochs": run.progress.epoch,
        "state_bytes": run.exchange.state_bytes(),
        "collectives": run.world.ledger.of_gradients(),
        "parameters": parameters,
        "classes": run.task.splits.num_classes,
    }


def _generalization(config: Mapping[str, Any], run: Run) -> dict[str, float]:
    """What ``generalization`` measures of the trained network, as ``generalization/<name>``. The network
    before training is built again from the seed. A stop signal is not answered meanwhile: the last checkpoint
    is there, and the same command measures again."""
    measures = component(config["generalization"], "generalization")
    if isinstance(measures, Nothing):
        return {}
    torch.manual_seed(config["seed"])
    initial = fresh_module(config, run.task)
    batches = list(run.task.evaluation_batches(run.splits.train, [0], 1))
    inputs, labels = (torch.cat(part) for part in zip(*batches, strict=True))
    module = deepcopy(run.module)  # a copy is not compiled: torch compiles no second derivatives
    found = measures.measure(module, initial.to(run.device), inputs, labels, config["seed"])
    return {f"generalization/{name}": value for name, value in found.items()}


def _write_trace(path: Path, run: Run) -> None:
    """The policy's trace as a table, rungs in words beside their numbers: by ``epoch``, or by ``step`` where
    it decides within epochs."""
    rows = [
        entry | {word: label(run.policy, entry[rung]) for word, rung in RUNGS.items()}
        for entry in run.progress.policy.get("trace", [])
    ]
    if not rows:
        return
    columns = dict.fromkeys(key for row in rows for key in row)  # entries may differ in theirs
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace(path, text.getvalue().encode())


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file of a record."""
    replace(path, f"{json.dumps(value, indent=1)}\n".encode())


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Write summary.json, last of all: a finished run's has the checksums of its record."""
    if summary["status"] == "finished":
        replace(path, sealed_summary(path, summary))
    else:
        write_json(path, summary)


def main() -> None:
    """Entry point of a rank that a launcher has started."""
    if len(sys.argv) != 2:
        print("usage: python -m dgc_repro worker <run folder>", file=sys.stderr)
        sys.exit(USER_ERROR)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    lower_session()
    code, _ = work(Path(sys.argv[1]), sys.stderr)
    leave(code)
