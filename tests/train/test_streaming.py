"""Streaming DiLoCo: algorithm 2 by hand, bytes, resuming, what is dropped. Real processes: test_worlds.py."""

from __future__ import annotations

import itertools
import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from test_local_steps import (
    DENSE,
    SAME_DATA,
    assert_near,
    assert_same_but_for_workers,
    local_step,
    nesterov,
    overflowing,
    sgd,
)
from tiny_run import PLAIN, SETTINGS, UNIFORM4_EF, built, play, state_of
from torch import Tensor

from dgc_repro.model.gpt import GPT
from dgc_repro.model.resnet18 import ResNet18
from dgc_repro.train import checkpoint
from dgc_repro.train.loop import train
from dgc_repro.train.run import Run
from dgc_repro.train.streaming import Streaming, layers, strided

EIGHT_STEPS = ("train.batch_size=8",)  # an epoch
GAP, STEPS_PER_EPOCH, STEPS = 2, 8, 16
STREAM = ("train.local_steps=4", "train.fragments=2", *EIGHT_STEPS)
BODY_AND_HEAD = (0, 1), (2, 3)
"""The two layers of odd_models.Plain, which are two fragments, as places of its parameters."""


def algorithm_2(run: Run, delay: int, mixing: float) -> dict[int, list[Tensor]]:
    """By hand in float64, on the batches of a run that has not begun: theta after each step that moves it."""
    parameters = list(run.module.parameters())
    theta = [p.detach().double() for p in parameters]
    own = [[t.clone() for t in theta] for _ in range(2)]
    inner = [[sgd(p, run.base_lr) for p in parameters] for _ in range(2)]
    outer = [nesterov(0.7, 0.9) for _ in BODY_AND_HEAD]
    module, told = deepcopy(run.module).double(), {}
    under_way: tuple[int, list[Tensor]] | None = None
    for t in range(1, STEPS + 1):
        epoch, done = divmod(t - 1, STEPS_PER_EPOCH)
        for worker in range(2):
            batch = next(run.task.batches(epoch, 2, worker, done))
            own[worker] = local_step(module, own[worker], batch, inner[worker])
        if t % GAP == 0:
            p = (t // GAP - 1) % 2
            delta = [theta[i] - (own[0][i] + own[1][i]) / 2 for i in BODY_AND_HEAD[p]]
            under_way = p, delta
        if under_way and (t % GAP == delay or t % STEPS_PER_EPOCH == 0):
            p, delta = under_way
            moved = outer[p]([theta[i] for i in BODY_AND_HEAD[p]], delta)
            for i, new in zip(BODY_AND_HEAD[p], moved, strict=True):
                theta[i] = new
                for one in own:
                    one[i] = mixing * one[i] + (1 - mixing) * new
            under_way, told[t] = None, list(theta)
    return told


@pytest.mark.parametrize(("delay", "mixing"), [(0, 0.0), (1, 0.0), (1, 0.5), (0, 0.25)])
def test_the_shared_weights_are_those_of_algorithm_2(delay: int, mixing: float) -> None:
    given = (*SAME_DATA, *DENSE, *STREAM)
    expected = algorithm_2(built(*given), delay, mixing)
    assert list(expected) == (
        [2, 4, 6, 8, 10, 12, 14, 16] if delay == 0 else [3, 5, 7, 8, 11, 13, 15, 16]
    )
    run = built(*given, f"train.delay_steps={delay}", f"train.mixing={mixing}")
    before = [p.detach().clone() for p in run.module.parameters()]
    for step, theta in expected.items():
        play(run, until=step)
        assert run.progress.step == step
        assert_near(run, theta, before)


def test_each_exchange_sends_one_fragment() -> None:
    run = built(*PLAIN, *DENSE, *STREAM, "train.delay_steps=1", "train.epochs=1")
    ledger, sent, before = run.world.ledger, [], 0
    values = [p.numel() for p in run.module.parameters()]
    fragments = [sum(values[i] for i in places) for places in BODY_AND_HEAD]
    for step in range(1, STEPS_PER_EPOCH + 1):
        play(run, until=step)
        if ledger.payload_bytes > before:
            sent.append((ledger.payload_bytes - before) // 4)
            before = ledger.payload_bytes
    assert sent == fragments * 2
    assert ledger.calls["gradient"] == {"allreduce": 4}
    assert ledger.floats == 2 * sum(values)


@pytest.mark.parametrize(
    "name",
    [
        *("dense", "uniform nearest", "topk", "sparseloco", "powersgd", "ef_signsgd", "qsgd"),
        *("natural", "loco", "shards"),
    ],
)
def test_all_fragments_together_send_what_a_round_of_diloco_sends(name: str) -> None:
    given = (*PLAIN, *SETTINGS[name], "train.local_steps=4", "train.epochs=1")
    whole, parts = built(*given), built(*given, "train.fragments=2")
    assert play(whole).finished
    assert play(parts).finished
    assert parts.world.ledger.floats == whole.world.ledger.floats
    filling = parts.world.ledger.payload_bytes - whole.world.ledger.payload_bytes
    assert 0 <= filling <= 8 * 2  # a part of a message begins at a multiple of 8 bytes


@pytest.mark.parametrize(
    ("workers", "sent_after"), [(1, [2, 4, 6, 8]), (2, [3, 5, 7, 8])], ids=["alone", "simulated"]
)
def test_a_process_with_one_worker_sends_at_once(workers: int, sent_after: list[int]) -> None:
    """Real processes host one worker each. The mean arrives after the delay all the same."""
    alone = (f"launch.workers={workers}", f"train.batch_size={16 // workers}")
    run = built(*PLAIN, *UNIFORM4_EF, *STREAM, *alone, "train.delay_steps=1", "train.epochs=1")
    told = [0]
    train(run, lambda _: told.append(run.world.ledger.payload_bytes), lambda _: None, lambda: None)
    steps = enumerate(itertools.pairwise(told), 1)
    assert [step for step, (old, new) in steps if new > old] == sent_after
    assert run.exchange.step == 5  # the first round ends after step 1, when nothing is under way


def test_error_feedback_keeps_the_residual_of_each_fragment() -> None:
    run = built(*PLAIN, *UNIFORM4_EF, *STREAM)
    play(run, until=2)
    (first, _, head, _) = (
        run.exchange.states(1)["residual"][name].clone() for name in run.parameters
    )
    assert first.any()
    assert not head.any()
    play(run, until=4)
    assert torch.equal(run.exchange.states(1)["residual"]["body.weight"], first)
    assert run.exchange.states(1)["residual"]["head.weight"].any()


def test_fragments_have_every_so_many_th_layer() -> None:
    gpt = [name for name, _ in GPT(width=8, layers=4).build(20).named_parameters()]
    parts = strided(gpt, 3)
    assert sorted(name for part in parts for name in part) == sorted(gpt)
    assert [list(layers(part)) for part in parts] == [
        ["embedding", "layers.1", "norm"],
        ["positions", "layers.2"],
        ["layers.0", "layers.3"],
    ]
    resnet = [name for name, _ in ResNet18(width=4).build(10).named_parameters()]
    blocks = [f"layer{stage}.{block}" for stage in range(1, 5) for block in range(2)]
    assert list(layers(resnet)) == ["conv1", "bn1", *blocks, "fc"]


def test_other_workers_go_on_from_the_mean_a_plain_run_from_shared_weights(tmp_path: Path) -> None:
    first = built(*PLAIN, *UNIFORM4_EF, *STREAM)
    play(first, folder=tmp_path)
    assert isinstance(first.local, Streaming)
    assert not first.local.under_way
    assert not all(map(torch.equal, *map(first.local.state_dict, range(2)))), "own weights"
    wide = built(
        *(*PLAIN, *UNIFORM4_EF, *STREAM, "launch.workers=4", "train.batch_size=4"),
        *("train.reshard=mean", "train.epochs=3"),
    )
    assert checkpoint.load(wide, tmp_path, None) == []
    means = [(a + b) / 2 for a, b in zip(*map(first.local.state_dict, range(2)), strict=True)]
    assert isinstance(wide.local, Streaming)
    for worker in range(4):
        assert all(map(torch.equal, wide.local.state_dict(worker), means))
    assert play(wide).finished
    for local_steps in 1, 4:
        plain = built(*PLAIN, *UNIFORM4_EF, f"train.local_steps={local_steps}", "train.epochs=3")
        checkpoint.load(plain, tmp_path, None)
        assert all(map(torch.equal, plain.module.parameters(), first.module.parameters()))
        assert play(plain).finished
        play(plain, folder=tmp_path / str(local_steps))
        again = built(*PLAIN, *UNIFORM4_EF, *STREAM, "train.epochs=4")
        checkpoint.load(again, tmp_path / str(local_steps), None)
        assert play(again).finished


def test_a_fragment_that_is_not_finite_drops_the_weights_of_all_workers() -> None:
    run = built(*PLAIN, *UNIFORM4_EF, *STREAM, "train.delay_steps=1", "train.on_nonfinite=skip")
    play(run, until=3)
    before = state_of(run)
    overflowing(run, 3, run.module.head.weight)
    play(run, until=5)
    assert run.progress.step == 5
    assert_same_but_for_workers(before, run)
    assert not any(run.local.state_dict(worker) for worker in range(2))
    assert not any(inner.state_dict()["state"] for inner in run.local.inner)
    assert run.progress.tally.skipped_steps == 2
    told = play(run)
    assert told.finished
    assert math.isfinite(told.records[-1]["train/loss"])


def test_a_fragment_dropped_at_the_end_of_an_epoch_is_not_awaited_in_the_next() -> None:
    """The round that ends after the next step has sent nothing."""
    run = built(*PLAIN, *UNIFORM4_EF, *STREAM, "train.delay_steps=1", "train.on_nonfinite=skip")
    overflowing(run, STEPS_PER_EPOCH - 1, run.module.head.weight)
    play(run, until=STEPS_PER_EPOCH)
    assert run.progress.tally.skipped_steps == 1
    play(run, until=STEPS_PER_EPOCH + 1)
    assert not run.local.under_way
    assert play(run).finished
