"""Sparsifiers: top-k, random-k, a threshold, DGC, DeMo, SparseLoCo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from authors.case import Answers, Given, case, checkout, gradients, simulation, stepped
from authors.quantizers import GRACE, MEANS, of_workers, with_memory
from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.sparseloco import SparseLoCo
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK

DGC = "synxlin/deep-gradient-compression"
DEMO = "bloc97/DeMo"
TEMPLAR = "tplr-ai/templar"
SHAPES = {"matrix": (50, 40), "vector": (1000,)}


def _grace(module: str, build: Callable[[Any], Any]) -> Callable[[Path, Given], Answers]:
    def theirs(folder: Path, given: Given) -> Answers:
        with checkout(folder) as load:
            return with_memory(load, build(load(f"grace_dl.dist.compressor.{module}")), given)

    return theirs


_FED_BACK = gradients(SHAPES, steps=6, workers=2)
case(
    "topk",
    "density 0.01, error feedback",
    GRACE,
    whose="GRACE's",
    compressor=ErrorFeedback(TopK(0.01)),
    given=_FED_BACK,
    compared=MEANS.format(2),
    note="Sizes of which 1 % is whole: GRACE rounds the number of entries down, this side to the nearest.",
    name="topk",
)(_grace("topk", lambda module: module.TopKCompressor(0.01)))
case(
    "threshold",
    "threshold 6, error feedback",
    GRACE,
    whose="GRACE's",
    compressor=ErrorFeedback(Threshold(threshold=6.0)),
    given=_FED_BACK,
    compared=MEANS.format(2),
    name="threshold",
)(_grace("threshold", lambda module: module.ThresholdCompressor(6.0)))


@case(
    "randomk",
    "density 0.05, error feedback, 1 worker",
    GRACE,
    whose="GRACE's",
    compressor=ErrorFeedback(RandomK(0.05)),
    given=(_ALONE := gradients(SHAPES, steps=6, workers=1)),
    injected="the places, which this side draws without repeats",
    compared="number of places, what is sent there",
    note="GRACE draws places with repeats.",
)
def randomk(folder: Path, given: Given) -> Answers:
    """GRACE's RandomKCompressor with its memory, at the places of this side."""
    exchange = simulation(ErrorFeedback(RandomK(0.05)), given)
    places = [one.view(-1).nonzero()[:, 0] for e in given for one in stepped(exchange, e).values()]
    with checkout(folder) as load:
        quantizer = load("grace_dl.dist.compressor.randomk").RandomKCompressor(0.05)

        def randint(numel: int, size: list[int], **_: Any) -> Tensor:
            own = places.pop(0)
            assert size == [len(own)], "as many places as GRACE asks for"
            return own

        with patch.object(torch, "randint", randint):
            return with_memory(load, quantizer, given)


# ---- DGC

_HOROVOD = {
    "horovod": {},
    "horovod.torch": {"size": lambda: 2, "rank": lambda: 1},
    "horovod.torch.mpi_ops": {
        **dict.fromkeys(("allreduce_async_", "allgather_async", "synchronize")),
        "Average": "average",
    },
}


def _dgc(nesterov: bool, masking: bool) -> Callable[[Path, Given], Answers]:
    def theirs(folder: Path, given: Given) -> Answers:
        with checkout(folder, bare=("dgc",), stubs=_HOROVOD) as load:
            compression, memory = load("dgc.compression"), load("dgc.memory")
            like = {name: torch.nn.Parameter(one) for name, one in given[0][0].items()}
            workers = []
            for _ in given[0]:
                own = memory.DGCSGDMemory(0.9, nesterov, momentum_masking=masking)
                own.initialize(like.items())
                worker = compression.DGCCompressor(0.01, own, sample_ratio=1.0)
                worker.initialize(like.items())
                workers.append(worker)
            found = []
            for every in given:
                for name in every[0]:
                    sent = [
                        w.compress(g[name].clone(), name)
                        for w, g in zip(workers, every, strict=True)
                    ]
                    parts = [
                        torch.cat(one)
                        for one in zip(*(payload for payload, _ in sent), strict=True)
                    ]
                    found.append(workers[0].decompress(parts, sent[0][1]).clone())
            return found

    return theirs


