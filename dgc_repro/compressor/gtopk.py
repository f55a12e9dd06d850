"""Sums of sparse gradients in log2 N rounds: two workers merge theirs and keep the k strongest.

Paper: Shi et al., "A distributed synchronous SGD algorithm with global top-k sparsification for low
bandwidth networks" (gTop-k), ICDCS 2019 (arXiv:1901.04359), algorithms 2 and 3.
Asks: `AllToAll` with one partner in each of log2 N rounds: one payload of k entries a round, coded
as the method says. If N is no power of
two, N - P more workers (P = the largest power of two below N) merge with workers 0, 1, ... first,
and then only receive: a worker that sends to one of these sends to its listener too. One more round, and at
most one payload more in each round.
Differs: recursive doubling in place of the paper's tree and broadcast, so that everybody has the
result after the last merge (the same bits: a pair adds in rank order), and sums of x / N, so that
none overflows where the mean does not. The paper is silent on N that
is no power of two. What counts as sent: the paper's worker keeps what is not in the result, and takes
all else for sent, though a merge on its way may have dropped its share of a place that came in
from elsewhere; ``own=result`` does that. By default (``own=path``) those of its entries count that
survived every merge on their way: the mean is then exactly the average of what was sent, and an
error feedback around this loses nothing.

    x = top_k(g) / N;  each round:  x = top_k(x + x of the partner);  mean = x

Letters: n = values, k = entries sent, N = workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from dgc_repro.checked import Rule, checked, one_of
from dgc_repro.compressor.interface import Context, Measured, State, energies_of
from dgc_repro.compressor.sparsifier import Sparsifier, check_exact, coded, select_all
from dgc_repro.kernel import thresholds
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections, reaching
from dgc_repro.kernel.merge import contained, merge
from dgc_repro.payload import Sparse
from dgc_repro.payload.requests import AllToAll, Exchange, Outcome

OWNS = ("path", "result")
FIXED_NUMBER = Rule("a sparsifier that selects a fixed number of entries", lambda m: not m.ragged)


@dataclass(frozen=True)
class Turn:
    """What a rank does in a round: the ranks it sends to, the rank it receives from, and whether its own
    entries come first in the sum."""

    to: tuple[int, ...]
    source: int | None
    first: bool


@lru_cache(maxsize=1024)
def turns(rank: int, workers: int) -> tuple[Turn, ...]:
    """A rank's rounds; all ranks have the same number of them."""
    power = 1 << (workers.bit_length() - 1)  # the largest power of two up to N
    place = rank % power  # a listener stands where the worker stands that it merged with
    rounds = []
    if power < workers:
        other = rank - power if rank >= power else rank + power
        meets = (other,) if other < workers else ()
        rounds.append(Turn(meets, other if meets else None, rank < power))
    for bit in range(power.bit_length() - 1):
        partner = place ^ (1 << bit)
        listeners = (partner, partner + power) if partner + power < workers else (partner,)
        rounds.append(Turn(listeners if rank < power else (), partner, place < partner))
    return tuple(rounds)


@checked
class GTopK(Measured):
    """``method``: a sparsifier of a fixed number of entries. ``own``: what counts as sent, ``path``
    or ``result`` (the paper's)."""

    method: Annotated[Sparsifier, FIXED_NUMBER]
    own: Annotated[str, one_of(OWNS)] = "path"

    def __post_init__(self) -> None:
        check_exact(self.method)

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        names, result = batch.names, context.results(batch)
        chosen = select_all(self.method, batch, context).in_order
        del batch
        ranks, workers = range(context.world_size), context.world_size
        sums = Selections(chosen.sizes, chosen.counts, chosen.values / workers, chosen.indices)
        alive = torch.ones_like(chosen.indices, dtype=torch.bool)
        for turn in turns(context.rank, workers):
            sent = coded(self.method, names, sums)
            received = yield AllToAll(
                tuple(sent if rank in turn.to else None for rank in ranks),
                tuple(sent if rank == turn.source else None for rank in ranks),
                names=names,
            )
            if turn.source is not None:
                theirs = Selections.of(received[turn.source].selections())
                both = merge(sums, theirs) if turn.first else merge(theirs, sums)
                sums = strongest(both, chosen.counts, result, context)
                alive &= contained(chosen.places, sums.places)
        Sparse.of(names, sums).copy_to_(result, 1.0)
        if self.own == "result":
            alive = contained(chosen.places, sums.places)
        survivors = Selections.at(chosen.sizes, chosen.values[alive], chosen.places[alive])
        return Outcome(result.tensors, Sparse.of(names, survivors), states)

    def energies(self, batch: Batch, context: Context) -> Tensor:
        """Of what this worker would send; needs a `Measurable` method."""
        return energies_of(self.method, batch, context)


def strongest(sums: Selections, ks: tuple[int, ...], batch: Batch, context: Context) -> Selections:
    """The k entries of largest magnitude of each tensor's; there are more. batch: of these tensors."""
    values = sums.values_of(batch)
    limits = thresholds.limits(values, ks)
    return reaching(values, limits, np.array(ks), context.scratch, "strongest", through=sums)
