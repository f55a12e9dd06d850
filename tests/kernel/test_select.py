"""Selections equal a full stable sort in numpy, in C and in tensor operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws import same_bits
from numeric import Array, both_kernels, hashed_bits, heavy_tailed, scratch, threads
from torch import Tensor

from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel import chosen, select, thresholds
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections
from dgc_repro.kernel.select import Selection

# Around what the kernel treats apart: one piece of 8192, no sample up to 1024, several threads.
SIZES = (1, 2, 9, 1024, 1025, 5000, 8192, 8193, 70_001, 140_000)


def kinds(n: int) -> Iterator[tuple[str, Tensor]]:
    source = torch.Generator().manual_seed(n)
    x = heavy_tailed(n, n)
    some = torch.rand(n, generator=source) < 0.05
    yield "heavy", x
    yield "zero", torch.zeros(n)
    yield "signed zeros", torch.where(some, -torch.zeros(n), torch.zeros(n))
    yield "equal", torch.full((n,), -0.3)
    yield "few values", torch.randint(-2, 3, (n,), generator=source).float()
    yield "mostly zero", x * some
    yield "denormal", x * 1e-41
    yield "huge", x.clamp(-1, 1) * 3e38
    yield "rising", x.abs().sort().values
    yield "falling", -x.abs().sort(descending=True).values
    yield "nan", torch.where(some, torch.nan, x)
    yield "infinite", torch.where(some, -torch.inf, x)


def keys(x: Tensor) -> Array:
    """What is compared: the magnitude, a NaN above all."""
    return x.numpy().view(np.int32).astype(np.int64) & 0x7FFFFFFF


def ranked(x: Tensor) -> Array:
    """All places, the largest magnitude first; of equal ones the lower first."""
    return np.argsort(-keys(x), kind="stable")


def largest(x: Tensor, k: int) -> Array:
    """The places of the k largest magnitudes, ascending."""
    return np.sort(ranked(x)[:k])


def check(found: Selection, x: Tensor, places: Array) -> None:
    assert found.n == x.numel()
    assert found.indices.dtype == torch.int32
    np.testing.assert_array_equal(found.indices.numpy(), places)
    assert same_bits(found.values, x[torch.from_numpy(places)])


def counts(n: int) -> list[int]:
    return sorted(
        {1, 2, n // 1000, n // 100, n // 10, n // 5, n // 2, n - 1, n} & set(range(1, n + 1))
    )


@both_kernels
@pytest.mark.parametrize("n", SIZES)
def test_topk_equals_a_stable_sort(n: int) -> None:
    for _, x in kinds(n):
        order = ranked(x)
        for k in counts(n):
            check(select.topk(x, k), x, np.sort(order[:k]))


def reached(x: Tensor, limit: int, wanted: int) -> Array:
    """The places above a limit, and those equal to it until so many are chosen; one of them in any case."""
    above, equal = np.flatnonzero(keys(x) > limit), np.flatnonzero(keys(x) == limit)
    ties = 1 if equal.size == 1 else max(wanted - above.size, 0)
    return np.sort(np.concatenate([above, equal[:ties]]))


def reaching(x: Batch, limit: int, wanted: int, **more: Any) -> Selections:
    return chosen.reaching(
        x, np.full(len(x), limit, np.int32), np.full(len(x), wanted), scratch, **more
    )


@both_kernels
@pytest.mark.parametrize("n", SIZES)
def test_what_reaches_a_limit_is_found_whatever_was_expected(n: int) -> None:
    every = dict(kinds(n))
    x = Batch(tuple(every), list(every.values()))
    for threshold in (0.0, 1e-42, 0.3, 1.0, torch.inf, torch.nan):
        limit = int(keys(torch.tensor([threshold], dtype=torch.float32))[0])
        for wanted in (0, n // 3, n):
            places = [reached(tensor, limit, wanted) for tensor in every.values()]
            for expected in (None, np.zeros(len(x), np.int64), x.counts):
                found = reaching(x, limit, wanted, expected=expected)
                for one, tensor, own in zip(found, every.values(), places, strict=True):
                    check(one, tensor, own)


@both_kernels
def test_limits_may_leave_tensors_out_and_choose_among_survivors() -> None:
    every = [heavy_tailed(n, n) for n in (5, 0, 3000, 70_001)]
    x = Batch(tuple("abcd"), every)
    active = np.array([True, True, False, True])
    survivors = reaching(x, int(keys(torch.tensor([0.5]))[0]), 10**9, active=active)
    assert survivors.counts[1:3] == (0, 0)
    limit = int(keys(torch.tensor([2.0]))[0])
    found = reaching(survivors.values_of(x), limit, 10**9, through=survivors)
    for one, tensor, read in zip(found, every, active, strict=True):
        check(one, tensor, np.flatnonzero(keys(tensor) >= limit) if read else np.zeros(0, int))
    wide = Selections(
        (2**33,) * 4, survivors.counts, survivors.values, survivors.indices.long() + 2**32
    )
    again = reaching(wide.values_of(x), limit, 10**9, through=wide)
    assert again.indices.dtype == torch.int64
    assert torch.equal(again.indices, found.indices.long() + 2**32)


@both_kernels
def test_the_kth_largest_of_each_tensor_is_exact_with_nan_above_all() -> None:
    for n in (*SIZES, 1000):
        every = dict(kinds(n))
        x = Batch(tuple(every), list(every.values()))
        for k in counts(n):
            found = thresholds.kths(x, (k,) * len(x))
            assert found.tolist() == [np.sort(keys(one))[-k] for one in every.values()]
            left_out = thresholds.kths(x, (k,) * len(x), np.arange(len(x)) > 3)
            assert left_out.tolist() == [0, 0, 0, 0, *found[4:].tolist()]


@both_kernels
@pytest.mark.parametrize("n", SIZES)
def test_refining_and_ladders_equal_direct_selection(n: int) -> None:
    for _, x in kinds(n):
        order = ranked(x)
        for factors in ((2, 3), (1, 10, 100), (10, 10), (4, 40, 400, 4000)):
            ks = [max(1, round(n / factor)) for factor in factors]
            rungs = select.ladder(x, ks)
            survivors = select.topk(x, ks[0])
            for k, rung in zip(ks, rungs, strict=True):
                check(rung, x, np.sort(order[:k]))
                survivors = select.refine(survivors, k)
                check(survivors, x, np.sort(order[:k]))


@both_kernels
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.floats(width=32), min_size=1, max_size=40),
    n=st.integers(1, 3000),
    stride=st.integers(1, 60),
    data=st.data(),
)
def test_any_values_in_any_order(
    values: list[float], n: int, stride: int, data: st.DataObject
) -> None:
    pool = torch.tensor(values, dtype=torch.float32)
    x = pool[(torch.arange(n) * stride) % len(values)]
    k = data.draw(st.integers(1, n))
    stronger = data.draw(st.integers(1, k))
    check(select.topk(x, k), x, largest(x, k))
    for rung, size in zip(select.ladder(x, [k, stronger]), (k, stronger), strict=True):
        check(rung, x, largest(x, size))


def sampled_places(n: int) -> Array:
    """Where c/select.c looks beforehand."""
    count = max(256, min(65536, n // 16))
    i, h = np.arange(count), hashed_bits(np.arange(count), 0x9E3779B9)
    return np.minimum(n - 1, ((i + h * 2.0**-32) * (n / count)).astype(np.int64))


@pytest.mark.parametrize("large_where_looked", [True, False])
@pytest.mark.parametrize("share", [3, 10, 100])
def test_a_sample_that_misleads_costs_time_alone(share: int, large_where_looked: bool) -> None:
    """The brackets are wrong on purpose: too few values above them, or too many for the scratch."""
    n = 100_000
    looked = torch.zeros(n, dtype=torch.bool)
    looked[torch.from_numpy(sampled_places(n))] = True
    x = torch.linspace(1, 2, n).roll(777)
    x = torch.where(looked == large_where_looked, x + 100, x)
    check(select.topk(x, n // share), x, largest(x, n // share))


@both_kernels
def test_places_beyond_2_to_the_24_are_exact() -> None:
    """Where float32 has no odd numbers any more."""
    n = 2**24 + 1000
    x = torch.zeros(n)
    places = [0, 2**24 - 1, 2**24 + 1, 2**24 + 3, n - 1]
    x[places] = torch.tensor([-3.0, 1.0, 2.0, -2.0, 5.0])
    assert select.topk(x, 5).indices.tolist() == places
    found = reaching(Batch(("x",), [x]), int(keys(torch.tensor([0.5]))[0]), n)[0]
    assert found.indices.tolist() == places
    assert select.topk(x, 3).indices.tolist() == [0, 2**24 + 1, n - 1]  # the lower of equal ones


@both_kernels
def test_indices_widen_beyond_2_to_the_31_entries() -> None:
    assert select.index_type(2**31 - 1) == torch.int32
    assert select.index_type(2**31) == torch.int64
    n, count = 2**33, 20_000
    x = heavy_tailed(count)
    wide = torch.arange(count) * 400_000 + 2**32
    survivors = Selection(x, wide, n)
    for found in (select.refine(survivors, 300), select.refine(survivors, 9000)):
        places = torch.from_numpy(largest(x, found.values.numel()))
        assert found.n == n
        assert found.indices.dtype == torch.int64
        assert torch.equal(found.indices, wide[places])
    some = select.among(survivors, torch.tensor([0, 7, count - 1]))
    assert torch.equal(some.indices, wide[[0, 7, count - 1]])


@both_kernels
def test_nothing_of_nothing_and_nothing_of_something() -> None:
    for found in (
        select.topk(torch.zeros(0), 0),
        select.topk(torch.ones(5), 0),
        *reaching(Batch(("a", "b"), [torch.zeros(0), torch.ones(5)]), 1 << 30, 5),
        select.ladder(torch.zeros(0), [0, 0])[1],
        select.at(torch.ones(3), torch.zeros(0, dtype=torch.int64)),
    ):
        assert found.values.numel() == found.indices.numel() == 0
        assert found.indices.dtype == torch.int32


@both_kernels
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_entries_at_places_and_among_a_selection(dtype: torch.dtype) -> None:
    x = heavy_tailed(30_000)
    places = torch.arange(0, 30_000, 3).to(dtype)
    check(select.at(x, places), x, places.numpy())
    check(select.among(select.topk(x, 30_000), places), x, places.numpy())


def test_a_ladder_whose_rungs_grow_weaker_is_refused() -> None:
    with pytest.raises(ValueError, match="its ks fall; got "):
        select.ladder(torch.ones(9), [2, 3])


def test_the_number_of_threads_changes_nothing() -> None:
    x = heavy_tailed(300_000)
    several = Batch(("whole", "part", "few"), [x, x[:100_000], x[:777]])
    limit = int(keys(torch.tensor([1.0]))[0])

    def every() -> list[Tensor]:
        found = [*select.ladder(x, [30_000, 300]), select.topk(x, 100_000)]
        found += reaching(several, limit, 0)
        return [
            kernels.energies(several),
            *(part for one in found for part in (one.values, one.indices)),
        ]

    one = every()
    with threads(3):
        assert all(map(same_bits, one, every()))


@both_kernels
def test_a_sum_tells_the_energies_that_a_pass_of_its_own_finds() -> None:
    sizes = (0, 1, 65_535, 65_536, 200_001)
    a, b = ([torch.randn(n) for n in sizes] for _ in range(2))
    batch = Batch(tuple(map(str, sizes)), a)
    with threads(3):
        total = kernels.add(batch, b, [torch.empty_like(x) for x in a], 0.5, measured=True)
    found = kernels.energies(total)
    assert same_bits(found, kernels.energies(Batch(batch.names, list(total.tensors))))


@both_kernels
def test_a_sum_takes_a_term_of_another_shape_with_as_many_values() -> None:
    """A payload's values may have another shape than the state that they are subtracted from."""
    state = torch.randn(4, 6)
    for shape in ((24,), (2, 12), (24, 1)):
        term, total = torch.randn(shape), torch.empty(4, 6)
        kernels.add(Batch(("x",), [state]), [term], [total], -1.0)
        assert same_bits(total, state - term.view(4, 6))
    empty = torch.zeros(0, 4)
    kernels.add(Batch(("x",), [empty]), [torch.zeros(0)], [empty], 1.0)


@both_kernels
def test_an_energy_is_exact_to_float64_and_does_not_overflow() -> None:
    """n EPS(f64) bounds any order of summation."""
    for n in (0, 1, 70_001):
        for name, x in kinds(n) if n else [("", torch.zeros(0))]:
            expected = float((x.numpy().astype(np.float64) ** 2).sum())
            energy = kernels.energies(Batch(("x",), [x]))[0]
            assert energy.dtype == torch.float64
            if np.isfinite(expected):
                assert abs(float(energy) - expected) <= n * 2.0**-53 * expected, name
            else:
                assert same_bits(energy.abs(), torch.tensor(expected, dtype=torch.float64).abs())
