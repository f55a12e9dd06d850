"""DistributedDataParallel: the two junctions where an exchange takes the gradients.

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
import queue
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.interface import Compressor, check_complete, nested, wrong_shape
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.nesting import check_nesting
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.errors import UserError, refuse_first_of
from dgc_repro.exchange.gradients import MODEL, UNITS, GradientExchange, in_memory_order
from dgc_repro.exchange.process_group import ProcessGroupWire, group_of_some
from dgc_repro.exchange.wire import Wire
from dgc_repro.policy.interface import MEAN, OWN, SPREAD, Plan, Policy


class HasScale(Protocol):
    """What is needed of a GradScaler."""

    def get_scale(self) -> float: ...


Parameters = Mapping[str, nn.Parameter]
HandedOver = tuple[Any, torch.futures.Future[Tensor], torch.cuda.Event | None]
"""A bucket, what DDP waits for, and, on a GPU, when its gradients will be there."""
LOOK_EVERY_SECONDS = 1e-3
"""How often the communication thread looks whether a collective has landed, when no bucket comes."""


class Junction(Protocol):
    """Where the exchange takes the gradients of a step. ``missing``: parameters without a gradient at all
    workers hosted here, when these have been opened."""

    overlaps: bool
    _plan: Plan = Plan(None)

    @property
    def missing(self) -> frozenset[str]: ...

    def begin(self, plan: Plan) -> None:
        """Announce the plan of the coming backward."""
        self._plan = plan

    def open(self, worker: int) -> str | None:
        """Backward of a worker is over: its gradients may be compressed. Returns the name of one that
        is not finite, if there is one. Raises what the exchange raised during backward."""

    def serve(self) -> None:
        """Exchange what was opened, unless that has happened during backward. The step may still be
        discarded."""

    def finish(self, absent: Collection[str]) -> None:
        """Put the means into ``param.grad``, but for the ``absent`` parameters (exchange/settle.py)."""


def put(mean: Tensor, gradient: Tensor) -> None:
    """Write a mean into a gradient, unless it has been computed there."""
    if mean.data_ptr() != gradient.data_ptr():
        refuse_shape(mean, gradient)
        gradient.copy_(mean)


def refuse_shape(mean: Tensor, gradient: Tensor) -> None:
    """Raise UserError where a compressor has returned a mean of another shape."""
    if said := wrong_shape(mean, gradient.shape):
        raise UserError(f"compressor: {said}")


def copy_all(to: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Write tensors into others, those of one type in one launch on a GPU."""
    by_types: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for one, other in zip(to, given, strict=True):
        types = one.dtype, other.dtype
        if types not in by_types:
            by_types[types] = [], []
        ones, others = by_types[types]
        ones.append(one)
        others.append(other)
    for ones, others in by_types.values():
        torch._foreach_copy_(ones, others)


