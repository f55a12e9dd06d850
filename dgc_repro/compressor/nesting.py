"""Which wrappers may stand where: the order of nesting is meaning, and some orders mean nothing.

clip_local                            sees the gradient as backward left it, all of it
  momentum_correction, block_momentum, onebit_adam   one of them, and of every tensor
    per_layer, ladder, error_feedback     in any order
    loco                                  in the place of error_feedback
"""

from __future__ import annotations

from dgc_repro.compressor.block_momentum import BlockMomentum
from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor, nested
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.loco import LoCo
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.onebit_adam import OneBitAdam
from dgc_repro.compressor.per_layer import PerLayer

MOMENTUM = (MomentumCorrection, BlockMomentum, OneBitAdam)
KEEP = (ErrorFeedback, BlockMomentum, LoCo)
"""Wrappers that keep what the method inside them loses."""
NAMES: dict[type, str] = {
    OneBitAdam: "onebit_adam",
    MomentumCorrection: "momentum_correction",
    BlockMomentum: "block_momentum",
}

AROUND = {
    ErrorFeedback: (
        "error_feedback",
        "would keep a residual of the gradient that velocity is sent for",
    ),
    PerLayer: ("per_layer", "would leave some tensors without momentum"),
    Ladder: ("ladder", "would leave rung 0 without momentum"),
    LoCo: ("loco", "would keep an error of the gradient that velocity is sent for"),
}


def check_nesting(compressor: Compressor) -> None:
    """Raise ValueError, naming ``wrap``, where wrappers stand in an order that is none."""
    inside = compressor.inner if isinstance(compressor, ClipLocal) else compressor
    if any(isinstance(part, ClipLocal) for part in nested(inside)):
        raise ValueError(
            "wrap: clip_local clips the gradient before anything is added to it, and all of it; "
            "put it first"
        )
    parts = list(nested(inside))
    keeps = next((p for p in parts if isinstance(p, ErrorFeedback | BlockMomentum)), None)
    if keeps is not None and any(isinstance(part, LoCo) for part in parts):
        name = "error_feedback" if isinstance(keeps, ErrorFeedback) else "block_momentum"
        raise ValueError(
            f"wrap: loco keeps an error of its own, {name} would feed back twice; leave one of them out"
        )
    momentum = momentum_of(inside)
    if momentum is None:
        return
    name = NAMES[type(momentum)]
    if momentum is not inside:
        raise ValueError(
            f"wrap: {_fault_of(inside)}; put {name} first (clip_local alone may stand before it)"
        )
    within = list(nested(momentum.inner))
    if other := next((part for part in within if isinstance(part, MOMENTUM)), None):
        raise ValueError(
            f"wrap: {name} and {NAMES[type(other)]} would apply momentum twice; leave one of them out"
        )
    if isinstance(momentum, BlockMomentum) and any(isinstance(p, ErrorFeedback) for p in within):
        raise ValueError(
            "wrap: block_momentum keeps a residual of its own, error_feedback would feed back twice; "
            "leave error_feedback out"
        )


def momentum_of(compressor: Compressor) -> MomentumCorrection | BlockMomentum | OneBitAdam | None:
    """The wrapper of a nest that exchanges momentum in place of gradients, if there is one."""
    return next((part for part in nested(compressor) if isinstance(part, MOMENTUM)), None)


def worker_momentum(compressor: Compressor) -> str:
    """Say where a nest applies momentum on the workers, so that the optimizer must have none: momentum in
    both multiplies the step by 1 / (1 - momentum) twice. Empty where the optimizer may have its own."""
    momentum = momentum_of(compressor)
    if isinstance(momentum, MomentumCorrection | BlockMomentum) and momentum.momentum:
        name = NAMES[type(momentum)]
        setting = f"wrapper.{name}.momentum={momentum.momentum:g}"
        return f"{name} applies momentum on the workers ({setting})"
    parts = list(nested(compressor))
    decays = [part.decay for part in parts if isinstance(part, ErrorFeedback) and part.decay < 1]
    if decays and any(isinstance(part, DeMo) for part in parts):
        setting = f"wrapper.error_feedback.decay={decays[0]:g}"
        return f"the residual of demo is its momentum ({setting})"
    return ""


def momentum_of_matrices(compressor: Compressor) -> str:
    """Say where a nest applies momentum on the workers to matrices alone, as `worker_momentum` does."""
    parts = list(nested(compressor))
    dion = next((part for part in parts if isinstance(part, Dion)), None)
    if dion is None or not dion.momentum or not any(isinstance(p, ErrorFeedback) for p in parts):
        return ""
    return f"the residual of dion is its momentum (momentum={dion.momentum:g})"


def without_feedback(compressor: Compressor) -> object | None:
    """Return a method that loses what it does not send (``needs_feedback`` is set) and stands in no wrapper
    that keeps it, if there is one."""
    parts = list(nested(compressor))
    wrappers = [part for part in parts if isinstance(part, KEEP)]
    kept = {id(part) for wrapper in wrappers for part in nested(wrapper)}
    lost = (p for p in parts if getattr(p, "needs_feedback", False) and id(p) not in kept)
    return next(lost, None)


def _fault_of(nest: Compressor) -> str:
    """What is wrong with the momentum inside this nest: of several faults the feedback's."""
    momentum = momentum_of(nest)
    around = [
        part
        for part in nested(nest)
        if part is not momentum and any(one is momentum for one in nested(part))
    ]
    name = NAMES[type(momentum)]
    for kind, (wrapper, fault) in AROUND.items():
        if any(isinstance(part, kind) for part in around):
            return f"{wrapper} around {name} {fault}"
    return f"{type(around[0]).__name__} around {name} would come before momentum"
