"""Momentum correction, local clipping, block momentum, and whole nests such as DGC."""

from __future__ import annotations

from dgc_repro.compressor.block_momentum import BlockMomentum
from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.loco import LoCo
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.onebit import OneBit
from dgc_repro.compressor.onebit_adam import OneBitAdam
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings.base import FED_BACK, Setting

_OF_VELOCITY = FED_BACK | {
    "conservation": "of the velocity, not of the gradient: test_what_is_not_sent_of_the_velocity_stays"
}
_CLIPPED = {"conservation": "what is clipped away is gone, as it should be"}
_WARMUP = Ladder((Dense(), *(DGCSampled(d) for d in (0.25, 0.0625, 0.015625, 0.004, 0.001))))
_FACTORS = {
    "contraction": "what is sent is the momentum of many gradients",
    "conservation": _OF_VELOCITY["conservation"],
}

_AVERAGED = FED_BACK | {
    "conservation": "the error is an average of past ones, in 8 bits: tests/compressor/test_loco.py"
}

_RECOVERED = _FACTORS | {
    "averaging": "the mean is the gradient for Adam's momentum: tests/compressor/test_onebit_adam.py"
}

_EF_TOPK, _EF_WARMUP = ErrorFeedback(TopK(0.1)), ErrorFeedback(_WARMUP)
_FED_AND_CLIPPED = FED_BACK | _CLIPPED

SETTINGS: tuple[Setting, ...] = tuple(
    Setting(name, nest, plan, excuses=excuses)
    for name, nest, plan, excuses in (
        ("momentum-dense", MomentumCorrection(Dense()), Plan(0), _FACTORS),
        ("momentum-uniform", MomentumCorrection(Uniform(4)), Plan(0), _FACTORS),
        ("momentum-qsgd", MomentumCorrection(QSGD(7, 64, "max")), Plan(0), _FACTORS),
        ("momentum-ef-topk", MomentumCorrection(_EF_TOPK), Plan(0), _OF_VELOCITY),
        ("momentum-nesterov-unmasked", MomentumCorrection(_EF_TOPK, 0.5, nesterov=True, masking=False),
         Plan(0), _OF_VELOCITY),
        ("momentum-ef-ladder-dense", MomentumCorrection(_EF_WARMUP), Plan(0), _OF_VELOCITY),
        ("clip-dense", ClipLocal(Dense(), 1e37), Plan(0), _CLIPPED),
        ("clip-high", ClipLocal(Dense(), 1e39), Plan(0), {}),
        ("clip-ef-uniform", ClipLocal(ErrorFeedback(Uniform(4)), 1e38, "mean"), Plan(0), _FED_AND_CLIPPED),
        ("clip-ef-onebit", ClipLocal(ErrorFeedback(OneBit()), 1e38), Plan(0), _FED_AND_CLIPPED),
        ("block-momentum-ef_signsgd", BlockMomentum(EFSignSGD()), Plan(0), _OF_VELOCITY),
        ("block-momentum", BlockMomentum(Uniform(4, block=7)), Plan(0), _OF_VELOCITY),
        ("block-momentum-dense", BlockMomentum(PerLayer(Dense())), Plan(0), _OF_VELOCITY),
        ("onebit-adam", OneBitAdam(PerLayer(ErrorFeedback(EFSignSGD())), 0.9, 0), Plan(0), _RECOVERED),
        ("onebit-adam-sharded", OneBitAdam(ErrorFeedback(Sharded(EFSignSGD())), 0.5, 0), Plan(0), _RECOVERED),
        ("loco", LoCo(Uniform(4, block=512)), Plan(0), _AVERAGED),
        ("loco-resets", PerLayer(LoCo(Uniform(4), 0.5, 2)), Plan(0), _AVERAGED),
        ("loco-ladder", LoCo(Ladder((Dense(), Uniform(8), Uniform(4)))), Plan(2, {"mixed": 0}), _AVERAGED),
        ("momentum-loco", MomentumCorrection(LoCo(TopK(0.1))), Plan(0), _OF_VELOCITY),
        ("dgc", MomentumCorrection(PerLayer(_EF_WARMUP)), Plan(3), _OF_VELOCITY),
        ("dgc-clipped", ClipLocal(MomentumCorrection(_EF_WARMUP, nesterov=True), 1e38),
         Plan(5, {"mixed": 1}), _OF_VELOCITY),
    )
)  # fmt: skip