def _in_one_order(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape lie in memory in one order. (To compare strides takes longer.)"""
    return (one.is_contiguous() and other.is_contiguous()) or one.stride() == other.stride()


class AfterBackward(Junction):
    """The exchange of all tensors at once, when backward is over."""

    overlaps = False
    missing: frozenset[str] = frozenset()

    def __init__(
        self, exchange: GradientExchange, parameters: Parameters, *, views: bool = False
    ) -> None:
        """``views``: gradients may be views of reused buffers, as with DDP's ``gradient_as_bucket_view``."""
        self.pending = False  # DDP has seen a backward since the last step
        self._exchange = exchange
        self._parameters = parameters
        self._views = views
        self._means: Mapping[str, Tensor] = {}  # served, and not put into gradients yet

    def hand_over(self, bucket: Any, future: torch.futures.Future[Tensor]) -> None:
        """Backward has filled a bucket of DDP's: it stays as it is."""
        self.pending = True
        future.set_result(bucket.buffer())

    def open(self, worker: int) -> str | None:
        gradients = self.gradients(worker)
        self.pending, self._means = False, {}
        return self._exchange.open_any(worker, gradients, self._plan)

    def serve(self) -> None:
        self._means = self._exchange.finish()

    def finish(self, absent: Collection[str]) -> None:
        means, self._means = self._means, {}
        lent = self._exchange.buffers.storages() if self._views else ()
        to: list[Tensor] = []
        given: list[Tensor] = []
        for name, parameter in self._parameters.items():
            if name in absent:
                continue
            mean, gradient = means[name], parameter.grad
            if gradient is not None and gradient.data_ptr() == mean.data_ptr():
                continue  # it was computed there
            if (
                lent
                and mean.untyped_storage().data_ptr() in lent
                and mean.dtype == parameter.dtype
                and mean.numel() == parameter.numel()
                and mean.is_contiguous()
            ):
                parameter.grad = mean.as_strided(parameter.size(), parameter.stride())  # no copy
                continue
            if gradient is None:  # another worker has one
                gradient = parameter.grad = torch.empty_like(parameter)
            to.append(in_memory_order(gradient))
            refuse_shape(mean, to[-1])
            given.append(mean)
        copy_all(to, given)

    def close(self) -> None:
        """Nothing to end."""

    def gradients(self, worker: int = 0) -> dict[str, Tensor]:
        """Gradients of a worker by name; zeros for a parameter without one, which is `missing`."""
        found, missing = {}, set()
        lent = self._exchange.buffers.storages() if self._views else ()
        for name, parameter in self._parameters.items():
            gradient = parameter.grad
            if lent and gradient is not None and gradient.untyped_storage().data_ptr() in lent:
                parameter.grad = gradient = gradient.clone()  # a mean of the last step
            if gradient is None or not parameter.requires_grad:
                missing.add(name)
                gradient = torch.zeros_like(parameter)
            elif gradient.layout != torch.strided:
                raise UserError(sparse_gradient(name))
            elif not (
                _in_one_order(gradient, parameter)  # states and means are laid out like it
                and not gradient.is_neg()
                and not gradient.is_conj()
            ):
                parameter.grad = gradient = torch.empty_like(parameter).copy_(gradient)
            found[name] = in_memory_order(gradient)
        self.missing = frozenset(missing if worker == 0 else self.missing & missing)
        return found


class PerBucket(Junction):
    """The exchange of each bucket while backward goes on; plans must be known before the step."""

    overlaps = True

    def __init__(
        self,
        exchange: GradientExchange,
        parameters: Parameters,
        *,
        leaves_some: bool,
        views: bool = False,
        scaler: HasScale | None = None,
    ) -> None:
        """``leaves_some``: whether DDP leaves the gradient of a parameter that no rank used as it was,
        hook or not. ``views``: gradients are views of DDP's buckets. ``scaler``: of the loss. Each bucket is
        unscaled before it is compressed, and the means stay unscaled."""
        self.scale = 1.0  # of the loss in the last backward
        self._scaler = scaler
        self.pending = False  # the exchange of a backward has not been finished by a step
        self._exchange = exchange
        self._parameters = parameters
        self._names = {id(p): name for name, p in parameters.items()}
        self._laid_out: dict[str, Tensor] = {}  # gradients, then means, in DDP's buckets
        self._error: BaseException | None = None
        self._leaves_some = leaves_some
        self._views = views
        self.has_all = False  # the last bucket of a backward has been handed over
        self._buckets: queue.SimpleQueue[HandedOver | None] = queue.SimpleQueue()  # None: the end
        self._thread = threading.Thread(target=self._serve, name="gradient exchange", daemon=True)
        self._thread.start()

    @property
    def missing(self) -> frozenset[str]:
        """A frozen parameter has no gradient, whatever an earlier step has left."""
        learn = self._parameters.items()
        return frozenset(n for n, p in learn if p.grad is None or not p.requires_grad)

    def hand_over(self, bucket: Any, future: torch.futures.Future[Tensor]) -> None:
        """Backward has filled a bucket of DDP's: the communication thread takes it from here."""
        if self.has_all:
            self.refuse_another()
        self.pending = True
        self.has_all = bucket.is_last()
        buffer = bucket.buffer()
        filled = torch.cuda.current_stream(buffer.device).record_event() if buffer.is_cuda else None
        self._buckets.put((bucket, future, filled))
        if self.has_all and self._leaves_some:
            # Now DDP sends its bitmap of used parameters, in the model's group. With nccl all ranks have to
            # begin the collectives of two groups in one order.
            future.wait()

    def refuse_another(self) -> NoReturn:
        """A backward has sent its gradients, no step has finished it, and another is about to begin."""
        raise self._error or UserError(
            "overlap=true: the gradients of a backward have been sent, and another pass began before "
            "exchange.step(); call it after the last backward of a step (skip=True leaves the step out), and "
            "run those before it under `with model.no_sync():`, or use overlap=false"
        )

    def open(self, worker: int) -> str | None:
        # The buckets have been opened during backward. An error is raised before the next collective:
        # the ranks that wait for this one then lose it, and end too.
        if self._error is not None:
            raise self._error
        if not self.has_all:
            raise UserError(
                "exchange.overlap=true: there was no whole backward since the last step; call "
                "exchange.step() once a step, leave the "
                "last backward of a step outside no_sync(), and wrap a model with unused parameters in "
                "DistributedDataParallel(..., find_unused_parameters=True)"
            )
        if outside := self._parameters.keys() - self._laid_out.keys():
            raise UserError(
                f"model: {min(outside)} was frozen when the module was wrapped in DDP and learns now; "
                "detach, wrap the module in DDP again, and attach"
            )
        self.pending = self.has_all = False
        return self._exchange.non_finite.get(worker)

    def serve(self) -> None:
        """Each bucket was exchanged during backward."""

    def finish(self, absent: Collection[str]) -> None:
        for name, mean in self._laid_out.items() if self._leaves_some else ():
            gradient = self._parameters[name].grad
            if gradient is None:
                continue  # DDP and `missing` agree: no rank has used it
            if name not in absent:
                put(mean, gradient)
            elif gradient.data_ptr() == mean.data_ptr() or (
                # torch's wrapper of a hook hands over a copy of the bucket in another type.
                self._views and gradient.dtype != mean.dtype
            ):
                gradient.zero_()  # frozen: what zero_grad had left in the bucket
        self._laid_out.clear()

    def close(self) -> None:
        """End the communication thread, which keeps all this alive. Between two steps."""
        self._buckets.put(None)
        self._thread.join()

    def _serve(self) -> None:
        """The communication thread: one bucket after another, in DDP's order, the same on all ranks."""
        device = self._exchange.link.wire.device
        if device.type == "cuda":
            # The current device and stream are each thread's own. On a stream of its own, waiting for a
            # collective does not hold up backward.
            torch.cuda.set_device(device)
            torch.cuda.set_stream(torch.cuda.Stream(device))
        here: list[HandedOver] = []  # the buckets of this backward that have come
        received = 0
        while True:
            try:
                handed_over = self._buckets.get(
                    timeout=LOOK_EVERY_SECONDS if received < len(here) else None
                )
            except queue.Empty:
                received += self._try(self._receive_landed, here[received][0].index())
                continue
            if handed_over is None:
                return
            bucket, _, filled = handed_over
            if filled is not None:
                torch.cuda.current_stream().wait_event(filled)
            if not here:
                self._laid_out.clear()  # of a step that was discarded
                self.scale = 1.0 if self._scaler is None else self._scaler.get_scale()
            here.append(handed_over)
            self._try(self._send, bucket)
            if bucket.is_last():
                for earlier, _, _ in here:
                    self._try(self._finish, earlier.index())
                for earlier, future, _ in here:
                    future.set_result(earlier.buffer())
                here, received = [], 0

    def _try(self, do: Callable[[Any], Any], of: Any) -> Any:
        """Do a part of the exchange, unless one has failed: its error is raised after backward by `open`."""
        if self._error is None:
            try:
                return do(of)
            except BaseException as error:
                self._error = error
        return True

    def _receive_landed(self, part: int) -> bool:
        """Decompress a bucket whose collectives have landed; this begins no others. Whether they have."""
        landed = self._exchange.landed(part)
        if landed:
            self._exchange.receive(part)
        return landed

    def _send(self, bucket: Any) -> None:
        part, names = bucket.index(), self._names
        laid_out = zip(bucket.parameters(), _laid_out(bucket), strict=True)
        # Those without a name were frozen before `attach`.
        here = {names[id(p)]: gradient for p, gradient in laid_out if id(p) in names}
        self._laid_out |= here
        if self.scale != 1 and here:
            if bucket.buffer().dtype == torch.float16:
                raise UserError(
                    "scaler: fp16_compress_wrapper rounds to float16 what is unscaled next, so that small "
                    "gradients are lost; use bf16_compress_wrapper, or none"
                )
            torch._foreach_mul_(list(here.values()), 1 / self.scale)
        gradients = {name: in_memory_order(gradient) for name, gradient in here.items()}
        self._exchange.open(0, gradients, self._plan, part=part)
        self._exchange.send(part)

    def _finish(self, part: int) -> None:
        for name, mean in self._exchange.finish(part).items():
            put(mean, in_memory_order(self._laid_out[name]))


def _laid_out(bucket: Any) -> list[Tensor]:
    """The gradients in a bucket, in their parameters' layouts.

    DDP fills a bucket in the parameters' memory order (channels last: [O, H, W, I]) but cuts it into
    contiguous tensors of their logical shapes. Of complex parameters it has the real view, cut at the
    places of the complex one."""
    whole = bucket.buffer()
    first = whole.storage_offset()
    if bucket.parameters()[0].is_complex():
        whole = torch.view_as_complex(whole.view(-1, 2))
    found = []
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        place = whole.storage_offset() + gradient.storage_offset() - first
        found.append(whole.as_strided(parameter.size(), parameter.stride(), place))
    return found


@dataclass(eq=False)
class Hook:
    """The one communication hook that DDP lets a model have, for good. It hands buckets to the junction
    that is attached, and averages them in the model's ``group`` as DDP does while none is."""

    group: dist.ProcessGroup | None = None
    junction: AfterBackward | PerBucket | None = None
    finish: Callable[[], None] | None = None  # after each backward that DDP reduces

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the model, or one from a file, is a plain DDP model."""
        return Hook, ()


_HOOKS: weakref.WeakKeyDictionary[DistributedDataParallel, Hook] = weakref.WeakKeyDictionary()


def refuse_capture() -> None:
    """Raise UserError where operations become a CUDA graph: a replay would leave out what the host does."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise UserError(
            "torch.cuda.graph: a step with a compressor cannot be captured, because the host takes part in "
            "the exchange; leave forward, backward and exchange.step() outside, and capture parts of the "
            "module with torch.cuda.make_graphed_callables before DistributedDataParallel wraps it"
        )


