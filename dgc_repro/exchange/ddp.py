"""DistributedDataParallel: the two junctions where an exchange takes the gradients, and `attach`.

*After backward*: a no-op hook leaves every worker its own gradient; the exchange runs when all of
them are there. Needed by policies that look at all tensors first; gradient accumulation needs no
``no_sync``.

*Per bucket*: a communication hook hands each bucket to one ordered communication thread with a
process group of its own and returns a future, so that communication overlaps the rest of backward.
Collectives are never issued from a future's callback: on gloo with several buckets their order
would differ between ranks. The order is: the first collectives of each bucket as it comes, then,
when all have come, whatever else the buckets ask, one bucket after another.
"""

from __future__ import annotations

import datetime
import inspect
import math
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.interface import Compressor, nested
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.nesting import check_nesting
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.errors import UserError
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import MODEL, UNITS, GradientExchange, in_memory_order
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.signals import first_non_finite, refuse_non_finite, share
from dgc_repro.exchange.wire import Link
from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.interface import (
    MEAN,
    OWN,
    SPREAD,
    EpochReport,
    Plan,
    Policy,
    StepReport,
    measures,
)

Parameters = Mapping[str, nn.Parameter]
HandedOver = tuple[Any, torch.futures.Future[Tensor], torch.cuda.Event | None]
"""A bucket, what DDP waits for, and, on a GPU, when its gradients will be there."""
LOOK_EVERY_SECONDS = 1e-3
"""How often the communication thread looks whether a collective has landed, when no bucket comes."""


class Junction(Protocol):
    """Where the exchange takes the gradients of a step."""

    overlaps: bool

    def begin(self, plan: Plan) -> None:
        """Announce the plan of the coming backward."""

    def open(self, worker: int) -> str | None:
        """Backward of a worker is over: its gradients may be compressed. Returns the name of one that
        is not finite, if there is one. Raises what the exchange raised during backward."""

    def finish(self) -> None:
        """Put the means into ``param.grad``."""


def put(mean: Tensor, gradient: Tensor) -> None:
    """Write a mean into a gradient, unless it has been computed there."""
    if mean.data_ptr() != gradient.data_ptr():
        gradient.copy_(mean)


class AfterBackward:
    """The exchange of all tensors at once, when backward is over."""

    overlaps = False

    def __init__(self, exchange: GradientExchange, parameters: Parameters) -> None:
        self._exchange = exchange
        self._parameters = parameters
        self._plan = Plan(None)

    def begin(self, plan: Plan) -> None:
        self._plan = plan

    def open(self, worker: int) -> str | None:
        gradients = self.gradients()
        try:
            self._exchange.open(worker, gradients, self._plan)
        except Exception:
            # A compressor may fail on a NaN. Nothing has been sent: the ranks agree on it as on any.
            bad = first_non_finite(gradients)
            if bad is None:
                raise
            return bad
        return self._exchange.non_finite.get(worker)

    def finish(self) -> None:
        means = self._exchange.finish()
        for name, gradient in self.gradients().items():
            put(means[name], gradient)

    def gradients(self) -> dict[str, Tensor]:
        """Gradients by name; a parameter without one counts as zeros, its residual still travels."""
        found = {}
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            if gradient is None:
                parameter.grad = gradient = torch.zeros_like(parameter)
            elif (
                gradient.stride() != parameter.stride()
            ):  # as the states are laid out, and written back
                parameter.grad = gradient = torch.empty_like(parameter).copy_(gradient)
            found[name] = in_memory_order(gradient)
        return found


