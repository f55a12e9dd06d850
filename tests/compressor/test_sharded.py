"""Sharded against a numpy reference of the papers' double compression, and its law of the mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from laws import Seen, played, same, transcript
from numeric import Array, by_owner, in_steps, random_steps, topk, without_c
from test_laws import steps
from torch import Tensor

from dgc_repro import QSGD, ErrorFeedback, OneBitAdam, Sharded, TopK, Uniform
from dgc_repro.compressor.interface import Compressor, nested
from dgc_repro.compressor.sharded import OWNER, Encoder, Shards
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.law_settings.base import EPS


def double_squeeze(
    gradients: list[list[Tensor]], compress: Any, row: int, whole: bool
) -> tuple[list[Array], list[Array], Array]:
    """DoubleSqueeze, algorithm 1, with a server for each shard: the mean of each step, the workers'
    residuals and the servers' in the end. ``whole``: workers compress the tensor as a whole."""
    workers, n = len(gradients[0]), len(gradients[0][0])
    size = math.ceil(math.ceil(n / row) / workers) * row
    shards = [slice(min(n, s * size), min(n, (s + 1) * size)) for s in range(workers)]
    delta = [np.zeros(n) for _ in range(workers)]  # of the workers
    server = np.zeros(n)  # of all servers, each its shard
    means = []
    for step in gradients:
        sent = []
        for i, gradient in enumerate(step):
            v = gradient.double().numpy() + delta[i]  # v_i = g_i + delta_i
            if whole:
                q = compress(v)
            else:
                q = np.concatenate([compress(v[s]) for s in shards])
            delta[i] = v - q  # delta_i = v_i - Q[v_i]
            sent.append(q)
        v = np.mean(sent, axis=0) + server  # v = 1/n sum Q[v_i] + delta
        mean = np.concatenate([compress(v[s]) for s in shards])
        server = v - mean  # delta = v - Q[v]
        means.append(mean)
    return means, delta, server


def owners_residual(states: list[Any], shards: Shards) -> Tensor:
    """The residuals of all owners, where they belong."""
    total = torch.full((shards.n,), torch.nan)
    for rank, state in enumerate(states):
        start, end = by_owner(shards)[rank]
        own = state[f"inner.{OWNER}"]
        assert own.shape == (end - start,)
        total[start:end] = own
    return total


def assert_equal_but_for_ties(ours: Tensor, theirs: Array, steps: int) -> None:
    """Equal to float32's roundings (a dozen, of values up to 5: 1e-5) but for entries that lay in the
    middle between two codes, where float32 and float64 may round to different sides, in the first or
    the second compression: averages of few-bit codes often lie there. Hardly two of 1,000 do in a
    step (a wrong residual, server or scale puts most entries off)."""
    off = np.abs(ours.double().numpy() - theirs) > 1e-5
    assert np.count_nonzero(off) <= steps * len(theirs) / 500


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize(
    ("method", "compress", "row"),
    [
        (Uniform(8, block=100), lambda x: in_steps(x, 8, 100), 100),
        (Uniform(4, block=64), lambda x: in_steps(x, 4, 64), 64),
        (TopK(0.01), lambda x: topk(x, round(0.01 * len(x))), 4096),
    ],
    ids=["8 bits", "4 bits", "top-k"],
)
def test_four_steps_are_the_papers(method: Any, compress: Any, row: int, workers: int) -> None:
    n = 10_000
    gradients = random_steps(n, workers, 4)
    means, states = played(ErrorFeedback(Sharded(method)), gradients)
    expected, delta, server = double_squeeze(gradients, compress, row, isinstance(method, TopK))
    for step, (ours, theirs) in enumerate(zip(means, expected, strict=True)):
        assert_equal_but_for_ties(ours, theirs, step + 1)
    for rank in range(workers):
        assert_equal_but_for_ties(states[rank]["residual"], delta[rank], 4)
    owners = owners_residual(states, Shards.of(method, n, "x", workers))
    assert_equal_but_for_ties(owners, server, 4)
    assert np.abs(server).max() > 1e-3, "the second compression loses something, and it is kept"


