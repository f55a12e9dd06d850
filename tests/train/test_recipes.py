"""Recipes for images and text at a tiny size: compressors and policies, windows, a run that is stopped."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from tiny_run import RECIPE, SETTINGS, assert_continues, built, configured, play

from dgc_repro.train.run import Run

SGD = ("optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0")
FITTING = dict.fromkeys(("dgc", "dgc clipped", "demo", "block momentum"), SGD)
"""Methods that apply momentum on the workers, in the place of Adam's."""
STEPS = 4  # 2 workers x 3 windows of 8 characters
SAMPLE = "A thing of beauty is a joy for ever: its loveliness increases; it will never pass.\n"

Recipe = Callable[..., tuple[str, ...]]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """The overrides of a recipe at a tiny size, on a text of this machine."""
    (tmp_path / "input.txt").write_text(SAMPLE * 20, encoding="utf-8")

    def overrides(name: str) -> tuple[str, ...]:
        model = {"gpt": ("model.layers=1", "model.heads=2"), "char_lstm": ("model.layers=2",)}
        reading = {"gpt": ("dataset.epoch_size=192",), "char_lstm": ()}
        return (
            *(
                f"experiment=recipe/{name}",
                "scale=recipe/text/small",
                "dataset=shakespeare",
                "launch.workers=2",
            ),
            *(f"dataset.root={tmp_path}", "dataset.validation=51", "dataset.test_size=53"),
            *("dataset.train_size=198", "dataset.bptt=8", "dataset.evaluation_columns=3"),
            *("model.width=8", "train.batch_size=3", *model[name], *reading[name]),
        )

    return overrides


IMAGES = (*RECIPE, "train.epochs=1", "dataset.train_size=64")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *product(("gpt", "images"), ("dense", "topk", "powersgd", "dgc", "onebit_adam", "gravac")),
        *(("gpt", "block momentum"), ("gpt", "shards")),
        *(("images", "demo"), ("images", "local steps")),
    ],
)
def test_a_recipe_trains_with_methods_and_policies(kind: str, name: str, recipe: Recipe) -> None:
    if kind == "images":
        run = built(*IMAGES, *SETTINGS[name])
    else:
        run = built(*recipe("gpt"), *SETTINGS[name], *FITTING.get(name, ()))
    told = play(run)
    assert told.finished
    assert len(told.losses) == (2 if kind == "images" else 2 * STEPS)
    assert run.world.ledger.payload_bytes > 0
    if kind == "gpt":
        assert told.records[-1]["train/loss"] < 5  # ln 27 = 3.3 knows nothing
    if name in ("dgc", "demo"):  # a recipe's momentum is set before the compressor's file is read
        (group, *_) = run.optimizer.param_groups
        assert (group["momentum"], group["nesterov"]) == (0, False)


@pytest.mark.parametrize(
    ("name", "stop_after"), [("topk", STEPS - 1), ("powersgd", STEPS + 2), ("gravac", STEPS + 2)]
)
def test_a_stopped_run_goes_on(name: str, stop_after: int, recipe: Recipe, tmp_path: Path) -> None:
    overrides = (*recipe("gpt"), *SETTINGS[name])
    whole = built(*overrides)
    assert_continues(overrides, stop_after, tmp_path / "run", whole, play(whole))


def read_by(run: Run, worker: int, epoch: int, start: int = 0) -> list[torch.Tensor]:
    batches = run.task.batches(epoch, 2, worker, start)
    return [inputs for batch in batches for inputs, _ in batch.micro_batches]


def test_each_worker_epoch_and_seed_reads_windows_of_its_own_and_resumes(recipe: Recipe) -> None:
    run, other = built(*recipe("gpt")), built(*recipe("gpt"), "seed=1")
    whole = torch.stack(read_by(run, 0, 0))
    assert whole.shape == (STEPS, 3, 8)
    assert torch.equal(torch.stack(read_by(run, 0, 0, start=2)), whole[2:])
    for reads in (read_by(run, 1, 0), read_by(run, 0, 1), read_by(other, 0, 0)):
        assert not torch.equal(torch.stack(reads), whole)


def test_an_lstm_carries_nothing_from_window_to_window(recipe: Recipe) -> None:
    run = built(*recipe("char_lstm"), "dataset.reading=windows", "dataset.epoch_size=192")
    assert play(run, until=2).losses
    assert run.progress.carried == [[()], [()]]


def test_one_matrix_for_embedding_and_decoder_is_sent_once(recipe: Recipe) -> None:
    run = built(*recipe("gpt"), *SETTINGS["dense"])
    play(run, until=1)
    width, characters = 8, run.splits.num_classes
    layer = 12 * width**2 + 2 * width
    assert run.world.ledger.payload_bytes == 4 * (characters * width + 64 * width + layer + width)


def test_the_momentum_that_moves_to_the_workers_is_the_recipes() -> None:
    config = configured("recipe=low", "scale=none", "compressor=dgc")
    plain = configured("recipe=low", "scale=none")["optimizer"]
    wrapper = config["wrapper"]["momentum_correction"]
    assert (wrapper["momentum"], wrapper["nesterov"]) == (plain["momentum"], plain["nesterov"])


def test_the_rates_are_those_of_the_summed_loss() -> None:
    """airbench: k = 1024 (1 + 1 / (1 - momentum)), rate 11.5 / k, weight decay 0.0153 batch / (k rate), for
    a sum over the batch. A mean over the batch has gradients `batch` times smaller."""
    for recipe in ("low", "air", "fashion"):
        config = configured(f"recipe={recipe}", "scale=none")
        optimizer, batch = config["optimizer"], 4 * config["train"]["batch_size"]
        k = 1024 * (1 + 1 / (1 - optimizer["momentum"]))
        rate = 11.5 / k
        decay = 0.0153 * batch / (k * rate)
        base = optimizer["lr"] * batch / optimizer["reference_batch"]
        assert base == pytest.approx(rate * batch, rel=1e-4)
        assert optimizer["weight_decay"] == pytest.approx(decay / batch, rel=1e-4)
