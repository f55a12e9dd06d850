"""Random-k: exactly k places that a key tells, and what has broken others."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from law_settings.base import Setting
from laws import play, simulation
from numpy.typing import NDArray
from torch import Tensor

from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.topk import TopK
from dgc_repro.exchange.payload import Keyed, num_bytes
from dgc_repro.exchange.requests import Gather, Mean, Outcome
from dgc_repro.kernel import native, permute
from dgc_repro.kernel.workspace import Workspace

Array = NDArray[Any]


@pytest.fixture(params=["c", "tensors"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both implementations, one after the other; without a C compiler the second twice."""
    if request.param == "tensors":
        monkeypatch.setattr(native, "library", lambda: None)


def context(step: int = 0, rank: int = 0, path: tuple[str, ...] = ()) -> Context:
    return Context("w", step, 11, rank, 2, 0, (0, 0), Workspace(), path)


def numbered(n: int) -> Tensor:
    """Values that tell their places; exact in float32."""
    return torch.arange(1.0, n + 1)


def outcome(compressor: RandomK, x: Tensor, where: Context) -> Outcome:
    """An exchange between workers that all send the same."""
    running = compressor.exchange(x, {}, where)
    asked = next(running)
    answer = asked.tensor.clone() if isinstance(asked, Mean) else _Alone(asked)
    with pytest.raises(StopIteration) as end:
        running.send(answer)
    found: Outcome = end.value.value
    return found


class _Alone:
    def __init__(self, asked: object) -> None:
        assert isinstance(asked, Gather)
        self._payload = asked.payload

    def mean(self, buffer: Tensor) -> Tensor:
        self._payload.copy_to_(buffer, 1.0)
        return buffer


def hashed(number: int, key: int) -> int:
    """The counter's hash in Python's integers."""
    h = (number ^ key) & 0xFFFFFFFF
    h = (h ^ (h >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    h = (h ^ (h >> 15) ^ (key * 0x7FEB352D & 0xFFFFFFFF)) * 0x846CA68B & 0xFFFFFFFF
    return h ^ (h >> 16)


def places_of(n: int, k: int, key: int) -> list[int]:
    """The first k places of the permutation: those of a Feistel network, one entry at a time."""
    key &= 0xFFFFFFFF
    bits = (n - 1).bit_length()
    high_bits, low_bits = bits // 2, bits - bits // 2
    rounds = 24 if bits <= 6 else 8
    found = []
    for place in range(k):
        while True:
            high, low = divmod(place, 1 << low_bits)
            for turn in range(rounds):
                if turn % 2 == 0:
                    high ^= hashed(low, hashed(turn, key)) % (1 << high_bits)
                else:
                    low ^= hashed(high, hashed(turn, key)) % (1 << low_bits)
            place = (high << low_bits) | low
            if place < n:
                break
        found.append(place)
    return found


def reference(x: Array, density: float, key: int, unbiased: bool) -> Array:
    """comp_k of definition 2.1: x at k places, 0 elsewhere (times n / k where it is to be unbiased)."""
    n = len(x)
    k = min(n, max(1, round(n * density)))
    sent = np.zeros(n)
    places = places_of(n, k, key)
    sent[places] = x[places] * (n / k if unbiased else 1)
    return sent


def halves(values: Array) -> Array:
    """The nearest half, of those from -65504 to 65504."""
    return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float64)


def codes(values: Array) -> Array:
    """Every 2048 values, in the order in which they travel: s = max|x| / 127, s round(x / s)."""
    out = np.zeros_like(values)
    for start in range(0, len(values), 2048):
        row = values[start : start + 2048]
        scale = np.abs(row).max() / 127
        out[start : start + 2048] = scale * np.round(row / scale)
    return out


@pytest.mark.usefixtures("kernels")
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
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    expected = reference(x.double().numpy(), density, setting.key(context()), unbiased)
    found = outcome(setting, x, context())
    np.testing.assert_allclose(found.own.dense().numpy(), expected, rtol=2.0**-23)
    np.testing.assert_allclose(found.mean.numpy(), expected, rtol=2.0**-23)
    kept = max(1, round(n * density))
    assert num_bytes(found.own) == 4 * kept + (0 if shared else 8)
    assert found.own.num_floats == kept


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("values", "coded", "num_bytes_of_k"),
    [("fp16", halves, lambda k: 2 * k), ("int8", codes, lambda k: k + 4 * math.ceil(k / 2048))],
)
def test_values_travel_as_halves_or_as_codes(
    values: str, coded: Any, num_bytes_of_k: Any, shared: bool
) -> None:
    """4,200 values, 3 scales, one beyond the largest half. Scale, quotient and product are rounded to
    float32, 4 EPS; a value that lies in the middle between two codes to so much may get the other one."""
    n, k = 6000, 4200
    setting = RandomK(0.7, shared=shared, values=values)
    key = setting.key(context())
    places = places_of(n, k, key)
    x = torch.randn(n, generator=torch.Generator().manual_seed(2))
    x[places[100]] = 70_000.0
    expected = coded(x.numpy()[places].astype(np.float64))
    found = outcome(setting, x, context())
    assert isinstance(found.own, Keyed)
    sent, mean = found.own.dense().double().numpy(), found.mean.double().numpy()
    assert not sent[np.setdiff1d(np.arange(n), places)].any()
    off = np.abs(sent[places] - expected) > 2.0**-22 * np.abs(expected)
    assert off.sum() <= (0 if values == "fp16" else 2)
    np.testing.assert_array_equal(mean, sent)
    assert num_bytes(found.own) == num_bytes_of_k(k) + (0 if shared else 8)
    assert found.own.num_floats == k * (0.5 if values == "fp16" else 0.25)


