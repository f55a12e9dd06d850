"""The sections of a run's config that are no components: their keys, types and ranges."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

from dgc_repro.checked import MOST, Count, Rule, checked, one_of, within
from dgc_repro.errors import UserError
from dgc_repro.launch.typed import made, mapping, nearest
from dgc_repro.names import renamed
from dgc_repro.network.profile import MOST_WORKERS
from dgc_repro.sink.jsonl import EverySteps
from dgc_repro.train.settings import TrainSettings
from dgc_repro.train.stopping import Stopping

NETLAB, SLURM = "netlab", "slurm"
KINDS = ("local", "simulated", NETLAB, SLURM)
MOST_THREADS = 1024
SHORTEST_SECONDS = 1  # of a timeout: a rank that waits less cannot tell a slow peer from a lost one
LONGEST_SECONDS = 30 * 24 * 3600  # of a timeout: torch counts them in a number that overflows
Timeout = Annotated[
    float, within(SHORTEST_SECONDS, LONGEST_SECONDS, name="seconds"), "a month at most"
]
LONGEST_NAME = 255  # bytes, of every usual file system
Folder = Annotated[
    str,
    Rule(
        f"a folder's name, each part at most {LONGEST_NAME} bytes long",
        lambda path: (
            path and all(len(os.fsencode(part)) <= LONGEST_NAME for part in path.split("/"))
        ),
    ),
]
Name = Annotated[str, Rule("{}, at most 64 characters long", lambda name: len(name) <= 64)]


@checked
class Launch:
    """How many ranks, where, and how long they wait for each other (conf/launch).

    kind: local processes, simulated in one process, a netlab of shaped links, or a job of slurm;
    launch=<kind> sets it. workers: ranks of the run, which average their gradients. device: auto takes GPUs
    where each worker has its own, else the CPU. backend: auto takes nccl on GPUs of their own, else gloo.
    threads: of a worker, null: the cores divided by the workers. timeout_seconds: the longest that a
    collective may take; then the run ends and names who is missing. start_timeout_seconds: the longest
    start; in it all ranks start and read their data.
    """

    kind: Annotated[str, one_of(KINDS)]
    workers: Annotated[int, within(1, MOST_WORKERS)]
    device: Annotated[str, one_of(("auto", "cpu", "cuda"))]
    backend: Annotated[str, one_of(("auto", "gloo", "nccl"))]
    threads: Annotated[int, within(1, MOST_THREADS)] | None
    timeout_seconds: Timeout
    start_timeout_seconds: Timeout


OTHER_NAMES = {
    "array": "array_parallelism",
    "error": "logs",
    "no_requeue": "requeues",
    "ntasks": "workers",
    "ntasks_per_node": "workers",
    "output": "logs",
    "requeue": "requeues",
    "signal": "signal_seconds",
    "time": "time_minutes",
}
"""sbatch's names for what keys of `Slurm` set."""
OfSbatch = Annotated[
    Any,
    Rule(
        "a word, a number or true",
        lambda value: value is not False and isinstance(value, str | int | float),
    ),
]


@checked
class Slurm(Launch):
    """A job of Slurm (conf/launch/slurm.yaml, launch/slurm.py): what sbatch is asked for.

    nodes: of the job; a divisor of workers. gpus_per_node: asked for; null: none. cpus_per_task: cores of a
    task, which is a worker; null asks for one. time_minutes: the time limit. partition, account, qos:
    sbatch's options of these names; null leaves them out. sbatch: other options of sbatch, such as {mem:
    64G, exclusive: true}. setup: lines of bash before the run, such as module load cuda. python: starts
    Python on the nodes; null takes this one. logs: folder of the logs and the submitted scripts.
    signal_seconds: so long before the time limit the run writes a checkpoint and is queued again. requeues:
    how many times at most; 0 is never. array_parallelism: runs of one sweep, a job array, that run at the
    same time. wait: print states and the log until the job ends.
    """

    nodes: Count
    gpus_per_node: Annotated[int, within(0)] | None
    cpus_per_task: Count | None
    time_minutes: Count
    partition: str | None
    account: str | None
    qos: str | None
    sbatch: Mapping[str, OfSbatch] | None
    setup: Sequence[str]
    python: str | None
    logs: Folder
    signal_seconds: Annotated[int, within(1, 65535)]  # sbatch's range
    requeues: Annotated[int, within(0)]
    array_parallelism: Count
    wait: bool

    def __post_init__(self) -> None:
        if self.workers % self.nodes:
            raise ValueError(
                f"nodes: a whole number that divides launch.workers={self.workers}, got {self.nodes}"
            )
        here, gpus = self.workers // self.nodes, self.gpus_per_node
        if self.device == "auto" and gpus and gpus < here:
            raise ValueError(
                f"gpus_per_node: {gpus} for {here} workers of a node, and each needs a GPU of its own; "
                f"ask for {here}, use fewer workers, or launch.device=cuda to share GPUs"
            )
        if self.signal_seconds >= 60 * self.time_minutes:
            raise ValueError(
                f"signal_seconds: less than launch.time_minutes={self.time_minutes}, got "
                f"{self.signal_seconds} s"
            )
        for option in self.sbatch or ():
            key = option.replace("-", "_")
            if hasattr(self, own := OTHER_NAMES.get(key, key)):
                raise ValueError(f"sbatch: {option} is set by launch.{own}; give that")