class PerBucket:
    """The exchange of each bucket while backward goes on; plans must be known before the step."""

    overlaps = True

    def __init__(self, exchange: GradientExchange, model: DistributedDataParallel) -> None:
        if getattr(model, "skip_all_reduce_unused_params", False):
            raise UserError(
                "exchange.junction: per_bucket needs every bucket in every step, the model was wrapped "
                "with skip_all_reduce_unused_params; use exchange.junction=after_backward"
            )
        self._exchange = exchange
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        self._plan = Plan(None)
        self._gradients: dict[str, Tensor] = {}  # of the buckets under way
        self._error: BaseException | None = None
        # DDP leaves the gradient of a parameter that no rank used as it was, hook or not.
        self._leaves_some = bool(model.find_unused_parameters or model.static_graph)
        self._means: list[tuple[nn.Parameter, Tensor]] = []
        self._buckets: queue.SimpleQueue[HandedOver | None] = queue.SimpleQueue()  # None: the end
        model.register_comm_hook(self, _hand_over)
        self._thread = threading.Thread(target=self._serve, name="gradient exchange", daemon=True)
        self._thread.start()

    def begin(self, plan: Plan) -> None:
        self._plan = plan

    def open(self, worker: int) -> str | None:
        # The buckets have been opened during backward. An error is raised before the next collective:
        # the ranks that wait for this one then lose it, and end too.
        if self._error is not None:
            raise self._error
        return self._exchange.non_finite.get(worker)

    def finish(self) -> None:
        for parameter, mean in self._means:
            if parameter.grad is None:
                parameter.grad = mean.clone()
            elif parameter.grad.data_ptr() != mean.data_ptr():
                parameter.grad.copy_(mean)
        self._means.clear()

    def close(self) -> None:
        """End the communication thread, which keeps all this alive. Between two steps."""
        self._buckets.put(None)
        self._thread.join()

    def _serve(self) -> None:
        """The communication thread: one bucket after another, in DDP's order, the same on all ranks."""
        device = self._exchange.link.wire.device
        if device.type != "cuda":
            self._serve_buckets(None)
            return
        # The current device and stream are each thread's own. On a stream of its own, waiting for a
        # collective does not hold up backward.
        torch.cuda.set_device(device)
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            self._serve_buckets(stream)

    def _serve_buckets(self, stream: torch.cuda.Stream | None) -> None:
        here: list[HandedOver] = []  # the buckets of this backward that have come
        received = 0
        while True:
            try:
                handed_over = self._buckets.get(
                    timeout=LOOK_EVERY_SECONDS if received < len(here) else None
                )
            except queue.Empty:
                received += self._receive_landed(here[received][0].index())
                continue
            if handed_over is None:
                return
            bucket, _, filled = handed_over
            if stream is not None and filled is not None:
                stream.wait_event(filled)
            if not here:
                self._means.clear()  # of a step that was discarded
            here.append(handed_over)
            if self._error is None:
                try:
                    self._send(bucket)
                    if bucket.is_last():
                        for earlier, _, _ in here:
                            self._finish(earlier.index())
                except BaseException as error:  # kept, and raised after backward by `open`
                    self._error = error
            if bucket.is_last():
                for earlier, future, _ in here:
                    future.set_result(earlier.buffer())
                here, received = [], 0

    def _receive_landed(self, part: int) -> bool:
        """Decompress a bucket whose collectives have landed; this begins no others. Whether it is done
        with: nothing is left to do before the last bucket comes."""
        if self._error is not None:
            return True
        try:
            if not self._exchange.landed(part):
                return False
            self._exchange.receive(part)
        except BaseException as error:
            self._error = error
        return True

    def _send(self, bucket: Any) -> None:
        names = [self._names[id(parameter)] for parameter in bucket.parameters()]
        # DDP fills the bucket in the parameters' memory order (channels last: [O, H, W, I]) but
        # cuts it into contiguous tensors of their logical shapes.
        laid_out = [
            gradient.as_strided(parameter.size(), parameter.stride(), gradient.storage_offset())
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
        ]
        gradients = dict(zip(names, map(in_memory_order, laid_out), strict=True))
        self._gradients.update(gradients)
        part = bucket.index()
        self._exchange.open(0, gradients, self._plan, part=part)
        self._exchange.send(part)
        if self._leaves_some:
            self._means += zip(bucket.parameters(), laid_out, strict=True)

    def _finish(self, part: int) -> None:
        for name, mean in self._exchange.finish(part).items():
            put(mean, self._gradients.pop(name))


# DDP compares a hook's annotations with classes, and postponed annotations are strings: hence none.
def _hand_over(junction, bucket):  # type: ignore[no-untyped-def]
    future = _future(bucket)
    filled = torch.cuda.current_stream().record_event() if bucket.buffer().is_cuda else None
    junction._buckets.put((bucket, future, filled))
    return future


def _leave_alone(state, bucket):  # type: ignore[no-untyped-def]
    future = _future(bucket)
    future.set_result(bucket.buffer())
    return future


def _future(bucket: Any) -> torch.futures.Future[Tensor]:
    """A future that hands a GPU's pending work on to whoever waits for it."""
    device = bucket.buffer().device
    return torch.futures.Future(devices=[device] if device.type == "cuda" else None)


