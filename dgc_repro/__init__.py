"""Gradient compression, measured: compressors, policies, and papers' tables made again.

``from dgc_repro import attach, ErrorFeedback, TopK`` gives a DistributedDataParallel loop of your own a
compressor (docs/own-loop.md). Importing the package does not import torch, so that reports can be rebuilt on
any laptop: each public name is imported on first use.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from dgc_repro.errors import needing_repro

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports these
    from dgc_repro.compressor.bf16 import BF16 as BF16
    from dgc_repro.compressor.block_momentum import BlockMomentum as BlockMomentum
    from dgc_repro.compressor.blockfloat import BlockFloat as BlockFloat
    from dgc_repro.compressor.clip_local import ClipLocal as ClipLocal
    from dgc_repro.compressor.demo import DeMo as DeMo
    from dgc_repro.compressor.dense import Dense as Dense
    from dgc_repro.compressor.dgc_sampled import DGCSampled as DGCSampled
    from dgc_repro.compressor.dion import Dion as Dion
    from dgc_repro.compressor.eden import DRIVE as DRIVE
    from dgc_repro.compressor.eden import EDEN as EDEN
    from dgc_repro.compressor.ef_signsgd import EFSignSGD as EFSignSGD
    from dgc_repro.compressor.error_feedback import ErrorFeedback as ErrorFeedback
    from dgc_repro.compressor.fp16 import FP16 as FP16
    from dgc_repro.compressor.ladder import Ladder as Ladder
    from dgc_repro.compressor.loco import LoCo as LoCo
    from dgc_repro.compressor.momentum_correction import MomentumCorrection as MomentumCorrection
    from dgc_repro.compressor.natural import Natural as Natural
    from dgc_repro.compressor.onebit import OneBit as OneBit
    from dgc_repro.compressor.onebit_adam import OneBitAdam as OneBitAdam
    from dgc_repro.compressor.per_layer import PerLayer as PerLayer
    from dgc_repro.compressor.powersgd import PowerSGD as PowerSGD
    from dgc_repro.compressor.qsgd import QSGD as QSGD
    from dgc_repro.compressor.randomk import RandomK as RandomK
    from dgc_repro.compressor.redsync import RedSync as RedSync
    from dgc_repro.compressor.running_uniform import RunningUniform as RunningUniform
    from dgc_repro.compressor.sharded import Sharded as Sharded
    from dgc_repro.compressor.sidco import SIDCo as SIDCo
    from dgc_repro.compressor.signsgd import SignSGD as SignSGD
    from dgc_repro.compressor.sparseloco import SparseLoCo as SparseLoCo
    from dgc_repro.compressor.terngrad import TernGrad as TernGrad
    from dgc_repro.compressor.threshold import Threshold as Threshold
    from dgc_repro.compressor.topk import TopK as TopK
    from dgc_repro.compressor.uniform import Uniform as Uniform
    from dgc_repro.errors import UserError as UserError
    from dgc_repro.exchange.attached import Attached as Attached
    from dgc_repro.exchange.door import attach as attach
    from dgc_repro.names import conf_dir as conf_dir
    from dgc_repro.network.lab import Lab as Lab
    from dgc_repro.optimizer.adam import Adam as Adam
    from dgc_repro.optimizer.dion import DionSteps as DionSteps
    from dgc_repro.optimizer.lamb import LAMB as LAMB
    from dgc_repro.optimizer.lars import LARS as LARS
    from dgc_repro.optimizer.muon import Muon as Muon
    from dgc_repro.optimizer.rounded import RoundedSGD as RoundedSGD
    from dgc_repro.policy.accordion import Accordion as Accordion
    from dgc_repro.policy.adaqs import AdaQS as AdaQS
    from dgc_repro.policy.fixed import Fixed as Fixed
    from dgc_repro.policy.gravac import GraVAC as GraVAC
    from dgc_repro.policy.interface import EpochReport as EpochReport
    from dgc_repro.policy.oracle import Oracle as Oracle
    from dgc_repro.policy.probed import Probed as Probed
    from dgc_repro.policy.scadles import ScaDLES as ScaDLES
    from dgc_repro.policy.scheduled import Scheduled as Scheduled
    from dgc_repro.policy.stepwise import Stepwise as Stepwise
    from dgc_repro.policy.warmup import Warmup as Warmup
    from dgc_repro.results import load_claims as load_claims
    from dgc_repro.results import load_results as load_results
    from dgc_repro.results import load_runs as load_runs

__version__ = "0.3.0"
_PUBLIC = {
    "BF16": "compressor.bf16",
    "BlockMomentum": "compressor.block_momentum",
    "BlockFloat": "compressor.blockfloat",
    "ClipLocal": "compressor.clip_local",
    "DeMo": "compressor.demo",
    "Dense": "compressor.dense",
    "DGCSampled": "compressor.dgc_sampled",
    "Dion": "compressor.dion",
    "DRIVE": "compressor.eden",
    "EDEN": "compressor.eden",
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
    "Sharded": "compressor.sharded",
    "SIDCo": "compressor.sidco",
    "SignSGD": "compressor.signsgd",
    "SparseLoCo": "compressor.sparseloco",
    "TernGrad": "compressor.terngrad",
    "Threshold": "compressor.threshold",
    "TopK": "compressor.topk",
    "Uniform": "compressor.uniform",
    "UserError": "errors",
    "attach": "exchange.door",
    "Attached": "exchange.attached",
    "conf_dir": "names",
    "Lab": "network.lab",
    "Adam": "optimizer.adam",
    "DionSteps": "optimizer.dion",
    "LAMB": "optimizer.lamb",
    "LARS": "optimizer.lars",
    "Muon": "optimizer.muon",
    "RoundedSGD": "optimizer.rounded",
    "Accordion": "policy.accordion",
    "AdaQS": "policy.adaqs",
    "Fixed": "policy.fixed",
    "GraVAC": "policy.gravac",
    "EpochReport": "policy.interface",
    "Oracle": "policy.oracle",
    "Probed": "policy.probed",
    "ScaDLES": "policy.scadles",
    "Scheduled": "policy.scheduled",
    "Stepwise": "policy.stepwise",
    "Warmup": "policy.warmup",
    "load_claims": "results",
    "load_results": "results",
    "load_runs": "results",
}
"""Public names, and the module of each."""

if not TYPE_CHECKING:  # a type checker would take every name to exist
    # Without the extra `repro` those that need pandas are left out, so that `import *` and `help` work.
    _HAS_PANDAS = importlib.util.find_spec("pandas") is not None
    _LISTED = [n for n, of in _PUBLIC.items() if of != "results" or _HAS_PANDAS]
    __all__ = ["__version__", *_LISTED]  # noqa: PLE0604  # its keys are strings

    def __getattr__(name: str) -> object:
        if name in _PUBLIC:
            with needing_repro(f"dgc_repro.{name}"):
                return getattr(importlib.import_module(f"dgc_repro.{_PUBLIC[name]}"), name)
        raise AttributeError(f"module 'dgc_repro' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LISTED})
