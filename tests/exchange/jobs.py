"""What the ranks of a real world do for test_processes.py and test_ddp.py."""

from __future__ import annotations

import copy
import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from samples import gradient
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange import ddp
from dgc_repro.exchange.attached import Attached, attach
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.process_group import PIECE_BYTES, ProcessGroupWire
from dgc_repro.exchange.wire import Link, Wire
from dgc_repro.policy.interface import Plan

CPU = torch.device("cpu")
Shapes = Mapping[str, tuple[int, ...]]


def exchanged(
    wire: Wire, compressor: Compressor, shapes: Shapes, steps: int, rung: int, check: bool = False
) -> dict[str, Any]:
    """Some steps of the workers on a wire: every step's means, the last states, the bytes."""
    link = Link(wire, Ledger(), Clock(CPU), check=check)
    like = {name: torch.empty(shape) for name, shape in shapes.items()}
    exchange = GradientExchange(compressor, like, link, seed=3)
    means = []
    for step in range(steps):
        for worker in range(wire.local_workers):
            own = {n: gradient(n, shape, wire.rank + worker, step) for n, shape in shapes.items()}
            exchange.open(worker, own, Plan(rung))
        means.append({name: mean.clone() for name, mean in exchange.finish().items()})
        exchange.commit()
    return {"means": means, "states": exchange.states, "ledger": link.ledger.state_dict()}


def exchange_here(*arguments: Any) -> dict[str, Any]:
    return exchanged(ProcessGroupWire(CPU), *arguments)


def disagree(by_rank: list[tuple[Compressor, Shapes]]) -> str:
    """What this rank is told when ranks bring different compressors or tensors."""
    compressor, shapes = by_rank[dist.get_rank()]
    return raised(lambda: exchange_here(compressor, shapes, 1, 0, True))


def raised(action: Callable[[], object]) -> str:
    """The name and message of what an action raises."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Net(nn.Module):
    """A convolution, a normalization, two layers, one of which may be left out."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.hidden = nn.Linear(width * 16, 10)
        self.side = nn.Linear(width * 16, 10)
        self.uses_side = True

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.hidden(x) + (self.side(x) if self.uses_side else 0)  # type: ignore[no-any-return]


@dataclass
class Script:
    """A training script: what is attached and what happens in it."""

    compressor: Compressor | None  # None: stock DDP
    junction: str = "after_backward"
    unit: str = "layer"
    steps: int = 3
    micro_steps: int = 1
    no_sync: bool = False
    channels_last: bool = False
    view: bool = False
    find_unused: bool = False
    side_on: tuple[bool, ...] = ()  # by step; default: always
    nan_on: tuple[int, int] | None = None  # (rank, step)
    resume_at: int | None = None
    freeze: bool = False
    pause_seconds: float = 0.0  # before the backward of the convolution: others may land meanwhile
    static: bool = False  # a static graph
    goes_on: bool = False  # after a step that was refused
    attach_settings: dict[str, Any] = field(default_factory=dict)


def train(script: Script) -> dict[str, Any]:
    """Run a script on this rank."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    if script.channels_last:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if script.freeze:
        net.hidden.weight.requires_grad_(False)
    model = DistributedDataParallel(
        net,
        bucket_cap_mb=1e-3,
        gradient_as_bucket_view=script.view,
        find_unused_parameters=script.find_unused,
        static_graph=script.static,
    )
    if script.pause_seconds:
        net.norm.weight.register_hook(lambda _: time.sleep(script.pause_seconds))
    attached = None
    buckets: list[int] = []
    early: list[int] = []
    if script.compressor is not None:
        attached = attach(
            model,
            script.compressor,
            junction=script.junction,
            unit=script.unit,
            **script.attach_settings,
        )
        count_buckets(attached, buckets, early)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    source = torch.Generator().manual_seed(10 + rank)
    gradients, message = [], ""
    for step in range(script.steps):
        net.uses_side = script.side_on[step] if script.side_on else True
        optimizer.zero_grad()
        for micro in range(script.micro_steps):
            x = torch.randn(4, 3, 6, 6, generator=source)
            if script.nan_on == (rank, step):
                x[0, 0, 0, 0] = torch.nan
            target = torch.randint(0, 10, (4,), generator=source)
            holds = script.no_sync and micro < script.micro_steps - 1
            with model.no_sync() if holds else torch.enable_grad():
                loss = nn.functional.cross_entropy(model(x), target)
                (loss / script.micro_steps).backward()
        if attached is not None:
            before = copy.deepcopy(attached.state_dict()["exchange"]["tensors"])
            message = raised(lambda: attached.step(samples=4))
            if message != "nothing" and script.goes_on:
                continue
            if message != "nothing":
                after = attached.state_dict()["exchange"]["tensors"]
                return {"message": message, "before": before, "after": after}
        gradients.append(
            {n: None if p.grad is None else p.grad.clone() for n, p in net.named_parameters()}
        )
        optimizer.step()
        if attached is not None and script.resume_at == step + 1:
            file = io.BytesIO()
            torch.save(attached.state_dict(), file)
            torch.save(attached.state_dict(), file)
            attached._exchange.states = [attached._exchange._initial()]
            attached._exchange.step = 99
            file.seek(0)
            attached.load_state_dict(torch.load(file, weights_only=True))
    return {
        "message": message,
        "gradients": gradients,
        "parameters": {n: p.detach().clone() for n, p in net.named_parameters()},
        "state": None if attached is None else attached.state_dict(),
        "buckets": buckets,
        "early": early,
    }


def count_buckets(attached: Attached, buckets: list[int], early: list[int]) -> None:
    """Note how many tensors each bucket holds, and which are received before the last has come."""
    junction = attached._junction
    if isinstance(junction, ddp.PerBucket):
        send = junction._send

        def counted(bucket: dist.GradBucket) -> None:
            buckets.append(len(bucket.parameters()))
            send(bucket)

        receive_landed = junction._receive_landed

        def noted(part: int) -> bool:
            done = receive_landed(part)
            if done:
                early.append(part)
            return done

        junction._send = counted  # type: ignore[method-assign]
        junction._receive_landed = noted  # type: ignore[method-assign]


def train_differently(scripts: list[Script]) -> dict[str, Any]:
    """Each rank its own script."""
    return train(scripts[dist.get_rank()])


@dataclass(frozen=True)
class Broken:
    """A compressor that fails in its exchange, on some steps."""

    at: int

    def init(self, tensor: Tensor) -> dict[str, Any]:
        return {}

    def exchange(self, tensor: Tensor, state: dict[str, Any], context: Any) -> Any:
        from dgc_repro.compressor.dense import Dense

        if context.step == self.at:
            raise ZeroDivisionError("broken on purpose")
        return (yield from Dense().exchange(tensor, state, context))


def refusal(script: Script) -> str:
    """What `attach` says to a script that does not fit together."""
    return raised(lambda: train(script))


def gather_in_pieces(extra: int) -> list[bool]:
    """Whether each rank's row of a gather of several pieces arrived as that rank sent it."""
    size = 2 * PIECE_BYTES + extra

    def sent(rank: int) -> Tensor:
        return torch.arange(size).add_(rank).to(torch.uint8)

    wire = ProcessGroupWire(CPU)
    rows, pending = wire.gather([sent(wire.rank)], "pieces")
    pending.wait()
    assert pending.is_completed()
    return [torch.equal(row, sent(rank)) for rank, row in enumerate(rows)]