def wrap(module: nn.Module, device: torch.device) -> DistributedDataParallel:
    """DDP as this project uses it: buffers are not broadcast in every forward (they are before each
    evaluation, counted), gradients are views into DDP's buckets (no copies in or out)."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    no_broadcast = (
        "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    )
    settings: dict[str, Any] = {no_broadcast: False}
    devices = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(
        module, device_ids=devices, gradient_as_bucket_view=True, **settings
    )


AFTER_BACKWARD, PER_BUCKET = JUNCTIONS = ("after_backward", "per_bucket")


def join(
    kind: str, exchange: GradientExchange, model: DistributedDataParallel
) -> AfterBackward | PerBucket:
    """The junction of a kind on a DDP model that has no communication hook yet."""
    if kind == PER_BUCKET:
        return PerBucket(exchange, model)
    leave_alone(model)
    return AfterBackward(exchange, trained(model))


def leave_alone(model: DistributedDataParallel) -> None:
    """Have backward leave every worker its own gradients."""
    model.register_comm_hook(None, _leave_alone)


def trained(model: DistributedDataParallel) -> dict[str, nn.Parameter]:
    """The parameters that get gradients, by name: frozen ones are neither sent nor given any."""
    return {name: p for name, p in model.module.named_parameters() if p.requires_grad}


def exchange_group(timeout_seconds: float) -> dist.ProcessGroup:
    """A process group of its own for the communication thread."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout_seconds))
    assert isinstance(group, dist.ProcessGroup)
    return group


