"""A keyed permutation of the places of a tensor: its first k places are a random selection.

Nothing is drawn, sorted or stored: place i of the permutation is a function of (n, key, i), so that all
who know the key know all places, k distinct ones are had for any k, and those for a smaller k are the
first of those for a larger one. A Feistel network on the smallest power of two not below n; what falls
outside n walks on along its cycle (fewer than one step more a place, on average) and so ends inside.
In C for the CPU (c/permute.c), as tensor operations elsewhere: the same places and bits.

Letters: n = values of a tensor, k = places wanted. Both halves of a place have at most 31 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dgc_repro.kernel import counter, native
from dgc_repro.kernel.native import Function

ROUNDS = 8
SMALL_BITS, SMALL_ROUNDS = 6, 24
"""Halves of one or two bits mix slowly: with 8 rounds, pairs of 5 places came up to 17 % too often or
too rarely over 400,000 keys, with 24 as often as chance has it; from 7 bits on 8 rounds do."""

_places = Function("dgc_places")


def places(n: int, key: int | Tensor, k: int, device: torch.device) -> Tensor:
    """The first k places of the permutation of n: i64[k], distinct, in no order. key: 32 bits, or i32[] on
    this device, which is not read from the host."""
    if device.type == "cpu" and native.library() is not None:
        found = torch.empty(k, dtype=torch.int64)
        _places(n, int(key), k, found.data_ptr())
        return found
    return _walked(torch.arange(k, device=device), n, key, forward=True)


def ranks(where: Tensor, n: int, key: int | Tensor) -> Tensor:
    """Which number each of these places has in the permutation of n: the inverse of `places`. i64."""
    return _walked(where.long(), n, key, forward=False)


def _walked(numbers: Tensor, n: int, key: int | Tensor, *, forward: bool) -> Tensor:
    """Each number's image under the permutation of n, or under its inverse."""
    found = _scrambled(numbers, n, key, forward=forward)
    outside = torch.nonzero(found >= n).view(-1)
    while outside.numel():
        image = _scrambled(found[outside], n, key, forward=forward)
        found[outside] = image
        outside = outside[image >= n]
    return found


def _scrambled(numbers: Tensor, n: int, key: int | Tensor, *, forward: bool) -> Tensor:
    """The permutation of the power of two: halves of bits, each in turn changed by a hash of the other.
    What a round does, doing it again undoes."""
    bits = (n - 1).bit_length()
    high_bits, low_bits = bits // 2, bits - bits // 2
    low = (numbers & ((1 << low_bits) - 1)).int()
    high = (numbers >> low_bits).int()
    rounds = ROUNDS if bits > SMALL_BITS else SMALL_ROUNDS
    counters = torch.arange(rounds, dtype=torch.int32, device=numbers.device)
    if not isinstance(key, Tensor):
        key = counter.on_device(int(key), numbers.device)
    keys = counter.bits(counters, key)
    for turn in range(rounds) if forward else reversed(range(rounds)):
        if turn % 2 == 0:
            high = high ^ (counter.bits(low, keys[turn]) & ((1 << high_bits) - 1))
        else:
            low = low ^ (counter.bits(high, keys[turn]) & ((1 << low_bits) - 1))
    return (high.long() << low_bits) | low.long()