def test_an_error_feedback_owes_what_was_rounded() -> None:
    setting = Setting("", ErrorFeedback(RandomK(0.5, values="int8")))
    exchange = simulation(setting, 2, {"w": torch.empty(500)})
    first = 100 + numbered(500)  # none is rounded to 0
    means = play(exchange, setting, [{"w": first.clone()}, {"w": first.clone()}])
    owed = exchange.states[0]["w"]["residual"]
    sent = means["w"] != 0
    assert int(sent.sum()) == 250
    # Half a step of the grid, which is 600 / 127 at most, and float32's rounding of 600.
    assert 0 < float(owed[sent].abs().max()) <= 600 / 127 / 2 + 600 * 2.0**-22
    torch.testing.assert_close(means["w"] + owed, first, rtol=2.0**-22, atol=0)


def test_a_mean_of_halves_past_their_range_is_their_largest() -> None:
    """Shares of 3 workers: 65504 / 3 is rounded up to a half, and three of these are past it."""
    setting = Setting("", RandomK(1.0, values="fp16"))
    exchange = simulation(setting, 3, {"w": torch.empty(4)})
    mean = play(exchange, setting, [{"w": torch.full((4,), 1e30)} for _ in range(3)])["w"]
    assert mean.tolist() == [65504.0] * 4


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_of_one_value_is_sent(shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 3.0)
    found = outcome(RandomK(0.001), x, context())
    assert torch.equal(found.mean, x)


def test_an_empty_tensor_sends_nothing() -> None:
    for shared in (True, False):
        found = outcome(RandomK(shared=shared), torch.zeros(0), context())
        assert found.mean.numel() == 0
        assert found.own.num_floats == 0


def test_every_entry_is_sent_sometime_the_last_one_too() -> None:
    """50 of 500, 200 steps: an entry is missed with probability 0.9^200 = 7e-10."""
    setting, x = RandomK(0.1), numbered(500)
    counts = sum((outcome(setting, x, context(step)).own.dense() != 0).int() for step in range(200))
    assert isinstance(counts, Tensor)
    assert bool((counts > 0).all())
    assert int(counts.sum()) == 200 * 50  # exactly k, none twice


def test_places_differ_by_step_tensor_and_seed_and_by_worker_only_where_they_should() -> None:
    x = numbered(500)
    where = context()
    others = {
        "step": context(1),
        "name": Context("v", 0, 11, 0, 2, 0, (0, 0), Workspace()),
        "seed": Context("w", 0, 12, 0, 2, 0, (0, 0), Workspace()),
    }
    for shared in (True, False):
        setting = RandomK(0.1, shared=shared)
        first = outcome(setting, x, where).own.dense()
        assert torch.equal(first, outcome(setting, x, context()).own.dense())
        for other in others.values():
            assert not torch.equal(first, outcome(setting, x, other).own.dense())
        same = torch.equal(first, outcome(setting, x, context(rank=1)).own.dense())
        assert same == shared


def test_no_global_random_number_is_drawn() -> None:
    before = torch.get_rng_state(), random.getstate()
    outcome(RandomK(0.1), numbered(500), context())
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


@pytest.mark.parametrize("shared", [True, False])
def test_scaled_values_past_float32s_range_are_infinite_and_no_other_number(shared: bool) -> None:
    setting = Setting("", RandomK(factor=100, unbiased=True, shared=shared))
    exchange = simulation(setting, 2, {"w": torch.empty(500)})
    mean = play(exchange, setting, [{"w": torch.full((500,), 1e37)} for _ in range(2)])["w"]
    assert set(mean.tolist()) == {0.0, math.inf}


