"""Local steps (DiLoCo) against the paper's algorithm written by hand, and what a run does around its rounds.

Real processes against simulated workers: test_worlds.py. Refusals: tests/launch/mistakes.txt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from muon_reference import Reference, in_float32
from tiny_run import (
    PLAIN,
    STEPS_PER_EPOCH,
    TEXT,
    UNIFORM4_EF,
    assert_same_state,
    built,
    play,
    state_of,
)
from torch import Tensor, nn

from dgc_repro import Muon, UserError
from dgc_repro.nests import tensors_of
from dgc_repro.optimizer.muon import matrices
from dgc_repro.sink import console
from dgc_repro.train import checkpoint
from dgc_repro.train.loop import train
from dgc_repro.train.run import Run

DENSE = ("compressor=dense", "wrap=[]")
SAME_DATA = (*PLAIN, "dataset.augment=none", "schedule=constant")
ROUNDS = (*SAME_DATA, "train.local_steps=3")  # of 3 and 1 steps: 4 steps an epoch, 2 epochs
LOCAL_SGD = ("train.outer_lr=1", "train.outer_momentum=0")
POISON = "+model={{_target_:odd_models.Plain,poisoned_steps:{},poisoned_rank:1}}"
NESTEROV = (0.7, 0.9)
RESNET = ("model=resnet18", "model.width=4")
LENGTHS = (3, 1, 3, 1)

Outer = Callable[[list[Tensor], list[Tensor]], list[Tensor]]
Inner = Callable[[Tensor, Tensor], Tensor]
"""One step of one tensor of one worker: its weight and gradient to its next weight."""


def nesterov(rate: float, momentum: float) -> Outer:
    """The paper's outer optimizer: v = m v + Delta, theta - rate (Delta + m v)."""
    velocity: list[Tensor] = []

    def step(theta: list[Tensor], delta: list[Tensor]) -> list[Tensor]:
        if not velocity:
            velocity.extend(torch.zeros_like(d) for d in delta)
        for v, d in zip(velocity, delta, strict=True):
            v.mul_(momentum).add_(d)
        moved = zip(theta, delta, velocity, strict=True)
        return [t - rate * (d + momentum * v) for t, d, v in moved]

    return step


def sgd(_: nn.Parameter, rate: float) -> Inner:
    """The inner optimizer of the tiny runs."""
    velocity: list[Tensor] = []

    def step(weight: Tensor, gradient: Tensor) -> Tensor:
        if not velocity:
            velocity.append(torch.zeros_like(weight))
        return weight - rate * velocity[0].mul_(0.9).add_(gradient + 5e-4 * weight)

    return step


def local_step(module: nn.Module, weights: list[Tensor], batch: Any, inner: list[Inner]) -> Any:
    """The weights of a worker after one step by hand."""
    ((inputs, targets),) = batch.micro_batches
    for p, w in zip(module.parameters(), weights, strict=True):
        p.data.copy_(w)
    loss = nn.functional.cross_entropy(module(inputs.double()), targets)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return [step(w, g) for step, w, g in zip(inner, weights, gradients, strict=True)]


def assert_near(run: Run, theta: list[Tensor], before: list[Tensor]) -> None:
    """The weights are those in float64, but for sums in float32 of up to 192 products at each step."""
    for now, then, old in zip(run.module.parameters(), theta, before, strict=True):
        scale = float((then - old).abs().max())
        torch.testing.assert_close(now.detach().double(), then, rtol=0, atol=1e-4 * scale)


def workers_of_each_round(
    run: Run, outer: Outer, inner: Callable[[nn.Parameter, float], Inner] = sgd
) -> list[tuple[list[list[Tensor]], list[Tensor]]]:
    """Algorithm 1 by hand in float64, on the batches of a run that has not begun: the weights of both
    workers at the end of each round, and theta after it."""
    theta = [p.detach().double() for p in run.module.parameters()]
    module = deepcopy(run.module).double()
    steps = [[inner(p, run.base_lr) for p in run.module.parameters()] for _ in range(2)]
    told = []
    for number, length in enumerate(LENGTHS):
        epoch, first = divmod(number, 2)
        ends = []
        for worker in range(2):
            own = [t.clone() for t in theta]
            batches = run.task.batches(epoch, 2, worker, 3 * first)
            for _ in range(length):
                own = local_step(module, own, next(batches), steps[worker])
            ends.append(own)
        delta = [t - (a + b) / 2 for t, a, b in zip(theta, *ends, strict=True)]
        theta = outer(theta, delta)
        told.append((ends, theta))
    return told


