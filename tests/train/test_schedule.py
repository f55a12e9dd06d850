"""Learning rates: what each schedule gives, and how the optimizer scales them."""

from __future__ import annotations

import math

import pytest
from tiny_run import PLAIN, STEPS_PER_EPOCH, TEXT, Story, built, play, without_times

from dgc_repro.policy.interface import EpochReport, Policy, State
from dgc_repro.train.evaluate import evaluate
from dgc_repro.train.run import Run
from dgc_repro.train.schedule import Constant, Cosine, Schedule, Step, Triangular


@pytest.mark.parametrize(
    ("schedule", "epoch", "factor"),
    [
        (Constant(), 9.5, 1),
        (Cosine(), 5, 0.5),
        (Cosine(), 2.5, 0.5 + math.sqrt(0.125)),
        (Cosine(last=0.1), 5, 0.55),
        (Cosine(last=0.1), 10, 0.1),
        (Step((3, 6)), 2.99, 1),
        (Step((3, 6)), 3, 0.1),
        (Step((3, 6), gamma=0.5), 7, 0.25),
        (Step(), 7, 1),
        (Triangular(), 0, 0.2),
        (Triangular(), 1.15, 0.6),
        (Triangular(), 6.15, 0.535),
        (Triangular(), 10, 0.07),
        (Triangular(first=0, peak=0.5, last=0), 5, 1),
    ],
)
def test_a_schedule_gives_its_formula(schedule: Schedule, epoch: float, factor: float) -> None:
    # 1e-12: cos is rounded once in float64.
    assert schedule.factor(epoch, 10) == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize("make", [Constant, Cosine, Step, Triangular])
def test_a_warm_up_rises_linearly_from_zero_and_then_leaves_the_schedule_alone(
    make: type[Constant] | type[Cosine] | type[Step] | type[Triangular],
) -> None:
    warmed, plain = make(warmup_epochs=4), make()
    for epoch in (0, 1, 2, 3.5):
        assert warmed.factor(epoch, 10) == pytest.approx(plain.factor(epoch, 10) * epoch / 4)
    for epoch in (4, 7, 10):
        assert warmed.factor(epoch, 10) == plain.factor(epoch, 10)


def played(*overrides: str) -> tuple[Run, Story, list[float]]:
    """A run, its story, and the learning rate of each step over that of the config."""
    run, rates = built(*PLAIN, *overrides), []
    step = run.optimizer.step
    run.optimizer.step = lambda: rates.append(run.optimizer.param_groups[0]["lr"]) or step()
    told = play(run)
    base = 0.1 * 32 / 128  # two workers' batches of 16, lr for 128 images
    assert told.records[-1]["lr"] == rates[-1]
    return run, told, [rate / base for rate in rates]


def test_a_run_sets_the_learning_rate_of_each_step_from_the_schedule() -> None:
    _, _, rates = played("schedule=cosine", "schedule.warmup_epochs=1")
    epochs = [number / STEPS_PER_EPOCH for number in range(2 * STEPS_PER_EPOCH)]
    expected = [min(1, e) * 0.5 * (1 + math.cos(math.pi * e / 2)) for e in epochs]
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("milestone", [1.0, 1.5])
def test_a_policy_is_told_of_a_decay(milestone: float, monkeypatch: pytest.MonkeyPatch) -> None:
    run = built(
        *PLAIN, "schedule=step", f"schedule.milestones_epochs=[{milestone}]", "train.epochs=3"
    )
    told = []
    observe = type(run.policy).observe

    def listening(self: Policy, state: State, report: EpochReport) -> State:
        told.append([rate / run.base_lr for rate in report.learning_rate])
        return observe(self, state, report)

    monkeypatch.setattr(type(run.policy), "observe", listening)
    play(run)
    assert told == [pytest.approx(rates) for rates in ([1, 0.1], [0.1, 0.1], [0.1, 0.1])]


@pytest.mark.parametrize(("share", "steps"), [(1.0, 8), (0.6, 5), (0.9, 7), (0.5, 4), (0.01, 1)])
def test_a_share_of_the_steps_runs_through_the_whole_schedule(share: float, steps: int) -> None:
    """train.steps_share: 8 steps, of which round(8 share) are trained; the cosine and its warm-up end with
    them, and the last epoch is cut short and evaluated."""
    given = ("schedule=cosine", "schedule.warmup_epochs=0.5", f"train.steps_share={share}")
    run, told, rates = played(*given)
    done = [number / steps for number in range(steps)]  # of the whole schedule
    expected = [min(1, 4 * e) * 0.5 * (1 + math.cos(math.pi * e)) for e in done]
    assert rates == pytest.approx(expected)
    assert told.records[-1]["step"] == steps
    assert [record["epoch"] for record in told.records] == [1, 2][: math.ceil(steps / 4)]
    assert run.num_epochs == len(told.records)
    assert ["fit/loss" in record for record in told.records[:-1]] == [False] * (run.num_epochs - 1)
    assert "fit/loss" in told.records[-1]


def test_a_shortened_run_learns_from_the_first_batches_of_a_whole_one() -> None:
    """With a constant rate it is a whole run that was stopped, bit for bit."""
    first, second = (
        without_times(play(built(*PLAIN, "schedule=constant", f"train.steps_share={s}")).records[0])
        for s in (1.0, 0.5)
    )
    assert {key: second[key] for key in first} == first


def test_the_last_record_has_the_loss_on_training_data() -> None:
    """Of the final weights, on images that are not augmented; it costs no byte that is counted before it."""
    run = built("model.width=4")
    told = play(run)
    score = evaluate(run, run.splits.train[:10_000])
    assert told.records[-1]["fit/loss"] == score.mean_loss
    assert told.records[-1]["fit/accuracy_percent"] == score.accuracy_percent
    assert score.count == len(run.splits.train) == 128
    words = built(*TEXT)
    assert play(words).records[-1]["fit/perplexity"] > 1
