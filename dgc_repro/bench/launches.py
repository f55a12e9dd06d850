"""What a step of each method would ask of a GPU: launches, host syncs, collectives and bytes.

Counted on fake CUDA tensors (bench/counting.py), so that no GPU is needed and nothing is measured. A method
is what its YAML in conf/compressor/ says, with its wrappers and without a policy. Its step is
that of `attach`, of gradients that are there: it compresses, agrees, exchanges and reads the clock. torch's
communication hooks get the buckets that DDP makes, and so does plain DDP: its reducer is C++ behind autograd,
which does not run on fake tensors, so `plain` repeats what it does to a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd

from dgc_repro.bench import host
from dgc_repro.bench.counting import CUDA, Counting, fake_workers, triton_counts
from dgc_repro.bench.exchange import PLAIN, TORCH_HOOKS
from dgc_repro.bench.modelled import GPUS, LAUNCH_SECONDS, SHOWN, exchange_seconds
from dgc_repro.bench.tables import Row, Spread, Table
from dgc_repro.compressor.blockfloat import BlockFloat
from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.eden import EDEN
from dgc_repro.compressor.interface import nested
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.sparseloco import SparseLoCo
from dgc_repro.compressor.sparsifier import Selecting
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.junction import AfterBackward
from dgc_repro.exchange.steps import PolicyProgress, Steps
from dgc_repro.exchange.world import World
from dgc_repro.kernel.batch import on_gpu
from dgc_repro.launch.environment import threads
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.paths import options
from dgc_repro.launch.settings import build_compressor, build_policy, unallocated

WORKERS, MANY = 2, 32
MODELS = {"resnet18": 10, "resnet101": 1000, "vgg16": 1000, "lstm": 10_000}  # classes or words
JUDGED = "resnet101"  # the model of the targets
BUCKETS = [1 << 20, 25 << 20]  # bytes: the first of DDP's buckets, and the others
STEPS, HOOK_STEPS = 2, 4  # the last one is counted; torch's PowerSGD compresses from the third
WARMUP, REPEATS = 3, 15  # steps of the host
COLUMNS = {
    "model": "model",
    "method": "method",
    "wrap": "wrap",
    "launches": "launches",
    "of them Triton": "triton",
    "at most": "launches_at_most",
    "verdict": "launches_verdict",
    "host syncs": "syncs",
    "at most ": "syncs_at_most",
    "verdict ": "syncs_verdict",
    "collectives": "collectives",
    "by the ledger": "ledger",
    "MB touched": "touched_mb",
    **{f"{gpu.upper()} ms (modelled)": f"modelled_{gpu}_ms" for gpu in SHOWN},
}
HOST_COLUMNS = {
    f"host ms, {WORKERS} workers": "host_ms",
    f"host ms, {MANY} workers": "host_many_ms",
    **{f"{gpu.upper()} ms, the larger": f"larger_{gpu}_ms" for gpu in SHOWN},
}
Config = Mapping[str, Any]
Shapes = Mapping[str, torch.Size]


def table(quick: bool) -> Table:
    """Of `make bench`."""
    about = (
        f"Counted on fake CUDA tensors; {WORKERS} workers, of which the other sends what this one sends. The "
        "methods are those of conf/compressor/; layer by layer (magnitude: one vector), after "
        "backward. An operation of torch counts as one launch (on a list of tensors, as what torch starts); "
        "views, allocations and collectives do not count, and neither do the small tables of places and "
        "sizes that kernels take (uploaded when they change: for ragged methods in each step). MB touched: "
        "what operations and kernels read and "
        "write. Modelled: bytes / bandwidth (T4 300 GB/s, V100 900 GB/s) + 5 microseconds a launch + 30 a "
        "host sync, all one after another, without communication and Python: lower bounds. Targets are for "
        "ResNet101. Other work on the machine changes no count.\n\nHost ms: what Python and torch take on "
        "this machine, with one thread, until a step of ResNet101's exchange is launched, and 5 "
        "microseconds a launch. It is measured without a GPU, in time of the process: tensors on the CPU "
        f"take the paths of a GPU's, and kernels do nothing. Median of {REPEATS} steps (middle half). Left "
        "out: CUDA events, and what nccl does on the host. Other work on the machine makes it longer. The "
        "larger: of host ms and the modelled time of the GPU, a lower bound of the step."
    )
    if not on_gpu(()):
        about += " Triton is not installed or switched off: counted is what runs without it."
    return Table("launches", "Launches", about, {**COLUMNS, **HOST_COLUMNS}, rows, 150)


def methods() -> dict[str, list[str]]:
    """Overrides by method: every compressor as its YAML has it, and 8 bits with error feedback."""
    found = {name: [f"compressor={name}"] for name in options("compressor")}
    found["onebit_adam"].append(
        "wrapper.onebit_adam.warmup_steps=0"
    )  # its warm-up is that of dense
    fed = ["compressor=uniform", "wrap=[per_layer,error_feedback]"]
    return {"dense": found.pop("dense"), **found, "uniform + error feedback": fed}


def rows(
    overrides: Sequence[str] = (),
    models: Mapping[str, int] = MODELS,
    cases: Mapping[str, Sequence[str]] | None = None,
) -> list[Row]:
    """A row for each model and method, torch's first. ``overrides``: for the models that have such a key. The
    host's time is measured for `JUDGED`."""
    made: list[Row] = []
    timed: list[tuple[dict[str, Any], Config, Shapes, set[Any]]] = []
    cases = methods() if cases is None else cases
    with fake_workers(WORKERS):
        for model, classes in models.items():
            sizes = [*overrides] if model.startswith("resnet") else []
            base = [f"model={model}", *sizes, "scale=none", "policy=fixed", "train.epochs=1"]
            shapes = shapes_of(composed(base), classes)
            for name, hook in HOOKS.items():
                made.append({"model": model, "method": name, **count_hook(hook, shapes)})
            for name, own in cases.items():
                config = composed([*base, *own, "policy=fixed"])
                wrap = ", ".join(config["wrap"])
                large: set[Any] = set()
                row = count_exchange(config, shapes, judged=model == JUDGED, large=large)
                whole: dict[str, Any] = {"model": model, "method": name, "wrap": wrap, **row}
                made.append(whole)
                if model == JUDGED and row.get("triton"):
                    timed.append((whole, config, shapes, large))
    for workers, key in ((WORKERS, "host_ms"), (MANY, "host_many_ms")):
        # More threads than one wait for each other, which is no work.
        with fake_workers(workers), threads(1):
            for whole, measured, shapes, large in timed:
                own = whole["launches"] - whole["triton"]
                whole |= time_host(measured, shapes, large, own, key)
    for whole, *_ in timed:
        for gpu in SHOWN:
            whole[f"larger_{gpu}_ms"] = max(whole["host_ms"], whole[f"modelled_{gpu}_ms"])
    return made