@pytest.mark.parametrize("outer", [NESTEROV, (1.0, 0.0), (0.4, 0.5)], ids=str)
def test_four_rounds_are_those_of_algorithm_1(outer: tuple[float, float]) -> None:
    given = (f"train.outer_lr={outer[0]}", f"train.outer_momentum={outer[1]}")
    expected = workers_of_each_round(built(*ROUNDS, *DENSE), nesterov(*outer))
    run, step = built(*ROUNDS, *DENSE, *given), 0
    before = [p.detach().clone() for p in run.module.parameters()]
    for length, (_, theta) in zip(LENGTHS, expected, strict=True):
        step += length
        play(run, until=step)
        assert_near(run, theta, before)


def test_muloco_is_muon_within_a_round() -> None:
    run = built(*ROUNDS, *DENSE, "optimizer=muon", "train.outer_momentum=0.6")
    known, of = matrices(run.module), Muon()

    def muon(parameter: nn.Parameter, rate: float) -> Inner:
        of_tensor = Reference(of, parameter.detach().double().numpy(), parameter in known)

        def step(weight: Tensor, gradient: Tensor) -> Tensor:
            of_tensor.weight = weight.numpy()
            of_tensor.step(gradient.numpy(), rate)
            return torch.from_numpy(of_tensor.weight)

        return step

    before = [p.detach().double() for p in run.module.parameters()]
    (_, theta) = workers_of_each_round(run, nesterov(0.7, 0.6), muon)[-1]
    with in_float32():
        play(run)
    assert_near(run, theta, before)


def test_a_run_that_is_asked_to_stop_within_a_round_ends_it_first() -> None:
    run = built(*ROUNDS, *DENSE)
    play(run, until=2)
    assert run.progress.step == 3


def test_a_worker_learns_from_its_own_batch_so_that_its_rate_is_of_that() -> None:
    """`reference_batch`: images of one step of the optimizer."""
    assert built(*ROUNDS).base_lr == 0.1 * 16 / 128
    assert built(*SAME_DATA).base_lr == 0.1 * 32 / 128
    told = play(built(*PLAIN, "train.local_steps=3", "schedule=cosine"))
    cosine = 0.5 * (1 + math.cos(math.pi * (2 - 1 / STEPS_PER_EPOCH) / 2))
    assert told.records[-1]["lr"] == pytest.approx(0.1 * 16 / 128 * cosine)


def test_the_payload_travels_once_a_round() -> None:
    run = built(*ROUNDS, *DENSE)
    play(run)
    values = sum(p.numel() for p in run.module.parameters())
    told = run.world.ledger.metrics()
    assert told["comm/payload_bytes"] == len(LENGTHS) * 4 * values
    assert run.exchange.step == len(LENGTHS)
    assert run.world.ledger.calls["signal"] == {"allreduce": len(LENGTHS)}
    assert run.progress.last_record["time/wait_ms"] > 0  # measured at the end of each round


@pytest.mark.parametrize("compressor", ["topk", "powersgd"])
def test_error_feedback_keeps_what_is_not_sent_of_an_outer_gradient(compressor: str) -> None:
    """One round: the mean of (outer gradient - residual) is how far theta has moved at a rate of 1."""
    given = (*ROUNDS, *LOCAL_SGD, f"compressor={compressor}", "wrap=[error_feedback]")
    (ends, _), *_ = workers_of_each_round(built(*ROUNDS, *DENSE), nesterov(1, 0))
    run = built(*given)
    before = [p.detach().clone() for p in run.module.parameters()]
    play(run, until=3)
    for place, name in enumerate(run.parameters):
        own = [before[place] - worker[place] for worker in ends]
        kept = [run.exchange.states(worker)["residual"][name] for worker in range(run.world.local)]
        sent = (own[0] - kept[0] + own[1] - kept[1]) / 2
        moved = (before[place] - run.parameters[name].detach()).double()
        assert torch.allclose(moved, sent.double(), rtol=1e-3, atol=1e-6)
        if "weight" in name:
            assert all(r.count_nonzero() for r in kept)