# DDP compares a hook's annotations with classes, and postponed annotations are strings: hence none.
def hand_over(hook, bucket):  # type: ignore[no-untyped-def]
    """DDP's communication hook; ``hook``: a `Hook`."""
    if hook.junction is not None:
        refuse_capture()
        # A GPU's pending work is handed on to whoever waits for this.
        devices = [bucket.buffer().device] if bucket.buffer().is_cuda else None
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        hook.junction.hand_over(bucket, future)
        if hook.finish is not None and bucket.is_last():
            # DDP asks for its own callback, which puts buckets into gradients, after this: hence two hops.
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(partial(engine.queue_callback, hook.finish))
        return future
    mean = bucket.buffer().div_(dist.get_world_size(hook.group))
    work = dist.all_reduce(mean, group=hook.group, async_op=True)
    return work.get_future().then(lambda landed: landed.value()[0])


def refuse_missing_buckets(model: DistributedDataParallel) -> None:
    """Raise UserError where DDP may leave buckets out."""
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise UserError(
            "exchange.overlap=true: every step needs every bucket, and the model was wrapped "
            "with skip_all_reduce_unused_params; use exchange.overlap=false"
        )


def hook_of(model: DistributedDataParallel, overlap: bool) -> Hook:
    """The hook of a model to which nothing is attached. Raises UserError where it has another's, or DDP may
    leave buckets out that ``overlap`` needs."""
    if overlap:
        refuse_missing_buckets(model)
    hook = _HOOKS.get(model)
    if hook is None:
        hook = Hook(model.process_group)
        # A copy of a model lists the hook of the model, and does not have it.
        foreign = any(not isinstance(state, Hook) for _, state in getattr(model, "_comm_hooks", ()))
        try:
            if not foreign:
                model.register_comm_hook(hook, hand_over)
        except RuntimeError:  # a built-in hook, which is in no list
            foreign = True
        if foreign:
            raise UserError(
                "model: it has a communication hook already (register_comm_hook, mixed_precision or an "
                "optimizer in backward), and DDP allows one; wrap the module in DDP again, without it"
            )
        _HOOKS[model] = hook
    if hook.junction is not None:
        raise UserError(
            "model: a compressor is attached to it already; call detach() of what attach returned first"
        )
    return hook


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


