"""Momentum correction, local clipping, block momentum, and whole nests such as DGC."""

from __future__ import annotations

from dgc_repro.compressor.block_momentum import BlockMomentum
from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.onebit import OneBit
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.policy.interface import Plan
from law_settings.base import FED_BACK, Setting

_OF_VELOCITY = FED_BACK | {
    "conservation": "of the velocity, not of the gradient: test_what_is_not_sent_of_the_velocity_stays"
}
_CLIPPED = {"conservation": "what is clipped away is gone, as it should be"}
_WARMUP = Ladder((Dense(), *(DGCSampled(d) for d in (0.25, 0.0625, 0.015625, 0.004, 0.001))))
_FACTORS = {
    "contraction": "what is sent is the momentum of many gradients",
    "conservation": _OF_VELOCITY["conservation"],
}

SETTINGS: tuple[Setting, ...] = (
    Setting("momentum-dense", MomentumCorrection(Dense()), excuses=_FACTORS),
    Setting("momentum-uniform", MomentumCorrection(Uniform(4)), excuses=_FACTORS),
    Setting("momentum-qsgd", MomentumCorrection(QSGD(7, 64, "max")), excuses=_FACTORS),
    Setting("momentum-ef-topk", MomentumCorrection(ErrorFeedback(TopK(0.1))), excuses=_OF_VELOCITY),
    Setting(
        "momentum-nesterov-unmasked",
        MomentumCorrection(ErrorFeedback(TopK(0.1)), 0.5, nesterov=True, masking=False),
        excuses=_OF_VELOCITY,
    ),
    Setting(
        "momentum-ef-ladder-dense",
        MomentumCorrection(ErrorFeedback(_WARMUP)),
        Plan(0),
        excuses=_OF_VELOCITY,
    ),
    Setting("clip-dense", ClipLocal(Dense(), 1e37), excuses=_CLIPPED),
    Setting("clip-high", ClipLocal(Dense(), 1e39)),
    Setting(
        "clip-ef-uniform",
        ClipLocal(ErrorFeedback(Uniform(4)), 1e38, "mean"),
        excuses=FED_BACK | _CLIPPED,
    ),
    Setting(
        "clip-ef-onebit",
        ClipLocal(ErrorFeedback(OneBit()), 1e38),
        excuses=FED_BACK | _CLIPPED,
    ),
    Setting("block-momentum-ef_signsgd", BlockMomentum(EFSignSGD()), excuses=_OF_VELOCITY),
    Setting("block-momentum", BlockMomentum(Uniform(4, block=7)), excuses=_OF_VELOCITY),
    Setting("block-momentum-dense", BlockMomentum(PerLayer(Dense())), excuses=_OF_VELOCITY),
    Setting(
        "dgc",
        MomentumCorrection(PerLayer(ErrorFeedback(_WARMUP))),
        Plan(3),
        excuses=_OF_VELOCITY,
    ),
    Setting(
        "dgc-clipped",
        ClipLocal(MomentumCorrection(ErrorFeedback(_WARMUP), nesterov=True), 1e38),
        Plan(5, {"mixed": 1}),
        excuses=_OF_VELOCITY,
    ),
)