def test_local_steps_beyond_an_epoch_are_refused_with_its_number_of_steps() -> None:
    built(*PLAIN, f"train.local_steps={STEPS_PER_EPOCH}")
    with pytest.raises(UserError, match="^train.local_steps: at most the 43 steps of an epoch"):
        built(*PLAIN, "dataset.train_size=null", "train.local_steps=44")


def test_a_run_that_is_killed_within_a_round_repeats_it_exactly(tmp_path: Path) -> None:
    """Checkpoints are written between rounds only, so a process that dies leaves the last one."""
    given = (*PLAIN, *UNIFORM4_EF, "train.local_steps=3", "train.epochs=3")
    whole, dies, again = built(*given), built(*given), built(*given)
    play(whole)
    turn_of = dies.workers.turn_of

    def killed(index: int) -> Any:
        if dies.progress.step == 6:  # within the second round of the second epoch
            raise InterruptedError
        return turn_of(index)

    dies.workers.turn_of = killed  # type: ignore[method-assign]
    with pytest.raises(InterruptedError):
        play(dies, folder=tmp_path)
    assert checkpoint.load(again, tmp_path, "a config") == []
    assert again.progress.step == STEPS_PER_EPOCH
    play(again)
    assert_same_state(whole, again)


NO_STATE = "train.resume_from: only one of the two runs has local steps"


def test_local_steps_go_on_from_another_runs_weights_and_with_other_workers(tmp_path: Path) -> None:
    play(built(*PLAIN, *UNIFORM4_EF, "train.epochs=1"), folder=tmp_path / "plain")
    run = built(*PLAIN, *UNIFORM4_EF, "train.local_steps=2")
    assert_only_weights(run, tmp_path / "plain")
    assert run.optimizer.param_groups[0]["lr"] == 0.7
    assert play(run, folder=tmp_path / "local").finished
    assert_only_weights(built(*PLAIN, *UNIFORM4_EF), tmp_path / "local")
    wide = built(
        *(*PLAIN, *UNIFORM4_EF, "train.local_steps=2", "launch.workers=4", "train.batch_size=8"),
        *("train.reshard=mean", "train.epochs=3"),
    )
    assert checkpoint.load(wide, tmp_path / "local", None) == []
    ours = [tensors_of(inner.state_dict()) for inner in run.local.inner]
    theirs = [tensors_of(inner.state_dict()) for inner in wide.local.inner]
    for tensors in theirs:
        for now, one, two in zip(tensors, *ours, strict=True):
            assert torch.equal(now, torch.stack([one, two]).mean(0))
    assert len({tensors[0].data_ptr() for tensors in theirs}) == 4
    assert play(wide).finished


def assert_only_weights(run: Run, folder: Path) -> None:
    """``run`` begins with the weights of a run with local steps where it has none, or the reverse."""
    before = [p.detach().clone() for p in run.module.parameters()]
    (note,) = checkpoint.load(run, folder, None)
    assert note.startswith(NO_STATE)
    assert not any(map(torch.equal, before, run.module.parameters()))
    assert not any(
        bool(t.any()) for t in tensors_of([*map(run.exchange.states, range(run.world.local))])
    )
    assert not tensors_of(run.optimizer.state_dict())


