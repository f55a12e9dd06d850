"""``reproduce <artifact> plan=true``: counts that are the run's own, what fits, which runs decide a claim."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import PLAIN, TEXT, TINY, UNIFORM4_EF, build, configured, tiny
from torch import nn

from dgc_repro.dataset.descriptions import Descriptions
from dgc_repro.dataset.digits import Digits
from dgc_repro.dataset.images import Splits
from dgc_repro.dataset.shakespeare import Shakespeare
from dgc_repro.errors import UserError
from dgc_repro.launch.reproduce import reproduce
from dgc_repro.launch.reproduction import prepared
from dgc_repro.launch.settings import component
from dgc_repro.model.lstm import LSTM
from dgc_repro.nests import tensors_of
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Relative
from dgc_repro.predict import counted as timing
from dgc_repro.predict import plan
from dgc_repro.predict.counted import counted, data_of
from dgc_repro.predict.modelled import GPUS
from dgc_repro.predict.operations import operations_of
from dgc_repro.predict.plan import rows_of

TABLE1 = ("dynamic/table1", "scale=paper", "plan=true")


@pytest.fixture(autouse=True)
def nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "dgc_repro.launch.reproduce.run_config", lambda *_: pytest.fail("a run was trained")
    )


def hours(printed: str, device: str) -> tuple[float, float]:
    """The hours of a device's line in the table."""
    found = re.search(rf"^ *{device} +([\d.]+) h +([\d.]+) h ", printed, re.M)
    assert found is not None, printed
    return float(found[1]), float(found[2])


@pytest.mark.parametrize(("device", "least"), [("t4", 11), ("v100", 6)])
def test_table_1_takes_hours_of_one_card(
    device: str, least: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce([*TABLE1, f"device={device}"])
    printed = capsys.readouterr().out
    assert "dynamic/table1 at scale paper: 15 runs, 0 of them finished" in printed
    low, high = hours(printed, device)
    # 15 runs of 70 epochs of 45,000 images, 3.3 Gflop an image, at half of the card's float32 rate.
    assert least <= low < 1.25 * least
    assert low < high < 4 * low
    assert "claims 2, 5 (none, dynamic): 6 runs, " in printed
    # One GPU simulates the workers, which have no times of their own.
    assert "claims 1, 1b, 1c, 3, 6 (none, static8, dynamic): 9 runs, " in printed
    assert "needs a GPU for each worker: 4 (times" in printed
    assert not (tmp_path / "runs").exists()


def test_without_a_device_there_is_a_line_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed = []

    def seconds(config: dict[str, Any], clock: object) -> float:
        timed.append(config["experiment"]["row"])
        return 0.5

    monkeypatch.setattr(timing, "_step_seconds", seconds)
    reproduce([*TABLE1, "launch.device=cpu"])
    printed = capsys.readouterr().out
    lines = re.findall(r"^ *(cpu|t4|v100|a100|h100) ", printed, re.M)
    assert lines == ["cpu", *GPUS]
    assert timed == ["none", "static8", "dynamic", "static8_ef", "dynamic_ef"]  # once a row
    low, high = hours(printed, "cpu")
    assert high / low == pytest.approx(plan.EITHER_WAY**2, rel=0.01)
    # Two ranks side by side on two cores and more: 15 runs of 49,210 steps, evaluations at a third.
    turns = 1 if timing.environment.available_cores() >= 2 else 2
    expected = 15 * 49_210 * 0.5 * turns * (1 + 15_000 / 44_992 / 3) / 3600
    assert low * plan.EITHER_WAY == pytest.approx(expected, rel=0.01)


def test_what_does_not_fit_is_refused_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """32 simulated workers of VGG16: the residuals alone are 35 GB."""
    whole = prepared(["gravac/table2", "scale=paper", "seed=0"])
    of_vgg16 = [job for job in whole.jobs if job.row.startswith("vgg16.")]
    asked = replace(whole, jobs=of_vgg16[-3:])
    with pytest.raises(UserError) as error:
        plan.show(asked, "t4")
    assert re.match(
        r"launch\.workers: vgg16\.\S+ needs 44 GB, a t4 has 16: 32 simulated workers keep 0\.55 GB of "
        r"compressor state each; use fewer workers",
        str(error.value),
    )
    assert "44.2 GB: too much" in capsys.readouterr().out
    plan.show(asked, "h100")
    assert "too much" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("dynamic/table1 plan=true device=rtx", "device: one of t4, v100, a100, h100, cpu"),
        ("dynamic/table1 device=t4", "device: needs plan=true; the runs"),
        ("lecture/allreduce plan=true", "plan: lecture/allreduce trains nothing"),
    ],
)
def test_mistakes_are_one_line(given: str, says: str) -> None:
    with pytest.raises(UserError, match=f"^{says}"):
        reproduce(given.split())