def shapes_of(config: Config, classes: int) -> Shapes:
    """The parameters of a model at full size."""
    named = unallocated(config, classes).named_parameters()
    return {name: parameter.shape for name, parameter in named}


class Loop:
    """The steps of a method of ours in a loop whose gradients are there, without a model."""

    def __init__(
        self, config: Config, parameters: Mapping[str, nn.Parameter], device: torch.device
    ) -> None:
        self.compressor = build_compressor(config, policy := build_policy(config))
        self.parameters, self.world = parameters, World(device=device)
        unit = config["exchange"]["unit"]
        exchange = Exchange(self.compressor, parameters, self.world, unit=unit)
        self._steps = Steps(
            world=self.world,
            exchange=exchange,
            junction=AfterBackward(exchange, parameters),
            policy=policy,
            parameters=parameters,
            progress=PolicyProgress(policy.init()),
        )

    def step(self) -> bool:
        """Exchange what is in ``param.grad``. Returns whether that has happened."""
        steps = self._steps
        steps.begin(steps.exchange.step)
        finite = steps.open(0) is None
        with torch.no_grad():
            happened, _ = steps.settle([], finite=finite)
        self.world.clock.end_step(0.0)
        steps.end(1.0, 0.0)
        return happened


def loop_of(config: Config, shapes: Shapes, device: torch.device) -> Loop:
    """The loop of a method for parameters of these shapes."""
    made = {n: nn.Parameter(torch.empty(s, device=device)) for n, s in shapes.items()}
    return Loop(config, made, device)


def count_exchange(
    config: Config, shapes: Shapes, *, judged: bool, large: set[Any] | None = None
) -> Row:
    """The step of a method of ours. ``large``: takes the operations of torch on many values."""
    with Counting() as counting:
        loop = loop_of(config, shapes, CUDA)
        leaf = list(nested(loop.compressor))[-1]
        for _ in range(STEPS):
            for parameter in loop.parameters.values():
                parameter.grad = torch.empty_like(parameter)
            counting.clear()
            loop.world.ledger.clear()
            happened = False
            with suppress(DynamicOutputShapeException):
                happened = loop.step()
            if counting.unanswered:
                return {"launches_verdict": f"reads the host ({counting.unanswered})"}
            assert happened
        if large is not None:
            large |= counting.large
        return counted(counting) | {
            "ledger": sum(loop.world.ledger.calls_by_collective().values()),
            **(judge("launches", counting.launches, launches_at_most(leaf)) if judged else {}),
            **(judge("syncs", counting.syncs, syncs_at_most(leaf)) if judged else {}),
        }