def test_workers_that_skipped_other_steps_have_a_mean_or_begin_anew(tmp_path: Path) -> None:
    skip = (*UNIFORM4_EF, "train.local_steps=2", "train.on_nonfinite=skip", "optimizer=adam")
    wide = (*PLAIN, *skip, "launch.workers=4", "train.batch_size=8", "train.reshard=mean")
    first = POISON.replace("poisoned_rank:1", "poisoned_rank:0")
    for poisoned, steps in ("[0]", {4}), ("[0,1,2,3]", set()):
        folder = tmp_path / poisoned
        play(built("~model", first.format(poisoned), *skip, "train.epochs=1"), folder=folder)
        run = built(*wide)
        notes = checkpoint.load(run, folder, None)
        for inner in run.local.inner:
            assert {state["step"] for state in inner.state_dict()["state"].values()} == steps
        if steps:
            assert notes == []
        else:
            (note,) = notes
            assert note.startswith("train.reshard: the optimizers of the workers begin anew")
        assert play(run).finished


# A gradient that is not finite.


def test_a_gradient_that_is_not_finite_is_named_when_the_round_ends() -> None:
    run = built("~model", POISON.format("[1]"), *UNIFORM4_EF, "train.local_steps=3")
    with pytest.raises(UserError) as caught:
        play(run)
    assert run.progress.step == 2
    text = str(caught.value)
    assert text.startswith("train.on_nonfinite: the gradient is not finite at step 3 ")
    assert "(rank 1: head.weight in local step 2)" in text


def test_skip_leaves_the_local_step_out_on_that_worker_alone() -> None:
    skip = "train.on_nonfinite=skip"
    given = (*UNIFORM4_EF, "train.local_steps=3", skip)
    run = built("~model", POISON.format("[1,2]"), *given)
    told = play(run)
    assert told.finished
    assert [record["train/skipped_steps"] for record in told.records] == [2 / 2, 0]
    sound = play(built("~model", POISON.format("[]"), *given))
    assert told.records[0]["train/loss"] != sound.records[0]["train/loss"]
    assert told.records[0]["comm/payload_bytes"] == sound.records[0]["comm/payload_bytes"]


def assert_same_but_for_workers(before: dict[str, list[Tensor]], run: Run) -> None:
    """Residuals, the outer optimizer's state, what is carried on, and the model are as before."""
    now = state_of(run)
    for name in ("compressor", "optimizer", "carried", "model"):
        assert all(map(torch.equal, before[name], now[name])), name


def overflowing(run: Run, at: int, parameter: Tensor) -> None:
    """Have the weights of worker 1 overflow in a local step."""
    step = run.local.step

    def overflows(worker: int, learning_rate: float) -> None:
        step(worker, learning_rate)
        if worker == 1 and run.progress.step == at:
            parameter.data.fill_(math.inf)

    run.local.step = overflows  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "more", [RESNET, (*TEXT, "optimizer.momentum=0.9")], ids=["batch norm", "carried state"]
)
def test_a_round_that_is_not_finite_leaves_nothing_of_itself(more: tuple[str, ...]) -> None:
    run = built(*more, *UNIFORM4_EF, "train.local_steps=2", "train.on_nonfinite=skip")
    play(run, until=2)
    before = state_of(run)
    assert all(tensors_of(inner.state_dict()) for inner in run.local.inner)
    overflowing(run, 3, next(run.module.parameters()))
    play(run, until=4)
    assert_same_but_for_workers(before, run)
    assert not any(inner.state_dict()["state"] for inner in run.local.inner)
    assert run.progress.tally.skipped_steps == 2


@pytest.mark.parametrize(
    ("overrides", "unknown"),
    [(ROUNDS, [2, 2]), ((*TEXT, "train.local_steps=4"), [3, 3])],
    ids=["images", "text"],
)
def test_the_progress_line_has_no_nan(overrides: tuple[str, ...], unknown: list[int]) -> None:
    """``unknown``: steps of each epoch before the end of its first round."""
    run = built(*overrides)
    lines: list[str] = []
    train(run, lambda metrics: lines.append(console.now(metrics)), lambda epoch: None, lambda: None)
    assert not any("nan" in line for line in lines)
    has_loss = [line.startswith("loss ") for line in lines]
    assert has_loss == [i >= first for first in unknown for i in range(4)]