ENCODERS = {s.name: s.compressor for s in SETTINGS if isinstance(s.compressor, Encoder)}
REFUSED = {
    name: method for name, method in ENCODERS.items() if getattr(method, "gather_only", False)
} | {
    "qsgd-1-None-two": ENCODERS["qsgd-1-None-two"]  # loses more than it is given
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_shards_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be parted into shards|without Sharded"):
        Sharded(ENCODERS[name])


SCATTERED = [
    i
    for i, one in enumerate(SETTINGS)
    # Which rung a chooser took is not in the transcript; its rungs are settings too.
    if one.choose is None
    and any(isinstance(part, Sharded) for part in nested(one.compressor))
    # 1-bit Adam answers with the gradient that gives the momentum, not with the mean of what was sent.
    and not isinstance(one.compressor, OneBitAdam)
]


def owner_of(state: Any, rung: int) -> Tensor | None:
    """The owner's residual in a nest of states: that of the rung, on a ladder."""
    found = {label: one for label, one in state.items() if label.endswith(OWNER)}
    of_rung = {label: one for label, one in found.items() if f"rung{rung}." in label}
    own = of_rung if any("rung" in label for label in found) else found
    assert len(own) <= 1
    return next(iter(own.values()), None)


def shards_seen(compressor: Compressor, name: str, one: Seen, workers: int, rung: int) -> Shards:
    """The shards of a tensor that some Sharded in the nest has parted."""
    sharded = [part for part in nested(compressor) if isinstance(part, Sharded)]
    method = sharded[min(rung - 1, len(sharded) - 1) if len(sharded) > 1 else 0].method
    return Shards.of(method, one.tensor.numel(), name, workers)


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("index", SCATTERED, ids=lambda index: str(SETTINGS[index]))
def test_mean_and_owners_residual_average_what_was_sent(index: int, workers: int) -> None:
    """mean + new residual - old residual = average of own, on every shard.

    The bound of the law of averaging, for the average; and one rounding each for adding the old
    residual and subtracting what was decoded, which is itself rounded twice."""
    setting = SETTINGS[index]
    for name, seen in transcript(index, workers)[0].items():
        rung = setting.plan.for_tensor(name) or 0
        shards = shards_seen(setting.compressor, name, seen[0], workers, rung)
        for outcomes in steps(seen, workers):
            owns = torch.stack([one.own.double() for one in outcomes])
            average, mean = owns.mean(0), outcomes[0].mean.double().view(-1)
            for one, (start, end) in zip(outcomes, by_owner(shards), strict=True):
                before, after = owner_of(one.before, rung), owner_of(one.after, rung)
                if end == start:
                    continue
                assert after is not None or before is None
                after = torch.zeros(end - start) if after is None else after  # it went dense
                old = torch.zeros(end - start) if before is None else before
                kept = mean[start:end] + after.double() - old.double()
                size = owns.abs().mean(0)[start:end] + old.abs() + after.abs()
                size += mean[start:end].abs()
                bound = (workers + 6) * EPS * size + 2.0**-134
                assert bool(((kept - average[start:end]).abs() <= bound).all())


def test_the_bits_are_the_same_without_the_c_kernels() -> None:
    gradients = random_steps(9000, 3, 3)
    nest = ErrorFeedback(Sharded(Uniform(4, "stochastic", 512)))
    means, states = played(nest, gradients)
    with without_c():
        others, other_states = played(nest, gradients)
    assert all(map(torch.equal, means, others))
    assert same(states, other_states)


def test_a_shard_is_whole_buckets() -> None:
    assert Shards.of(QSGD(bucket=1000), 8192, "x", 2).bounds(0) == (0, 5000)