for _name, _nesterov, _masked in (
    ("dgc", False, True),
    ("dgc_nesterov", True, True),
    ("dgc_unmasked", False, False),
):
    case(
        "dgc",
        "density 0.01, momentum correction"
        + (", Nesterov" if _nesterov else "")
        + ("" if _masked else ", no masking"),
        DGC,
        compressor=MomentumCorrection(
            ErrorFeedback(DGCSampled(0.01, sample=1.0)), 0.9, nesterov=_nesterov, masking=_masked
        ),
        given=_FED_BACK,
        injected="nothing",
        compared=MEANS.format(2),
        note="No sampled threshold (all entries are sampled) and no clipping, which the authors' code does "
        "by tensor; sizes of which 1 % is whole, because their code rounds up.",
        name=_name,
    )(_dgc(_nesterov, _masked))


# ---- DeMo and SparseLoCo

_DEMO_SHAPES = {"w": (64, 128), "b": (192,), "odd": (97, 12), "v": (10, 7)}
_DEMO = gradients(_DEMO_SHAPES, steps=4, workers=1)


def _our_demo() -> Answers:
    exchange = simulation(ErrorFeedback(DeMo(8, 64), decay=0.9), _DEMO)
    found = []
    for every in _DEMO:
        answer = stepped(exchange, every)
        residual = exchange.states()["residual"]
        found += [one for name in answer for one in (answer[name], residual[name].clone())]
    return found


@case(
    "demo",
    "k=8, chunk=64, decay 0.9, 1 worker",
    DEMO,
    compressor=ErrorFeedback(DeMo(8, 64), decay=0.9),
    given=_DEMO,
    ours=_our_demo,
    compared="signs of the answer and residuals",
    note="One worker: the authors divide a coefficient by its senders, this side by all workers.",
)
def demo(folder: Path, given: Given) -> Answers:
    """Their optimizer with a rate of 1, whose gradients end as the signs that move the weights."""
    with checkout(folder) as load:
        module = load("demo")
        weights = {name: torch.nn.Parameter(torch.zeros(s)) for name, s in _DEMO_SHAPES.items()}
        optimizer = module.DeMo(weights.values(), lr=1.0, compression_decay=0.9, compression_topk=8)
        optimizer._demo_all_gather = lambda places, sent: ([places], [sent])
        found = []
        with patch.object(module.dist, "get_world_size", lambda: 1):
            for (own,) in given:
                for name, weight in weights.items():
                    weight.grad = own[name].clone()
                optimizer.step()
                for weight in weights.values():
                    assert weight.grad is not None
                    found += [weight.grad.clone(), optimizer.demo_state[weight]["delta"].clone()]
        return found


@case(
    "sparseloco",
    "density 1/64, chunks of 4096, 2 bits",
    TEMPLAR,
    compressor=SparseLoCo(1 / 64, 4096, 2),
    given=gradients({"x": (5, 4096), "y": (2, 4096)}, steps=3, workers=2),
    compared=MEANS.format(2),
    note="The codec, without error feedback. Tensors of whole chunks: the authors cut matrices into squares "
    "of 64 x 64, and send an even number of entries.",
)
def sparseloco(folder: Path, given: Given) -> Answers:
    """Their TopKCompressor, chunk by chunk."""
    with checkout(folder / "src", bare=("tplr",)) as load:
        build = load("tplr.compress").TopKCompressor
        own = build(use_quantization=True, quantization_bins=4, quantization_range=6)

        def one(step: int, worker: int, name: str, x: Tensor) -> Tensor:
            decoded: Tensor = own.decompress(torch.zeros(1), *own.compress(x, 64))
            return decoded

        return of_workers(given, one)
