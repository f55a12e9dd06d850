"""Low rank: PowerSGD and Dion."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from authors.case import (
    Answers,
    Given,
    World,
    case,
    checkout,
    gradients,
    means,
)
from authors.quantizers import MEANS
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.kernel import lowrank

POWERSGD = "epfml/powersgd"
DION = "microsoft/dion"
LONGEST = 128  # rows and columns of what is multiplied
PRODUCTS = 4 * LONGEST * 2.0**-24
"""Bound of sums of products: their roundings grow with the length, and orthogonalization passes them on."""


@contextmanager
def first_directions(found: dict[str, Tensor]) -> Iterator[None]:
    """Inside, the directions that this side draws for each matrix first: f32[rank x rows of Q]."""
    original = lowrank.directions

    def directions(last: Any, tall: Any, keys: Any, out: Tensor) -> None:
        original(last, tall, keys, out)
        for name, one in zip(last.names, tall.each_q(out), strict=True):
            found.setdefault(name, one.clone().view(-1))

    with patch.object(lowrank, "directions", directions):
        yield


def directions_of(compressor: Compressor, given: Given) -> dict[str, Tensor]:
    """The first directions of each matrix."""
    found: dict[str, Tensor] = {}
    with first_directions(found):
        means(compressor, given[:1])
    return found


_TALL = {"tall": (60, 40), "square": (48, 48), "conv": (64, 3, 3, 3), "bias": (33,)}


@case(
    "powersgd",
    "rank 4, error feedback, 2 workers",
    POWERSGD,
    compressor=ErrorFeedback(PowerSGD(4)),
    given=gradients(_TALL, steps=5, workers=2),
    injected="the first directions Q",
    compared=MEANS.format(2),
    bound=PRODUCTS,
)
def powersgd(folder: Path, given: Given) -> Answers:
    """Their RankKReducer, each worker in a thread, with the memory of their trainer."""
    first = directions_of(ErrorFeedback(PowerSGD(4)), given)
    world = World(len(given[0]))
    with checkout(folder / "paper-code") as load:
        build = load("gradient_reducers").RankKReducer

        def worker(rank: int) -> Answers:
            reducer = build.__new__(build)  # its __init__ draws a gigabyte of random numbers
            vars(reducer).update(
                rank=4, p_memory=None, q_memory=None, reuse_query=True, device="cpu",
                n_workers=world.size, timer=lambda *_, **__: nullcontext(),
            )  # fmt: skip
            queries = [
                first[name].view(4, -1).T for name, one in given[0][0].items() if one.dim() > 1
            ]
            reducer.set_random = lambda query: query.copy_(queries.pop(0))
            memories = {name: torch.zeros_like(one) for name, one in given[0][0].items()}
            found = []
            for every in given:
                sent = [(every[rank][name] + memories[name]).view(_flat(one)) for name, one in
                        every[rank].items()]  # fmt: skip
                answers = [torch.zeros_like(one) for one in sent]
                kept = [torch.zeros_like(one) for one in sent]
                reducer.reduce(sent, answers, kept)
                for (name, own), one, memory in zip(
                    every[rank].items(), answers, kept, strict=True
                ):
                    found.append(one.view_as(own))
                    memories[name] = memory.view_as(own)
            return found

        return world.run(worker)[0]


def _flat(tensor: Tensor) -> tuple[int, ...]:
    """The shape as a matrix; a vector stays one."""
    return (tensor.shape[0], -1) if tensor.dim() > 1 else (-1,)


_DION_SHAPES = {"tall": (48, 32), "wide": (24, 40), "square": (32, 32)}
_FRACTION, _MOMENTUM = 0.25, 0.95
_DION = ErrorFeedback(Dion(_FRACTION, momentum=_MOMENTUM))


_DION_GIVEN = gradients(_DION_SHAPES, steps=8, workers=2)


@case(
    "dion",
    "rank fraction 0.25, momentum 0.95, 2 workers",
    DION,
    compressor=_DION,
    given=_DION_GIVEN,
    injected="the first directions Q; QR by Householder",
    compared="orthonormal updates P Q^T",
    note="The authors' scale of an update is taken out, and each worker's momentum is compared by what it "
    "leads to.",
    bound=PRODUCTS,
)
def dion(folder: Path, given: Given) -> Answers:
    """Their dion_update with weights of 0 and a rate of 1, each worker in a thread."""
    first = directions_of(_DION, given)
    world = World(len(given[0]))
    with checkout(folder, bare=("dion",)) as load:
        module = load("dion.dion_reference")

        def average(tensor: Tensor, mesh: Any) -> Tensor:
            total = tensor.clone()
            world.all_reduce(total)
            return total / world.size

        def worker(rank: int) -> Answers:
            momenta, directions, found = {}, {}, []
            for name, one in given[0][0].items():
                least = min(one.shape)
                momenta[name] = torch.zeros_like(one)
                directions[name] = first[name].view(math.ceil(_FRACTION * least), least).T.clone()
            for every in given:
                for name, own in every[rank].items():
                    weights = torch.zeros_like(own)
                    rows, columns = own.shape
                    directions[name] = module.dion_update(
                        weights, own.clone(), momenta[name], directions[name],
                        lr=torch.tensor(1.0), mu=torch.tensor(_MOMENTUM),
                        weight_decay=torch.tensor(0.0), epsilon=1e-8, transpose=rows < columns,
                        power_iters=1, qr_method="qr",
                    )  # fmt: skip
                    found.append(-weights / (rows / columns) ** 0.5)
            return found

        with torch.compiler.set_stance("force_eager"), patch.object(module, "all_reduce", average):
            return world.run(worker)[0]
