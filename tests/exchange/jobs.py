"""Exchanges of gradients by the ranks of a real world, or by simulated workers in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from samples import gradient
from torch import Tensor

from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import PIECE_BYTES, World
from dgc_repro.nests import map_tensors
from dgc_repro.policy.interface import Plan

Shapes = Mapping[str, tuple[int, ...]]


def exchanged(
    world: World, compressor: Compressor, shapes: Shapes, steps: int, rung: int
) -> dict[str, Any]:
    """Some steps of the workers of a world: every step's means, the last states, the bytes."""
    like = {name: torch.empty(shape) for name, shape in shapes.items()}
    exchange = Exchange(compressor, like, world, seed=3)
    means = []
    for step in range(steps):
        every = [
            {n: gradient(n, shape, world.rank + worker, step) for n, shape in shapes.items()}
            for worker in range(world.local)
        ]
        exchange.average(every, Plan(rung))
        means.append(every[0])
    states = [exchange.states(worker) for worker in range(world.local)]
    return {"means": means, "states": states, "ledger": world.ledger.state_dict()}


def exchange_here(*arguments: Any) -> dict[str, Any]:
    return exchanged(World(), *arguments)


def raised(action: Callable[[], object]) -> str:
    """The name and message of what an action raises."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def kept(states: Any) -> Any:
    """A copy of states, which change in place."""
    return map_tensors(states, Tensor.clone)


def same(first: Any, second: Any) -> bool:
    """Whether two nests hold the same tensors, bit for bit: NaN equals itself, 0 differs from -0. Numbers
    are not compared."""
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if not isinstance(first, Tensor):
        return not isinstance(second, Tensor)
    return first.shape == second.shape and torch.equal(_bytes(first), _bytes(second))


def assert_alike(stories: Iterable[Any], others: Iterable[Any], *parts: str) -> None:
    """These parts of every rank's story are equal, bit for bit."""
    for one, other in zip(stories, others, strict=True):
        for part in parts:
            assert same(one[part], other[part]), part


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def gather_in_pieces(extra: int) -> list[bool]:
    """Whether each rank's row of a gather of several pieces arrived as that rank sent it."""
    size = 2 * PIECE_BYTES + extra

    def sent(rank: int) -> Tensor:
        return torch.arange(size).add_(rank).to(torch.uint8)

    world = World()
    wait = world.gather([sent(world.rank)], "pieces")
    wait()
    return [torch.equal(row, sent(rank)) for rank, row in enumerate(wait.rows)]


def swapped() -> list[list[int]]:
    """What came from each rank of what each has written to each other one: so many bytes as `letter`."""
    world = World()
    return [row.tolist() for row in swap(world)[0]]


def swap(world: World) -> list[list[Tensor]]:
    """By worker hosted here and by rank, the letters that came."""
    ranks = range(world.size)
    here = range(world.rank, world.rank + world.local)
    written = [[letter(own, to) for to in ranks] for own in here]
    rows = [torch.tensor([x for one in own for x in one], dtype=torch.uint8) for own in written]
    to = [[len(one) for one in own] for own in written]
    come = [[len(letter(source, own)) for source in ranks] for own in here]
    wait = world.swap(rows, to, come, "letters")
    wait()
    return wait.rows


def letter(source: int, to: int) -> list[int]:
    """What rank ``source`` writes to rank ``to``; some letters are empty."""
    return [10 * source + to] * ((3 * source + 2 * to) % 5)
