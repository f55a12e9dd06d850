"""The one communication hook that DistributedDataParallel lets a model have, for good."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.errors import UserError
from dgc_repro.exchange.guard import untraced
from dgc_repro.exchange.junction import AfterBackward, PerBucket


@dataclass(eq=False)
class Hook:
    """It hands buckets to the junction that is attached, and averages them in the model's ``group`` as DDP
    does while none is. ``finish``: called at the end of each backward that DDP reduces, when DDP has put its
    buckets into gradients. What it raises, ``backward()`` raises, and DDP is ready for the next forward."""

    group: dist.ProcessGroup | None = None
    junction: AfterBackward | PerBucket | None = None
    finish: Callable[[], None] | None = None
    owner: object = None  # what is attached, which a user need not keep

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the model, or one from a file, is a plain DDP model."""
        return Hook, ()


_HOOKS: weakref.WeakKeyDictionary[DistributedDataParallel, Hook] = weakref.WeakKeyDictionary()


# DDP compares a hook's annotations with classes, and postponed annotations are strings: hence none.
@untraced
def hand_over(hook, bucket):  # type: ignore[no-untyped-def]
    """DDP's communication hook; ``hook``: a `Hook`."""
    if hook.junction is None:
        mean = bucket.buffer().div_(dist.get_world_size(hook.group))
        work = dist.all_reduce(mean, group=hook.group, async_op=True)
        return work.get_future().then(lambda landed: landed.value()[0])
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


def hook_of(model: DistributedDataParallel, overlap: bool) -> Hook:
    """The hook of a model to which nothing is attached. Raises UserError where it has another's, or DDP may
    leave buckets out that ``overlap`` needs."""
    if overlap and getattr(model, "skip_all_reduce_unused_params", False):
        raise UserError(
            "exchange.overlap=true: every step needs every bucket, and the model was wrapped "
            "with skip_all_reduce_unused_params; use exchange.overlap=false"
        )
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


def refuse_capture() -> None:
    """Raise UserError where operations become a CUDA graph: a replay would leave out what the host does."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise UserError(
            "torch.cuda.graph: a step with a compressor cannot be captured, because the host takes part in "
            "the exchange; leave forward and backward outside, and capture parts of the module with "
            "torch.cuda.make_graphed_callables before DistributedDataParallel wraps it"
        )


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
