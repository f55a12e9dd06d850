"""Random numbers from a counter: a pure hash of (key, index), the same on every device.

No generator state exists, so nothing has to be seeded, saved or resumed, and no global random
number generator is touched. The mixer is the 32-bit finalizer "lowbias32" (Wellons, "Prospecting
for hash functions", 2018), written in int32 arithmetic that wraps, because CPU vector code exists
for int32 and not for uint32.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dgc_repro.kernel.cached import cached

Numbers = npt.NDArray[np.int32]
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B - (1 << 32)  # the same 32 bits as a signed integer
_MASK_64 = (1 << 64) - 1


def key(*parts: int | str) -> int:
    """Mix integers and names into one signed 32-bit key (splitmix64 over the parts)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        number = zlib.crc32(part.encode()) if isinstance(part, str) else int(part)
        state = (state + number) & _MASK_64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK_64
        state ^= state >> 31
    low = state & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low


def keys(
    before: Sequence[int | str],
    names: Sequence[str],
    after: Sequence[int | str | tuple[str, ...]],
) -> Numbers:
    """`key` of (*before, name, *after) for every name: i32[names]. A tuple has a part for each name."""
    state = np.full(len(names), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for part in before:
        state = _mixed(state, _number(part))
    state = _mixed(state, _checksums(tuple(names)))
    for own in after:
        number = _checksums(own) if isinstance(own, tuple) else _number(own)
        state = _mixed(state, number)
    keys: Numbers = (state & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
    return keys


def keys_of(numbers: Numbers) -> Numbers:
    """`key` of every number."""
    state = np.full(len(numbers), 0x9E3779B97F4A7C15, dtype=np.uint64)
    state = _mixed(state, numbers.astype(np.int64).view(np.uint64))
    keys: Numbers = (state & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
    return keys


def _mixed(state: Any, number: Any) -> Any:
    state = state + number
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _number(part: int | str) -> np.uint64:
    number = zlib.crc32(part.encode()) if isinstance(part, str) else int(part)
    return np.uint64(number & _MASK_64)


@cached(1024)
def _checksums(names: tuple[str, ...]) -> Any:
    return np.array([zlib.crc32(name.encode()) for name in names], dtype=np.uint64)


def on_device(key: int, device: torch.device) -> Tensor:
    """Return the key as a tensor for `bits`: i32[]. A fill writes the key, for which the host does
    not wait. For a copy from the host (`torch.tensor`) the host would wait until the GPU is idle."""
    return torch.full((), key, dtype=torch.int32, device=device)


def bits(counter: Tensor, key: Tensor) -> Tensor:
    """32 hashed bits for each counter. ``counter`` and ``key``: i32; result: i32, any sign.

    ``>>`` on int32 copies the sign, hence the masks: they make it a logical shift. The key enters
    twice, so that two keys do not give one stream in two orders.
    """
    h = counter ^ key
    h = (h ^ ((h >> 16) & 0xFFFF)) * _MULTIPLIER_1
    h = (h ^ ((h >> 15) & 0x1FFFF) ^ (key * _MULTIPLIER_1)) * _MULTIPLIER_2
    return h ^ ((h >> 16) & 0xFFFF)


def uniform(counter: Tensor, key: Tensor) -> Tensor:
    """Uniform numbers in (0, 1): the upper 23 hashed bits, centred in their step. f32.

    23 bits and not 24, because the centre of a step must be a float32 too: 1 never comes out.
    """
    upper = (bits(counter, key) >> 9) & 0x7FFFFF
    return (upper.to(torch.float32) + 0.5) * 2.0**-23