class Attached:
    """A compressor at work in somebody's own DDP loop. Call `step` between backward and the
    optimizer; `state_dict` belongs into the loop's checkpoint, one per rank."""

    def __init__(
        self,
        exchange: GradientExchange,
        junction: AfterBackward | PerBucket,
        policy: Policy,
        parameters: Parameters,
    ) -> None:
        self.ledger = exchange.link.ledger
        self._exchange = exchange
        self._junction = junction
        self._policy = policy
        self._policy_state = policy.init()
        self._parameters = parameters
        self._seconds = self._ended = 0.0  # of the last step, and when it ended
        exchange.choose = self._choose
        self._plan_next()

    @property
    def learning_rate(self) -> float:
        """Of the coming step: set it before its backward. Read by `BlockMomentum` alone."""
        return self._exchange.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._exchange.learning_rate = value

    def step(self) -> None:
        """Exchange the gradients: ``param.grad`` becomes the mean over workers, on all ranks alike.

        Raises UserError on all ranks when a gradient is not finite; no residual has seen it.
        """
        exchange = self._exchange
        bad = self._junction.open(0)
        told = [self._seconds] if measures(self._policy) else []
        energies = exchange.energies(self._plan)
        not_finite, *heard = share(exchange.link, [float(bad is not None), *told, *energies])
        if not_finite:
            exchange.discard()
            refuse_non_finite(exchange.link, [bad], exchange.step)
        self._junction.finish()
        exchange.commit()
        workers = exchange.link.wire.world_size
        if energies:
            self._choose((torch.tensor(heard[1:], dtype=torch.float64) / workers).float())
        if heard and exchange.step > 1:
            report = StepReport(exchange.step - 2, heard[0] / workers, float(workers))
            self._policy_state = self._policy.after_step(self._policy_state, report)
        exchange.link.clock.end_step(0.0)
        now = time.perf_counter()
        self._seconds, self._ended = (now - self._ended if self._ended else math.nan), now
        self._plan_next()

    def end_epoch(self, report: EpochReport) -> None:
        """Tell the policy how the epoch went; the numbers must be the same on all ranks. For `Accordion`
        with ``gradient_norms``."""
        self._policy_state = self._policy.observe(self._policy_state, report)
        self._plan_next()

    def close(self) -> None:
        """Let go of the model, on all ranks together: the communication thread ends, and its process
        group with it. A model that has been attached is then done with: its hook stays."""
        if isinstance(self._junction, PerBucket):
            self._junction.close()
            wire = self._exchange.link.wire
            if isinstance(wire, ProcessGroupWire) and wire.group is not None:
                dist.destroy_process_group(wire.group)

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals and other compressor state, the policy's state, the ledger."""
        return {
            "world_size": self._exchange.link.wire.world_size,
            "rank": self._exchange.link.wire.rank,
            "exchange": self._exchange.state_dict(),
            "policy": self._policy_state,
            "ledger": self.ledger.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. Raises ValueError when it is another world size's or rank's."""
        wire = self._exchange.link.wire
        if state["world_size"] != wire.world_size:
            raise ValueError(
                f"world_size: the state was saved by {state['world_size']} workers, this world has "
                f"{wire.world_size}; residuals are kept per worker"
            )
        if state["rank"] != wire.rank:
            raise ValueError(
                f"rank: the state was saved by rank {state['rank']}, this is rank {wire.rank}; each rank "
                "saves and loads its own"
            )
        self._exchange.load_state_dict(state["exchange"])
        self._policy_state = state["policy"]
        self.ledger.load_state_dict(state["ledger"])
        self._plan_next()

    def _choose(self, energies: Tensor) -> int:
        rung, self._policy_state = self._policy.choose(self._policy_state, energies)
        return rung

    def _plan_next(self) -> None:
        self._plan = self._policy.plan(self._policy_state, self._exchange.step)
        self._junction.begin(self._plan)


def fit_together(compressor: Compressor, policy: Policy, unit: str, junction: str) -> None:
    """Raise UserError unless unit and junction are known, suit compressor and policy and each other,
    and the policy's rungs are the ladder's."""
    if unit not in UNITS:
        raise UserError(f"exchange.unit: one of {', '.join(UNITS)}, got {unit!r}")
    if junction not in JUNCTIONS:
        raise UserError(f"exchange.junction: one of {', '.join(JUNCTIONS)}, got {junction!r}")
    if junction == PER_BUCKET and unit == MODEL:
        raise UserError(
            "exchange.junction: per_bucket sends each bucket as it comes, exchange.unit=model needs "
            "all gradients first; use exchange.junction=after_backward"
        )
    if junction == PER_BUCKET and policy.chooses:
        other = " or policy.decide=last" if hasattr(policy, "decide") else ""
        raise UserError(
            "exchange.junction: per_bucket needs plans made before the step, and this policy decides "
            f"from the step's gradients; use exchange.junction=after_backward{other}"
        )
    if junction == PER_BUCKET and policy.watches in (OWN, SPREAD):
        raise UserError(
            "exchange.junction: per_bucket sends each worker's own gradient away, and this policy looks "
            "at it; use exchange.junction=after_backward"
        )
    if unit == MODEL and policy.watches in (MEAN, OWN):
        raise UserError(
            "exchange.unit: model joins all tensors into one, and this policy judges each by itself; use "
            "exchange.unit=layer"
        )
    try:
        check_nesting(compressor)
    except ValueError as error:
        raise UserError(str(error)) from error
    planned = len(policy.values) + 1
    for part in nested(compressor):
        if isinstance(part, Ladder) and len(part.rungs) != planned:
            raise UserError(
                f"policy: plans {planned} rungs (dense and policy.values), the ladder has {len(part.rungs)}; "
                "give a policy whose values are the ladder's"
            )
        if isinstance(part, ClipLocal) and junction == PER_BUCKET:
            raise UserError(
                "wrap: clip_local needs the norm of the whole gradient, exchange.junction=per_bucket "
                "sends each bucket as it comes; use exchange.junction=after_backward"
            )
        needed = getattr(part, "unit", unit)
        if needed != unit:
            raise UserError(
                f"exchange.unit: {type(part).__name__} needs exchange.unit={needed}, got {unit!r}"
            )
        if isinstance(part, PerLayer) and unit == MODEL:
            raise UserError(
                "wrap: per_layer chooses between tensors, exchange.unit=model joins them into one; "
                "leave one of them out"
            )


def attach(
    model: DistributedDataParallel,
    compressor: Compressor,
    policy: Policy | None = None,
    *,
    seed: int = 0,
    unit: str = "layer",
    junction: str = "after_backward",
    check: bool = False,
    timeout_seconds: float = 600.0,
) -> Attached:
    """Give any DDP training loop a compressor (docs/own-loop.md).

    ``compressor``: any compressor, wrappers included; ``policy``: plans rungs of a `Ladder` (default
    `Fixed`). ``seed`` must be the same on all ranks. ``check`` compares what ranks are about to ask
    before each collective. Raises UserError (a ValueError) where the parts do not fit together.
    """
    policy = policy or Fixed()
    fit_together(compressor, policy, unit, junction)
    if policy.watches == SPREAD:
        raise UserError(
            f"policy: {type(policy).__name__} asks for the squares of every step's gradients, which an "
            "attached loop does not tell; train with python -m dgc_repro, or take another policy"
        )
    parameters = trained(model)
    device = next(iter(parameters.values())).device
    group = exchange_group(timeout_seconds) if junction == PER_BUCKET else None
    link = Link(ProcessGroupWire(device, group), Ledger(), Clock(device), check=check)
    exchange = GradientExchange(compressor, parameters, link, seed=seed, unit=unit)
    return Attached(exchange, join(junction, exchange, model), policy, parameters)
