"""What lossless coders make of gradients, and of the payloads of lossy methods: bits a value.

A coder gets the bytes as they lie in memory, or in planes: each value is rotated left by one bit, so that the
exponent fills one byte and the sign follows the mantissa, and bytes of the same place lie together. ``bound``
is no coder: it is the entropy of the bytes of each plane, H = -sum p log2 p, and 3 bytes for each distinct
byte of a plane (the byte and its frequency), which an ANS coder of order 0 approaches.

Gradients are those of one worker, before they are averaged and without residuals.

DFloat11 (Zhang et al., 2025, arXiv:2504.11651) says of weights: the exponent has 2.6 bits of entropy.
Papers: Hershcovitch et al., "ZipNN: Lossless Compression for AI Models", 2024 (arXiv:2411.05239), planes;
Duda, "Asymmetric numeral systems", 2013 (arXiv:1311.2540).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from dgc_repro.checked import checked
from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.sparsifier import select_all
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.payload import Sparse
from dgc_repro.study.given import SNAPSHOTS, Counts, Gradients, Row, Snapshots

Bytes = NDArray[np.uint8]
LEVELS = (1, 19)
BLOCK, DENSITY = 512, 0.01
"""Values that share a scale, and the share of entries that top-k sends."""
TABLE_BYTES = 3


@checked
class Lossless:
    """``steps``: of training, from 1, whose gradients are coded."""

    steps: Counts
    takes = SNAPSHOTS

    def run(self, seed: int, snapshots: Snapshots) -> list[Row]:
        """Rows are the same for every ``seed``: gradients differ, and nothing is drawn."""
        return [
            {
                "step": step,
                "form": form,
                "coder": coder,
                "bits": 8 * size / gradients.values.shape[1],
            }
            for step, gradients in snapshots
            for form, data in forms_of(gradients).items()
            for coder, size in coded_bytes(data).items()
        ]


def forms_of(gradients: Gradients) -> dict[str, NDArray[np.generic]]:
    """What is coded, of the first worker: words of 32 or 16 bits, or bytes."""
    values = torch.from_numpy(gradients.values[0].copy())
    batch = Batch(tuple(map(str, range(len(gradients.sizes)))), list(values.split(gradients.sizes)))
    context = Context(0, 0, 0, 1, Workspace())
    half = values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    forms: dict[str, NDArray[np.generic]] = {
        "float32": values.numpy().view(np.uint32),
        "bf16": half,
        "bf16 exponent": (half >> 7 & 0xFF).astype(np.uint8),
    }
    for bits in (8, 4):
        own = Uniform(bits=bits, block=BLOCK).encode_batch(batch, context.within(str(bits)))
        forms[f"{bits} bits"] = own.buffer.numpy().copy()
    topk, inner = TopK(density=DENSITY), context.within("topk")
    chosen = select_all(topk, batch, inner)
    places = [one.indices.numpy().astype(np.uint32) for one in chosen]
    forms["top-k places, int32"] = np.concatenate(places).view(np.uint8)
    forms["top-k"] = Sparse.of(batch.names, chosen, inner.scratch).buffer.numpy().copy()
    return forms


def coded_bytes(data: NDArray[np.generic]) -> dict[str, float]:
    """Bytes as they are, under each coder, and the bound."""
    planes = planes_of(data)
    found: dict[str, float] = {"none": data.nbytes, "bound": sum(map(bound_bytes, planes))}
    for level in LEVELS:
        codec = pa.Codec("zstd", compression_level=level)
        found[f"zstd {level}"] = len(codec.compress(data.tobytes(), asbytes=True))
        if len(planes) > 1:
            sizes = [len(codec.compress(plane.tobytes(), asbytes=True)) for plane in planes]
            found[f"planes, zstd {level}"] = sum(sizes)
    return found


def planes_of(data: NDArray[np.generic]) -> list[Bytes]:
    """Bytes by place in a word that was rotated left by one bit, lowest first; of bytes the bytes."""
    width = 8 * data.itemsize
    if width == 8:
        return [data.view(np.uint8)]
    words = data.astype(np.uint64)
    turned = (words << np.uint64(1)) | (words >> np.uint64(width - 1))
    return [
        (turned >> np.uint64(at) & np.uint64(0xFF)).astype(np.uint8) for at in range(0, width, 8)
    ]


def bound_bytes(plane: Bytes) -> float:
    """Entropy of order 0 and the table of frequencies, bytes."""
    counts = np.bincount(plane, minlength=256)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum() / 8) + TABLE_BYTES * len(counts)