def time_host(
    config: Config, shapes: Shapes, large: set[Any], operations: int, key: str
) -> dict[str, Any]:
    """Milliseconds of the host among as many workers as there are, with its launches. ``operations``:
    launches of torch's own."""
    untimed, cpu = host.Untimed(), torch.device("cpu")
    with host.pretended(large, untimed):
        loop = loop_of(config, shapes, cpu)
        gradients = [torch.zeros(shape) for shape in shapes.values()]
        found = []
        for number in range(WARMUP + REPEATS):
            for parameter, gradient in zip(loop.parameters.values(), gradients, strict=True):
                parameter.grad = gradient.detach()  # others in the same place, as after a backward
            before, *_ = triton_counts()
            seconds = host.seconds(loop.step, untimed)
            if number >= WARMUP:
                launches = operations + triton_counts()[0] - before
                found.append(1e3 * (seconds + LAUNCH_SECONDS * launches))
    return Spread.of(found).columns(key)


def counted(counting: Counting) -> dict[str, Any]:
    """The columns that every row has."""
    row = {
        "launches": counting.launches,
        "triton": counting.triton,
        "syncs": counting.syncs,
        "collectives": counting.collectives,
        "touched_mb": counting.bytes_touched / 1e6,
    }
    times = {g: 1e3 * exchange_seconds(row, 1.0, GPUS[g]) for g in SHOWN}
    return row | {f"modelled_{gpu}_ms": ms for gpu, ms in times.items()}


def judge(what: str, number: int, at_most: int | None) -> dict[str, Any]:
    """A target and whether it is met."""
    if at_most is None:
        return {}
    return {
        f"{what}_at_most": at_most,
        f"{what}_verdict": "met" if number <= at_most else "missed",
    }


def launches_at_most(leaf: object) -> int | None:
    """The target of a method."""
    # All but the first have no GPU kernels of their own.
    if isinstance(leaf, Dense | SparseLoCo | DeMo | Dion | EDEN | BlockFloat):
        return None
    if isinstance(leaf, PowerSGD):
        return 300
    return 80 if isinstance(leaf, Selecting) else 40


def syncs_at_most(leaf: object) -> int:
    """The signals of a step, and the sizes of payloads where they differ between workers."""
    return 2 if getattr(leaf, "ragged", False) else 1


def buckets_of(shapes: Shapes) -> list[Any]:
    """DDP's buckets, where gradients come in the reverse order of parameters: what hooks use of a
    `GradBucket`."""
    every = [*shapes.values()][::-1]
    like = [torch.empty(shape, device="meta") for shape in every]
    groups, _ = _compute_bucket_assignment_by_size(like, BUCKETS)
    made = []
    for number, group in enumerate(groups):
        sizes = [every[i].numel() for i in group]
        flat = torch.empty(sum(sizes), device=CUDA)
        cut = zip(flat.split(sizes), group, strict=True)
        views, last = [part.view(every[i]) for part, i in cut], number == len(groups) - 1
        told = {"index": number, "buffer": flat, "gradients": views, "is_last": last}
        made.append(SimpleNamespace(**{name: partial(lambda x: x, x) for name, x in told.items()}))
    return made


def plain(state: None, bucket: Any) -> None:
    """DDP's reducer with gradient_as_bucket_view: it divides each gradient, and sums the bucket."""
    for gradient in bucket.gradients():
        gradient.div_(WORKERS)
    dist.all_reduce(bucket.buffer())


Hook = Callable[[], tuple[Any, Callable[..., Any]]]
HOOKS: Mapping[str, Hook] = {PLAIN.name: lambda: (None, plain), **TORCH_HOOKS}


def count_hook(hook: Hook, shapes: Shapes) -> Row:
    """The step of one of torch's hooks."""
    with Counting() as counting, hooks_on_a_gpu(counting):
        (state, run), buckets = hook(), buckets_of(shapes)
        for _ in range(HOOK_STEPS):
            counting.clear()
            for bucket in buckets:
                run(state, bucket)
        return counted(counting)


class Landed:
    """A collective of a hook, which needs its answer: the `fake` process group gives none."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def get_future(self) -> Landed:
        return self

    def then(self, callback: Callable[[Landed], Any]) -> Landed:
        return Landed(callback(self))

    def wait(self) -> Any:
        return self._answer

    value = wait


@contextmanager
def hooks_on_a_gpu(counting: Counting) -> Iterator[None]:
    """Inside, collectives answer, and torch's PowerSGD hook waits for the device after each bucket, as it
    does where there is one."""
    begin = dist.all_reduce

    def all_reduce(tensor: Tensor, **settings: Any) -> Landed:
        begin(tensor, **settings)
        return Landed([tensor])

    class Torch:
        cuda = SimpleNamespace(is_available=lambda: True, synchronize=counting.sync)

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    with (
        patch.object(torch_powersgd, "torch", Torch()),
        patch.object(dist, "all_reduce", all_reduce),
    ):
        yield
