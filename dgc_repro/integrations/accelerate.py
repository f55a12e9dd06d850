"""A compressor for a loop with Accelerate, by one call after ``accelerator.prepare`` (docs/frameworks.md).

Usage::

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    state = attach(accelerator, model, ErrorFeedback(TopK(density=0.01)))
    ...
    accelerator.log({"loss": loss} | state.metrics(), step=step)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError
from dgc_repro.exchange.attached import Attached
from dgc_repro.exchange.door import attach as attach_to
from dgc_repro.policy.interface import Policy

if TYPE_CHECKING:
    from accelerate import Accelerator


def attach(
    accelerator: Accelerator,
    model: nn.Module,
    compressor: Compressor,
    policy: Policy | None = None,
    *,
    reshard: str = "refuse",
    **options: Any,
) -> Attached:
    """Compress the gradients of a prepared model, in each backward outside ``no_sync``, and keep the state of
    every rank in ``accelerator.save_state`` and ``load_state``. ``reshard``: see
    `Attached.load_state_dict`; ``options``: of `dgc_repro.attach`.

    The loop logs when it calls ``accelerator.log``: give it ``state.metrics()`` too, whose names and meanings
    `Attached.metrics` has (bytes are summed since the start). It is no collective, so that the main process
    may call it alone.

    Raises UserError where ``accelerator.prepare`` has not wrapped the model in DDP."""
    if not isinstance(model, DistributedDataParallel):
        raise UserError(
            f"model: attach takes what accelerator.prepare has wrapped in DDP, got {type(model).__name__}; "
            "prepare it first, in a run that accelerate launch or torchrun has started"
        )
    state = attach_to(model, compressor, policy, scaler=accelerator.scaler, **options)
    accelerator.register_for_checkpointing(state.gathered(reshard=reshard))
    return state