def junction_of(
    model: DistributedDataParallel,
    exchange: GradientExchange,
    overlap: bool,
    scaler: HasScale | None = None,
) -> AfterBackward | PerBucket:
    """The junction for a model's hook."""
    parameters, views = parameters_of(model), bool(model.gradient_as_bucket_view)
    if overlap:
        leaves_some = bool(model.find_unused_parameters or model.static_graph)
        return PerBucket(exchange, parameters, leaves_some=leaves_some, views=views, scaler=scaler)
    return AfterBackward(exchange, parameters, views=views)


def parameters_of(
    model: DistributedDataParallel, *, learning: bool = True
) -> dict[str, nn.Parameter]:
    """The parameters that get gradients, or the frozen ones, by name, without those that DDP was told to
    ignore."""
    ignored = getattr(model, "parameters_to_ignore", ())
    named = model.module.named_parameters()
    return {n: p for n, p in named if p.requires_grad == learning and n not in ignored}


def sparse_gradient(name: str) -> str:
    """The refusal of a sparse gradient."""
    return f"model: {name} has sparse gradients, which are not compressed; build its layer with sparse=False"


def exchange_group(
    timeout_seconds: float, model_group: Any = None, device: torch.device | None = None
) -> dist.ProcessGroup:
    """A process group of its own for the communication thread, of the ranks in ``model_group`` (default:
    all). ``device``: of the model, where ``model_group`` is given."""
    if model_group is None or model_group is dist.group.WORLD:
        group = dist.new_group(None, datetime.timedelta(seconds=timeout_seconds))
        assert isinstance(group, dist.ProcessGroup)
        return group
    assert device is not None
    ranks = dist.get_process_group_ranks(model_group)
    return group_of_some(ranks, [model_group], device, timeout_seconds)