@checked
class Top:
    """Settings of the whole run.

    seed: the start of all random numbers. wrap: wrappers around the compressor, outermost first; ladder may
    be named to say where it goes. optimized_metric: what a search optimizes; a number of the
    record such as test/accuracy_percent, or a list of them.
    """

    seed: Annotated[int, within(0, MOST)]
    wrap: Sequence[str]
    optimized_metric: str | Sequence[str] | None = None


@checked
class Exchange:
    """How gradients are exchanged. (exchange/ddp.py and exchange/aggregation.py check the words.)

    unit: layer or model, what is compressed at once; model takes all tensors as one vector. overlap:
    exchange each bucket of DDP during backward. aggregation: gather or sharded payloads; sharded has each
    worker average a shard.
    """

    unit: str
    overlap: bool
    aggregation: str


@checked
class Paths:
    """Folders.

    runs: run folders, the only cache. reproduced: tables and figures that `reproduce` makes. results:
    published results; `reproduce ... publish=true` writes there.
    """

    runs: Folder
    reproduced: Folder
    results: Folder


@checked
class Experiment:
    """What a run belongs to; its folder is named by these.

    paper: the paper, or none. artifact: its table or figure. row: the run's row there.
    """

    paper: Name
    artifact: Name
    row: Annotated[str, Rule("{}, at most 100 characters long", lambda row: len(row) <= 100)]


@checked
class Scale:
    """How large a run is: a scale's name and seeds; its other keys are numbers that methods read.

    name: of a scale. seeds: those that `reproduce` trains. family: the folder of the scale in conf/scale.
    """

    name: Name
    seeds: Annotated[Sequence[int], Rule("{}, at least one", bool)]
    family: str = ""


@checked
class Sink:
    """Where numbers go beside the record.

    every_steps: steps between two lines of steps.jsonl; 0: no lines. console: print a
    line an epoch. mirror: a copy of the numbers elsewhere; sink=wandb sets it.
    """

    every_steps: EverySteps
    console: bool
    mirror: Mapping[str, Any] | None


SLURM_KEYS = tuple(inspect.get_annotations(Slurm))
SECTIONS = {
    "launch": Launch,
    "exchange": Exchange,
    "paths": Paths,
    "experiment": Experiment,
    "scale": Scale,
    "sink": Sink,
    "train": TrainSettings,
    "stopping": Stopping,
}
OPEN = (Experiment, Scale, Sink)  # overlays read other keys of theirs
NAMES = (
    *("model", "dataset", "compressor", "wrapper", "policy", "optimizer", "schedule", "network"),
    *("generalization", "seed", "wrap", *SECTIONS),
)
"""All sections of a run's config."""


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that are no components, as objects by name. Raises UserError for a section that is
    missing, unknown or not as it should be."""
    for name in NAMES:
        if name not in config:
            raise UserError(
                f"{name}: has no value; leave it as conf/config.yaml has it, or give one"
            )
    for name in config:
        if name not in NAMES:
            raise UserError(
                f"{name}: no such key; {renamed(str(name)) or nearest(str(name), NAMES)}"
            )
    found: dict[str, Any] = {}
    for name, kind in SECTIONS.items():
        section = mapping(config[name], name)
        if kind in OPEN:
            own = {field.name for field in fields(kind)}
            section = {key: value for key, value in section.items() if key in own}
        if kind is Launch and section.get("kind") == SLURM:
            if "nodes" not in section:
                raise UserError("launch.kind: slurm has settings of its own; give launch=slurm")
            kind = Slurm
        found[name] = made(kind, section, name)
    check_seed("seed", config["seed"])
    for name, wrapper in mapping(config["wrapper"], "wrapper").items():
        mapping(wrapper, f"wrapper.{name}")
    return found


def check_seed(key: str, seed: Any) -> None:
    """Raise UserError for what cannot seed every generator here."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MOST:
        raise UserError(f"{key}: a whole number from 0, at most {MOST:.0e}, got {seed!r}")
