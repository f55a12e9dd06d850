"""Random-k: exactly k places that a key tells, and what has broken others."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from laws import played
from numeric import Array, both_kernels, context, dense, gaussian, hashed_bits, run

from dgc_repro import RandomK
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import Keyed


def places_of(n: int, k: int, key: int) -> Array:
    """The first k places of the permutation: those of a Feistel network, walked until they are below n."""
    bits = (n - 1).bit_length()
    high_bits, low_bits = bits // 2, bits - bits // 2
    rounds = 24 if bits <= 6 else 8
    keys = hashed_bits(np.arange(rounds), key).astype(np.int64)

    def scrambled(places: Array) -> Array:
        high, low = places >> low_bits, places % (1 << low_bits)
        for turn in range(rounds):
            if turn % 2 == 0:
                high = high ^ hashed_bits(low, keys[turn]) % (1 << high_bits)
            else:
                low = low ^ hashed_bits(high, keys[turn]) % (1 << low_bits)
        return (high << low_bits) | low

    found = scrambled(np.arange(k))
    while (found >= n).any():
        found = np.where(found >= n, scrambled(found), found)
    return found


def reference(x: Array, density: float, key: int, unbiased: bool) -> Array:
    """comp_k of definition 2.1: x at k places, 0 elsewhere (times n / k where it is to be unbiased)."""
    n = len(x)
    k = min(n, max(1, round(n * density)))
    sent = np.zeros(n)
    places = places_of(n, k, key)
    sent[places] = x[places] * (n / k if unbiased else 1)
    return sent


@both_kernels
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("n", "density"), [(1, 0.01), (2, 0.5), (37, 0.3), (1000, 0.05), (300, 1.0)]
)
def test_what_is_sent_is_the_definition(
    n: int, density: float, shared: bool, unbiased: bool
) -> None:
    """A product is rounded once to float32, and n / k was: 2 EPS."""
    setting = RandomK(density, shared=shared, unbiased=unbiased)
    x = gaussian(n, n)
    expected = reference(x.double().numpy(), density, setting.key(context()), unbiased)
    found = run(setting, x)
    np.testing.assert_allclose(
        dense(found.own, found.mean.numel()).numpy(), expected, rtol=2.0**-23
    )
    np.testing.assert_allclose(found.mean.numpy(), expected, rtol=2.0**-23)
    kept = max(1, round(n * density))
    assert found.own.num_bytes == 4 * kept + (0 if shared else 8)
    assert found.own.num_floats == kept


@pytest.mark.parametrize("shared", [True, False])
def test_scaled_values_past_float32s_range_are_infinite_and_no_other_number(shared: bool) -> None:
    method = RandomK(factor=100, unbiased=True, shared=shared)
    (mean,), _ = played(method, [[torch.full((500,), 1e37)] * 2])
    assert set(mean.tolist()) == {0.0, math.inf}


def sent() -> Keyed:
    """What a worker sends of two tensors, of 50 and 30 values, at places of its own."""
    batch = Batch(("a", "b"), [gaussian(50), gaussian(30)])
    return RandomK(0.2, shared=False).encode(batch, context())


def test_keys_that_arrive_on_another_device_are_not_read_by_the_host() -> None:
    """Reading a tensor of the device "meta" fails."""
    payload = sent()
    there = replace(payload, keys=payload.keys.to("meta"), buffer=payload.buffer.to("meta"))
    assert there.like(there.row).keys.shape == payload.keys.shape


def test_a_key_that_arrives_broken_is_refused() -> None:
    payload = sent()
    broken = payload.row.clone()
    broken.view(torch.int64)[payload.layout.starts[0, 1] // 8] = 2**40
    with pytest.raises(ValueError, match="no key of 32 bits"):
        payload.like(broken)
