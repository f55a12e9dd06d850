"""Norms of an epoch's summed gradients: rank 0's own after a resume, without a gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import World
from tiny_run import PLAIN, SETTINGS, STEPS_PER_EPOCH, built, play, tiny

from dgc_repro import Accordion, AdaQS, EpochReport
from dgc_repro.exchange.sketch import BUCKETS
from dgc_repro.exchange.steps import Steps, square
from dgc_repro.launch.build import build_run
from dgc_repro.policy.interface import State, StepReport
from dgc_repro.train import checkpoint
from dgc_repro.train.loop import end_epoch, steps_left
from dgc_repro.train.run import Run
from dgc_repro.train.step import train_step

LOCAL = ("launch=local", "launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=60")
OWN = (*SETTINGS["accordion by own gradients"], *PLAIN)
ADAQS = ("compressor=uniform", "policy=adaqs", "policy.values=[8,4,2]", "wrap=[error_feedback]")


def listening(patch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Where Accordion will be told of gradients at the end of each epoch."""
    told: list[dict[str, float]] = []
    observe = Accordion.observe

    def listens(self: Accordion, state: State, report: EpochReport) -> State:
        told.append(dict(report.gradient_norms))
        return observe(self, state, report)

    patch.setattr(Accordion, "observe", listens)
    return told


def resumed(config: dict[str, Any], folder: Path, stop_after: int) -> Any:
    """A job of a rank: the norms that Accordion was told and the policy's last state, of a run that was not
    stopped in an epoch, and of one that was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(dist.get_rank()))
        told = listening(patch)
        whole, first, second = (build_run(config, torch.device("cpu")) for _ in range(3))
        play(whole)
        num_told = len(told)
        play(first, until=stop_after)
        checkpoint.save(first, folder, "a config")
        checkpoint.load(second, folder, "a config")
        play(second)
        return [(told[:num_told], whole.progress.policy), (told[num_told:], second.progress.policy)]


@pytest.mark.parametrize(
    ("given", "stop_after"), [(OWN, STEPS_PER_EPOCH + 2), ((*ADAQS, *PLAIN), STEPS_PER_EPOCH + 1)]
)
def test_what_a_policy_is_told_outlives_a_resume(
    given: tuple[str, ...], stop_after: int, two_workers: World, tmp_path: Path
) -> None:
    """A checkpoint has one set of rank 0's sums and of the last step's squares, which all ranks load: each
    may count once."""
    told = two_workers(resumed, tiny(*given, *LOCAL), tmp_path, stop_after)
    for whole, after in told:
        assert whole == after == told[0][0]
        norms, state = whole
        assert norms if given is OWN else state["steps"] > 0
        assert all(norm > 0 for of_epoch in norms for norm in of_epoch.values())


def test_adaqs_is_told_of_the_workers_own_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bits are sent, and neither number has their noise: the inner product of the two gradients, and
    the mean of their squares."""
    run = built(*ADAQS, *PLAIN, "policy.values=[2]")
    own: list[torch.Tensor] = []
    told: list[StepReport] = []
    opened = Steps.open

    def seeing(run: Run, index: int) -> str | None:
        own.append(torch.cat([p.grad.flatten() for p in run.module.parameters()]).double())
        return opened(run, index)

    def after_step(policy: AdaQS, state: State, report: StepReport) -> State:
        told.append(report)
        return state

    monkeypatch.setattr(Steps, "open", seeing)
    monkeypatch.setattr(AdaQS, "after_step", after_step)
    play(run)
    assert len(told) > 5
    for report, first, second in zip(told, own[::2], own[1::2], strict=False):
        squares = float(first.square().sum()), float(second.square().sum())
        assert report.own_square == pytest.approx(sum(squares) / 2)
        error = (squares[0] * squares[1] / BUCKETS) ** 0.5
        assert abs(report.signal_square - float(first @ second)) < 6 * error


@pytest.mark.parametrize("interval", [1, 2])
def test_norms_are_of_an_epochs_gradients(interval: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = built(*SETTINGS["accordion"], *PLAIN, "train.epochs=4", f"policy.interval={interval}")
    told, expected = listening(monkeypatch), []
    for _ in range(4):
        sums = {name: torch.zeros_like(p) for name, p in run.module.named_parameters()}
        for batches in steps_left(run):
            train_step(run, batches)
            for name, parameter in run.module.named_parameters():
                assert parameter.grad is not None
                sums[name] += parameter.grad
        end_epoch(run)
        expected.append({name: float(total.norm()) for name, total in sums.items()})
    assert len(told) == 4
    for heard, norms in zip(told, expected, strict=True):
        assert heard == pytest.approx(norms, rel=1e-5)


def test_a_parameter_without_a_gradient_counts_as_zeros() -> None:
    run = built(*SETTINGS["accordion"], *PLAIN)
    assert set(run.gradient_norms().values()) == {0.0}, "no step yet"
    parameters = list(run.module.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    parameters[0].grad = None
    rest = sum(parameter.numel() for parameter in parameters[1:])
    assert square(run.gradients().values()) == pytest.approx(rest)
    assert square([]) == 0.0
    for _ in range(2):
        run._add_mean()
    run.progress.epoch = 1
    norms = list(run.gradient_norms().values())
    assert norms == pytest.approx([0.0, *(2 * p.numel() ** 0.5 for p in parameters[1:])])
