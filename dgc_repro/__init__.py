"""Gradient compression, measured: compressors, policies, and papers' tables made again.

``from dgc_repro import attach, ErrorFeedback, TopK`` gives a DistributedDataParallel loop of your own a
compressor (docs/own-loop.md). Importing the package does not import torch, so that reports can be rebuilt on
any laptop: each public name is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports these
    from dgc_repro.compressor.bf16 import BF16
    from dgc_repro.compressor.block_momentum import BlockMomentum
    from dgc_repro.compressor.clip_local import ClipLocal
    from dgc_repro.compressor.demo import DeMo
    from dgc_repro.compressor.dense import Dense
    from dgc_repro.compressor.dgc_sampled import DGCSampled
    from dgc_repro.compressor.ef_signsgd import EFSignSGD
    from dgc_repro.compressor.error_feedback import ErrorFeedback
    from dgc_repro.compressor.fp16 import FP16
    from dgc_repro.compressor.ladder import Ladder
    from dgc_repro.compressor.loco import LoCo
    from dgc_repro.compressor.momentum_correction import MomentumCorrection
    from dgc_repro.compressor.natural import Natural
    from dgc_repro.compressor.onebit import OneBit
    from dgc_repro.compressor.onebit_adam import OneBitAdam
    from dgc_repro.compressor.per_layer import PerLayer
    from dgc_repro.compressor.powersgd import PowerSGD
    from dgc_repro.compressor.qsgd import QSGD
    from dgc_repro.compressor.randomk import RandomK
    from dgc_repro.compressor.redsync import RedSync
    from dgc_repro.compressor.running_uniform import RunningUniform
    from dgc_repro.compressor.sidco import SIDCo
    from dgc_repro.compressor.signsgd import SignSGD
    from dgc_repro.compressor.sparseloco import SparseLoCo
    from dgc_repro.compressor.terngrad import TernGrad
    from dgc_repro.compressor.threshold import Threshold
    from dgc_repro.compressor.topk import TopK
    from dgc_repro.compressor.uniform import Uniform
    from dgc_repro.errors import UserError
    from dgc_repro.exchange.attached import attach
    from dgc_repro.exchange.comm_hook import HookState, comm_hook
    from dgc_repro.policy.accordion import Accordion
    from dgc_repro.policy.adaqs import AdaQS
    from dgc_repro.policy.fixed import Fixed
    from dgc_repro.policy.gravac import GraVAC
    from dgc_repro.policy.interface import EpochReport
    from dgc_repro.policy.scadles import ScaDLES
    from dgc_repro.policy.scheduled import Scheduled
    from dgc_repro.policy.stepwise import Stepwise
    from dgc_repro.policy.warmup import Warmup
    from dgc_repro.results import load_results, load_runs

__version__ = "0.1.0"
__all__ = [
    "BF16",
    "FP16",
    "QSGD",
    "Accordion",
    "AdaQS",
    "BlockMomentum",
    "ClipLocal",
    "DGCSampled",
    "DeMo",
    "Dense",
    "EFSignSGD",
    "EpochReport",
    "ErrorFeedback",
    "Fixed",
    "GraVAC",
    "HookState",
    "Ladder",
    "LoCo",
    "MomentumCorrection",
    "Natural",
    "OneBit",
    "OneBitAdam",
    "PerLayer",
    "PowerSGD",
    "RandomK",
    "RedSync",
    "RunningUniform",
    "SIDCo",
    "ScaDLES",
    "Scheduled",
    "SignSGD",
    "SparseLoCo",
    "Stepwise",
    "TernGrad",
    "Threshold",
    "TopK",
    "Uniform",
    "UserError",
    "Warmup",
    "__version__",
    "attach",
    "comm_hook",
    "load_results",
    "load_runs",
]

_PUBLIC = {
    "BF16": "compressor.bf16",
    "BlockMomentum": "compressor.block_momentum",
    "ClipLocal": "compressor.clip_local",
    "DeMo": "compressor.demo",
    "Dense": "compressor.dense",
    "DGCSampled": "compressor.dgc_sampled",
    "EFSignSGD": "compressor.ef_signsgd",
    "ErrorFeedback": "compressor.error_feedback",
    "FP16": "compressor.fp16",
    "Ladder": "compressor.ladder",
    "LoCo": "compressor.loco",
    "MomentumCorrection": "compressor.momentum_correction",
    "Natural": "compressor.natural",
    "OneBit": "compressor.onebit",
    "OneBitAdam": "compressor.onebit_adam",
    "PerLayer": "compressor.per_layer",
    "PowerSGD": "compressor.powersgd",
    "QSGD": "compressor.qsgd",
    "RandomK": "compressor.randomk",
    "RedSync": "compressor.redsync",
    "RunningUniform": "compressor.running_uniform",
    "SIDCo": "compressor.sidco",
    "SignSGD": "compressor.signsgd",
    "SparseLoCo": "compressor.sparseloco",
    "TernGrad": "compressor.terngrad",
    "Threshold": "compressor.threshold",
    "TopK": "compressor.topk",
    "Uniform": "compressor.uniform",
    "UserError": "errors",
    "attach": "exchange.attached",
    "HookState": "exchange.comm_hook",
    "comm_hook": "exchange.comm_hook",
    "Accordion": "policy.accordion",
    "AdaQS": "policy.adaqs",
    "Fixed": "policy.fixed",
    "GraVAC": "policy.gravac",
    "EpochReport": "policy.interface",
    "ScaDLES": "policy.scadles",
    "Scheduled": "policy.scheduled",
    "Stepwise": "policy.stepwise",
    "Warmup": "policy.warmup",
    "load_results": "results",
    "load_runs": "results",
}
"""Public names, and the module of each."""

if not TYPE_CHECKING:  # a type checker would take every name to exist

    def __getattr__(name: str) -> object:
        if name in _PUBLIC:
            return getattr(importlib.import_module(f"dgc_repro.{_PUBLIC[name]}"), name)
        raise AttributeError(f"module 'dgc_repro' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