@pytest.mark.parametrize(
    "overrides",
    [
        UNIFORM4_EF,
        (*PLAIN, *UNIFORM4_EF, "train.batch_size=8", "train.accumulate=2"),
        (*TEXT, *UNIFORM4_EF),
        ("compressor=powersgd", "train.epochs=3", "launch.workers=4", "train.batch_size=8"),
    ],
)
def test_counts_are_those_of_the_run(overrides: tuple[str, ...]) -> None:
    config = tiny(*overrides)
    run, counts = build(config), counted(config)
    epochs = config["train"]["epochs"]
    assert counts.steps == run.steps_per_epoch * epochs
    assert counts.parameters == sum(p.numel() for p in run.module.parameters())
    assert counts.states == sum(t.nbytes for t in tensors_of(run.exchange.states(0)))
    tokens = config["dataset"].get("bptt", 1)
    evaluated = len(run.splits.validation) + len(run.splits.test)
    trained = run.steps_per_epoch * run.settings.step_size * counts.workers * tokens
    assert counts.evaluations == pytest.approx(evaluated / trained)


def test_a_recurrent_layer_is_one_operation_of_a_gpu() -> None:
    with torch.device("meta"):
        short, long = (
            operations_of(LSTM(width=4).build(7), (2, length), words=True) for length in (3, 30)
        )
    assert 10 * short.floating_point < long.floating_point < 11 * short.floating_point
    assert long.dispatched < 2 * short.dispatched  # a loop over 30 places has ten times as many


def test_operations_of_two_layers_are_those_by_hand() -> None:
    with torch.device("meta"):
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    counts = operations_of(net, (7, 3, 2, 2), words=False)
    first, second = 2 * 7 * 12 * 5, 2 * 7 * 5 * 3
    assert counts.floating_point == 2 * first + 3 * second  # the images need no gradient
    assert counts.kept_bytes == 4 * (7 * 12 + 7 * 5)  # the inputs of both layers


@pytest.mark.parametrize("name", ["cifar10", "ptb", "shakespeare"])
def test_data_that_are_not_here_have_the_sizes_that_they_have(name: str, data_root: Path) -> None:
    more = ["dataset.train_part=valid"] if name == "ptb" else []
    words = ["model=lstm"] if name != "cifar10" else []
    given = [f"dataset={name}", f"dataset.root={data_root / name}", *more, *words]
    config = configured("scale=none", "train.epochs=1", *given)
    known, data = data_of(config), component(config["dataset"], "dataset").load()
    evaluated = len(data.validation) + len(data.test)
    # A tenth of the lines of PTB is not quite a tenth of its words.
    tolerance = 0.02 if name == "ptb" else 0
    assert known.trained == pytest.approx(len(data.train), rel=tolerance)
    assert known.evaluated == pytest.approx(evaluated, rel=tolerance)
    assert known.classes == pytest.approx(data.num_classes, rel=tolerance)
    shape = tuple(data.train.images.shape[1:]) if isinstance(data, Splits) else (data.bptt,)
    assert known.shape == shape


@pytest.mark.parametrize(
    "overrides",
    [
        UNIFORM4_EF,
        (*TEXT, *UNIFORM4_EF),
        ("recipe=gpt", "scale=none", "train.epochs=1"),
        ("wrap=[block_momentum]", "train.local_steps=8", "dataset.train_size=256"),
    ],
)
def test_steps_are_timed_without_the_data_set(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = () if overrides[0].startswith("recipe") else TINY
    config = configured(*base, "launch.device=cpu", *overrides)
    data = data_of(config)
    for dataset in (Digits, Descriptions, Shakespeare):
        monkeypatch.setattr(dataset, "load", lambda self: pytest.fail("data were read"))
    steps: list[Any] = []
    monkeypatch.setattr(timing, "train_step", lambda run, batches: steps.append(run.splits))
    assert timing.hours_here(config) > 0
    assert len(steps) == timing.WARMUP_STEPS + timing.TIMED_STEPS
    assert steps[0].num_classes == data.classes


def test_what_does_not_fit_into_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.environment, "available_bytes", lambda: 1000)
    says = r"^launch\.workers: 2 workers keep .* available\) with weights"
    with pytest.raises(UserError, match=says):
        timing.hours_here(tiny(*UNIFORM4_EF))


def test_a_claim_needs_the_rows_that_its_numbers_are_relative_to() -> None:
    checks, premises = (Check("share", "a", "b"),), (Check("loss", "c"),)
    claim = Claim("1", "a is less.", "Table", checks, premises=premises)
    assert rows_of(claim, {"share": Relative("bytes", "dense")}) == ("a", "b", "dense", "c")


def test_finished_and_begun_runs_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = prepared(["dynamic/table1", "scale=paper"])
    rows = {plan.run_folder(job.config): (job.row, job.config["seed"]) for job in asked.jobs}
    done = {("none", 0), ("none", 1), ("none", 2), ("dynamic", 0)}
    monkeypatch.setattr(plan, "is_done", lambda folder: rows[folder] in done)
    step = lambda folder: 7 if rows[folder] == ("dynamic", 1) else None  # noqa: E731
    monkeypatch.setattr(plan, "last_checkpoint", step)
    reproduce([*TABLE1, "device=t4"])
    printed = capsys.readouterr().out
    assert "15 runs, 4 of them finished, 1 more begun" in printed
    assert "claims 2, 5 (none, dynamic): 2 runs, " in printed
    all_15 = 12.2
    assert hours(printed, "t4")[0] == pytest.approx(all_15 * 11 / 15, abs=0.1)