def test_rungs_nest_and_a_stronger_one_is_found_among_the_survivors() -> None:
    x = torch.randn(1003, generator=torch.Generator().manual_seed(1))
    weak, strong = RandomK(factor=10), RandomK(factor=100)
    where = [context(path=("ladder", f"rung{rung}")) for rung in (1, 2)]
    survivors, direct = weak.select(x, where[0]), strong.select(x, where[1])
    assert set(direct.indices.tolist()) < set(survivors.indices.tolist())
    refined = strong.refine(survivors, where[1])
    assert torch.equal(refined.indices, direct.indices)
    assert torch.equal(refined.values, direct.values)
    assert refined.n == 1003
    dense = torch.zeros(1003).index_put((direct.indices.long(),), direct.values)
    assert torch.equal(outcome(strong, x, where[1]).own.dense(), dense)


def test_an_error_feedback_owes_nothing_where_was_sent_and_all_elsewhere() -> None:
    setting = Setting("", ErrorFeedback(RandomK(0.1)))
    exchange = simulation(setting, 2, {"w": torch.empty(500)})
    play(exchange, setting, [{"w": numbered(500)}, {"w": -2 * numbered(500)}])
    first, second = (state["w"]["residual"] for state in exchange.states)
    assert int((first == 0).sum()) == 50
    assert torch.equal(first[first != 0], numbered(500)[first != 0])
    assert torch.equal(second, -2 * first)  # the same places


def test_workers_with_places_of_their_own_average_over_all_of_them() -> None:
    setting = Setting("", RandomK(0.1, shared=False))
    exchange = simulation(setting, 2, {"w": torch.empty(500)})
    mean = play(exchange, setting, [{"w": numbered(500)}, {"w": numbered(500)}])["w"]
    half, whole = mean == numbered(500) / 2, mean == numbered(500)
    assert int(half.sum()) + 2 * int(whole.sum()) == 100
    assert int(half.sum()) > 0
    assert int((mean == 0).sum()) == 500 - int(half.sum()) - int(whole.sum())


def test_a_broken_payload_is_refused() -> None:
    payload = Keyed.of(50, -3, torch.ones(5), travels=True)
    (header, values) = payload.parts
    assert torch.equal(payload.like([header, values]).dense(), payload.dense())
    other = payload.like([torch.tensor([9]), values])
    assert not torch.equal(other.dense(), payload.dense())
    with pytest.raises(ValueError, match="another number of values"):
        payload.like([header, torch.ones(4)])
    with pytest.raises(ValueError, match="no key of 32 bits"):
        payload.like([torch.tensor([2**40]), values])
    codes = Keyed.of(50, -3, torch.ones(5), "int8", travels=True)
    again = codes.like([part.clone() for part in codes.parts])
    assert (again.key, again.dense().tolist()) == (-3, codes.dense().tolist())
    with pytest.raises(ValueError, match="type 0, this worker's of type 2 .* one setting `values`"):
        codes.like([header, *codes.parts[1:]])
    with pytest.raises(ValueError, match="another number of values"):
        codes.like([codes.parts[0], torch.ones(2), codes.parts[2]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": 0}, "density: a number above 0 and at most 1, or null, got 0"),
        ({"density": 3}, "density: a number above 0 and at most 1, or null, got 3"),
        ({"factor": 0.5}, "factor: a number from 1, or null, got 0.5"),
        ({"density": 0.1, "factor": 100}, "density: 0.1 is a factor of 10, and factor is 100"),
        ({"shared": "yes"}, "shared: true or false, got 'yes'"),
        ({"unbiased": 1}, "unbiased: true or false, got 1"),
        ({"unbiased": True, "values": "fp16"}, "values: fp16 rounds, and unbiased=true promises"),
        ({"unbiased": True, "values": "int8"}, "values: int8 rounds, and unbiased=true promises"),
        ({"values": "int4"}, "values: one of fp32, fp16, int8, got 'int4'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        RandomK(**settings)


def test_among_another_methods_survivors_those_first_in_the_permutation_are_chosen() -> None:
    x = torch.randn(1003, generator=torch.Generator().manual_seed(1))
    where = context()
    survivors, method = TopK(factor=10).select(x, where), RandomK(factor=100)
    refined = method.refine(survivors, where.within("strong"))
    ranks = permute.ranks(survivors.indices, 1003, method.key(where))
    first = ranks.argsort()[:10].sort().values
    assert torch.equal(refined.indices, survivors.indices[first])
    assert torch.equal(refined.values, x[refined.indices.long()])
