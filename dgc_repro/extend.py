"""Names for compressors and policies of your own (docs/adding-a-compressor.md).

They are stable from 0.3.0 on, as the names of `dgc_repro` are. They stand apart because most users need none
of them, and because `dgc_repro.checked` is a module already.
"""

from dgc_repro.checked import Count, Positive, Share, checked, one_of, within
from dgc_repro.compressor.encoding import Quantizer
from dgc_repro.compressor.interface import Compressor, Context, PerTensor, Step, Wrapper
from dgc_repro.compressor.sparsifier import DensitySparsifier, Selecting, num_kept
from dgc_repro.exchange.world import World
from dgc_repro.kernel import select
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments
from dgc_repro.kernel.select import Selection
from dgc_repro.payload import BatchPayload, Sparse, Wholes
from dgc_repro.policy.interface import (
    ENERGIES,
    MEAN,
    OWN,
    SPREAD,
    EpochReport,
    Plan,
    Policy,
    State,
    StepReport,
)
from dgc_repro.policy.planned import Rungs

__all__ = [
    "ENERGIES",
    "MEAN",
    "OWN",
    "SPREAD",
    "Batch",
    "BatchPayload",
    "Compressor",
    "Context",
    "Count",
    "DensitySparsifier",
    "EpochReport",
    "PerTensor",
    "Plan",
    "Policy",
    "Positive",
    "Quantizer",
    "Rungs",
    "Segments",
    "Selecting",
    "Selection",
    "Share",
    "Sparse",
    "State",
    "Step",
    "StepReport",
    "Wholes",
    "World",
    "Wrapper",
    "checked",
    "num_kept",
    "one_of",
    "select",
    "within",
]
