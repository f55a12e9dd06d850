"""Shards of payloads (compressor/sharded.py)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

from torch import Tensor

from dgc_repro.compressor.blockfloat import BlockFloat
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.eden import EDEN
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.natural import Natural
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.sparsifier import Sparsifier
from dgc_repro.compressor.terngrad import TernGrad
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.policy.interface import Plan
from dgc_repro.selfcheck.law_settings.base import FED_BACK, Asked, Setting, asks
from dgc_repro.selfcheck.law_settings.sparse import sparse_parts

Parts = tuple[tuple[int, int], ...]


def _stretches(n: int, row: int, name: str, workers: int) -> list[tuple[int, int]]:
    """The stretch of each rank: ceil(rows / N) rows a shard, shard s of rank s + crc32(name)."""
    size = math.ceil(math.ceil(n / row) / workers) * row
    shards = [(min(n, s * size), min(n, (s + 1) * size)) for s in range(workers)]
    return [shards[(rank - zlib.crc32(name.encode())) % workers] for rank in range(workers)]


def _to_all(pieces: list[Parts], kind: str) -> Asked:
    """Each rank's piece to it."""
    parts = tuple(part for piece in pieces for part in piece)
    return Asked(kind, parts, tuple(rank for rank, piece in enumerate(pieces) for _ in piece))


@asks.register
def _(leaf: Sharded, tensor: Tensor, floats: float) -> Callable[..., tuple[Asked, ...]]:
    flat = tensor.reshape(-1)

    strongest_k = leaf.method
    if isinstance(strongest_k, Threshold):
        # k <= 64 entries are estimated from 64 n / k >= n of them: that is exact top-k.
        strongest_k = TopK(strongest_k.density)

    def coded(name: str, worker: int, workers: int) -> tuple[Asked, ...]:
        """Every shard is coded by itself; its average too."""
        row = getattr(leaf.method, "block", None) or getattr(leaf.method, "bucket", None) or 4096
        pieces = []
        for start, end in _stretches(flat.numel(), row, name, workers):
            (gathered,) = asks(leaf.method, flat[start:end], floats)  # type: ignore[misc]
            pieces.append(gathered.parts)
        return _to_all(pieces, "alltoall"), Asked("gather", pieces[worker])

    def selected(name: str, worker: int, workers: int) -> tuple[Asked, ...]:
        """8 bytes, and 8 for each entry of the tensor's k strongest that lies in a shard (worker 0's
        are looked at); then a header and the entries of each average."""
        (whole,) = asks(strongest_k, flat, floats)  # type: ignore[misc]
        strongest = flat.abs().sort(descending=True, stable=True).indices[: whole.parts[-1][0]]
        stretches = _stretches(flat.numel(), 4096, name, workers)
        pieces: list[Parts] = []
        for start, end in stretches:
            k = int(((strongest >= start) & (strongest < end)).sum())
            pieces.append(sparse_parts(end - start, k))
        start, end = stretches[worker]
        (average,) = asks(strongest_k, flat[start:end], floats)  # type: ignore[misc]
        return _to_all(pieces, "alltoall_ragged"), Asked("ragged", average.parts)

    return selected if isinstance(leaf.method, Sparsifier) else coded


_TWICE = "the owner compresses the average: tests/compressor/test_sharded.py, test_mean_and_owners"
_NO_RESIDUAL = "keeps no residual of its own payload: what is rounded away or not chosen is lost"
_SCATTERED = {"averaging": _TWICE, "conservation": _NO_RESIDUAL}
_LADDER = Ladder((Dense(), Sharded(Uniform(8)), Sharded(Uniform(4, "nearest", 100))))


def _prefers_the_strong(energies: Tensor) -> int:
    """A chooser that needs its argument: the strong rung where it keeps 90 % of the energy."""
    return 2 if float(energies[2]) > 0.9 * float(energies[0]) else 1


_EF_SCATTERED = FED_BACK | {"averaging": _TWICE}
_UNBIASED = _SCATTERED | {"contraction": "unbiased instead: test_unbiased.py"}
_IN_THE_NORM = _SCATTERED | {"contraction": "in the norm, not value by value: test_sign_methods.py"}
_EIGHT, _MAX = Uniform(8, block=2048), QSGD(7, 64, "max")

SETTINGS: tuple[Setting, ...] = (
    *(
        Setting(f"scatter-{name}", Sharded(leaf), excuses=excuses)
        for name, leaf, excuses in (
            ("8-2048", _EIGHT, _SCATTERED),
            ("6-7", Uniform(6, block=7), _SCATTERED),
            ("stochastic", Uniform(4, "stochastic", 512), _UNBIASED),
            ("terngrad", TernGrad(), _UNBIASED),
            ("qsgd-max", _MAX, _UNBIASED),
            ("natural", Natural(), _UNBIASED),
            ("mxfp6", BlockFloat("mxfp6"), _SCATTERED),
            ("eden", EDEN(4, 256), _SCATTERED | {"contraction": "of the norm: test_eden.py"}),
            ("ef_signsgd", EFSignSGD(), _IN_THE_NORM),
            ("topk", TopK(0.1), _SCATTERED),
            ("threshold", Threshold(0.01), _SCATTERED),
        )
    ),
    *(
        Setting(f"ef-scatter-{name}", ErrorFeedback(Sharded(leaf)), excuses=_EF_SCATTERED)
        for name, leaf in (
            ("8-2048", _EIGHT),
            ("2-None", Uniform(2)),
            ("qsgd-max", _MAX),
            *((name, BlockFloat(name)) for name in ("mxfp4", "nvfp4", "fp8_e4m3")),
            ("eden", EDEN(1, 256, "least_error")),
            ("ef_signsgd", EFSignSGD()),
        )
    ),
    *(
        Setting(f"ladder-scatter-{name}", _LADDER, plan, choose, _SCATTERED)
        for name, plan, choose in (
            ("rung1", Plan(1), None),
            ("rung2", Plan(2), None),
            ("chooses", Plan(None, candidates=(1, 2)), _prefers_the_strong),
        )
    ),
    Setting(
        "ef-per-layer-ladder-scatter",
        ErrorFeedback(PerLayer(_LADDER)),
        Plan(1, {"mixed": 2}),
        excuses=_EF_SCATTERED,
    ),
)