def end_group(wire: Wire) -> None:
    """End the process group of a communication thread, on all its ranks together."""
    if isinstance(wire, ProcessGroupWire) and wire.group is not None:
        dist.destroy_process_group(wire.group)


def fit_together(compressor: Compressor, policy: Policy, unit: str, overlap: bool) -> None:
    """Raise UserError unless unit and overlap are known, suit compressor and policy and each other,
    and the policy's rungs are the ladder's."""
    late = " or policy.decide=last" if hasattr(policy, "decide") else ""
    refuse_first_of(
        {
            f"exchange.unit: one of {', '.join(UNITS)}, got {unit!r}": unit not in UNITS,
            f"exchange.overlap: true or false, got {overlap!r}": not isinstance(overlap, bool),
            "exchange.overlap=true: each bucket is sent as it comes, and exchange.unit=model "
            "needs all gradients first; use exchange.overlap=false": overlap and unit == MODEL,
            "exchange.overlap=true: plans are needed before the step, and this policy decides from the "
            f"step's gradients; use exchange.overlap=false{late}": overlap and policy.chooses,
            "exchange.overlap=true: each worker's own gradient is sent away, and this policy "
            "needs it; use exchange.overlap=false": overlap and policy.watches in (OWN, SPREAD),
            "exchange.unit: model joins all tensors into one, and this policy judges each by itself; "
            "use exchange.unit=layer": unit == MODEL and policy.watches in (MEAN, OWN),
        }
    )
    try:
        check_complete(compressor)
        check_nesting(compressor)
    except ValueError as error:
        raise UserError(str(error)) from error
    planned = len(policy.values) + 1
    for part in nested(compressor):
        rungs = len(part.rungs) if isinstance(part, Ladder) else planned
        refuse_first_of(
            {
                f"policy: plans {planned} rungs (dense and policy.values), the ladder has {rungs}; give a "
                "policy whose values are the ladder's": rungs != planned,
                "wrap: clip_local needs the norm of the whole gradient, exchange.overlap=true sends each "
                "bucket as it comes; use exchange.overlap=false": overlap
                and isinstance(part, ClipLocal),
                "wrap: per_layer chooses between tensors, exchange.unit=model joins them into one; "
                "leave one of them out": unit == MODEL and isinstance(part, PerLayer),
            }
        )
