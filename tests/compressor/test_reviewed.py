"""What a review has found, so that it stays mended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from law_settings.base import Setting
from laws import play, simulation
from tiny_run import UNIFORM4_EF, built
from tiny_run import play as train
from torch import Tensor

from dgc_repro.compressor.block_momentum import BlockMomentum
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.sharded import Shards
from dgc_repro.compressor.sidco import SIDCo
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.errors import UserError
from dgc_repro.exchange.payload import Sparse
from dgc_repro.kernel import native, select
from dgc_repro.kernel.select import Selection
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.policy.interface import Plan
from dgc_repro.train import checkpoint


def normal(size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size))


def context(step: int = 0) -> Context:
    return Context("x", step, 0, 0, 1, None, (1, 2), Workspace())


@pytest.mark.parametrize("coding", ["int32", "delta16", "bitmap", "auto"])
def test_wide_indices_of_a_shard_are_sent_as_its_size_needs(coding: str) -> None:
    places = torch.tensor([5, 9, 70_000])
    payload = Sparse.of(Selection(torch.ones(3), places, 100_000), coding)
    assert payload.dense().nonzero().view(-1).tolist() == places.tolist()
    assert sum(part.nbytes for part in payload.parts) == payload.layout.num_bytes


def test_workers_of_a_huge_tensor_send_one_type_of_word_whatever_their_coding() -> None:
    """The dtypes of parts are this worker's own when lengths are all that is told (`GatherRagged`)."""
    n = 2**31 + 10
    few = Sparse.of(Selection(torch.zeros(0), torch.zeros(0, dtype=torch.int64), n), "auto")
    some = torch.arange(0, n, 2**20)
    many = Sparse.of(Selection(torch.ones(some.numel()), some, n), "delta16")
    wide = Sparse.of(Selection(torch.ones(some.numel()), some, n), "int32")
    assert {part.dtype for one in (few, many, wide) for part in one.parts[1:2]} == {torch.int32}
    assert torch.equal(wide.like([part.clone() for part in wide.parts]).indices, some)
    assert wide.layout.num_bytes == sum(part.nbytes for part in wide.parts)


@pytest.mark.parametrize("places", [[5, 0, 9], [5, 5, 9], [0, 9, 5]])
@pytest.mark.parametrize("kernels", ["c", "tensors"])
def test_places_that_do_not_ascend_are_broken_for_every_kernel(
    places: list[int], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "tensors":
        monkeypatch.setattr(native, "library", lambda: None)
    broken = Sparse.of(Selection(torch.ones(3), torch.tensor(places, dtype=torch.int32), 100))
    with pytest.raises(ValueError, match="not 3 ascending places of 100"):
        broken.copy_to_(torch.empty(100), 1.0)
    with pytest.raises(ValueError, match="not 3 ascending places of 100"):
        assert broken.indices is None


@pytest.mark.parametrize("shared", [True, False])
def test_velocity_is_masked_where_random_k_has_sent(shared: bool) -> None:
    nest = MomentumCorrection(RandomK(factor=10, shared=shared))
    exchange = simulation(Setting("", nest), 2, {"x": normal(1000)})
    play(exchange, Setting("", nest), [{"x": normal(1000)} for _ in range(2)])
    assert [int((s["x"]["velocity"] == 0).sum()) for s in exchange.states] == [100, 100]


@pytest.mark.parametrize("kernels", ["c", "tensors"])
@pytest.mark.parametrize("method", [DGCSampled(factor=11), Threshold(factor=11)], ids=str)
def test_fewer_survivors_than_are_wanted_are_all_sent(
    method: DGCSampled | Threshold, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "tensors":
        monkeypatch.setattr(native, "library", lambda: None)
    survivors = select.topk(normal(900_000), 60_000)
    assert method.refine(survivors, context()).values.numel() == 60_000


@pytest.mark.parametrize(
    "kind", [lambda f: RedSync(factor=f, quantized=True), SIDCo], ids=["r", "s"]
)
def test_what_cannot_refine_is_chosen_from_the_whole_tensor(kind: object) -> None:
    rungs = [kind(factor=f) if kind is SIDCo else kind(f) for f in (10, 100)]  # type: ignore[operator]
    ladder = Ladder((Dense(), *rungs))
    assert ladder._selections(normal(10_000), context()) == {}
    setting = Setting("", ladder, Plan(None, candidates=(1, 2)), lambda energies: 2)
    probed = simulation(setting, 1, {"x": normal(10_000)})
    planned = simulation(Setting("", ladder, Plan(2)), 1, {"x": normal(10_000)})
    one = play(probed, setting, [{"x": normal(10_000)}])
    two = play(planned, Setting("", ladder, Plan(2)), [{"x": normal(10_000)}])
    assert torch.equal(one["x"], two["x"])


def test_what_is_owed_outlives_a_step_without_a_learning_rate() -> None:
    exchange = simulation(Setting("", BlockMomentum(RandomK(factor=2))), 1, {"x": normal(100)})
    setting = Setting("", exchange.compressor)
    exchange.learning_rate = 0.1
    play(exchange, setting, [{"x": normal(100)}])
    owed = exchange.states[0]["x"]["residual"].clone()
    assert owed.any()
    exchange.learning_rate = 0.0
    play(exchange, setting, [{"x": normal(100)}])
    assert torch.equal(exchange.states[0]["x"]["residual"], owed)
    assert exchange.states[0]["x"]["learning_rate"] == 0.1


def test_a_shard_is_whole_buckets() -> None:
    assert Shards.of(QSGD(bucket=1000), 8192, "x", 2).bounds(0) == (0, 5000)


def test_a_run_of_other_nodes_is_not_continued(tmp_path: Path) -> None:
    four = ("launch.workers=4", "train.batch_size=8")
    train(built(*UNIFORM4_EF, *four), until=2, folder=tmp_path)
    other = built(*UNIFORM4_EF, *four, "launch.workers_per_node=2")
    with pytest.raises(UserError, match="launch.workers_per_node: .* saved with 1 workers a node"):
        checkpoint.load(other, tmp_path, "a config")
