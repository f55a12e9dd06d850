"""A recipe under compressors, wrappers and policies of the table of settings."""

from __future__ import annotations

import pytest
from tiny_run import RECIPE, SETTINGS, built, configured, play, tiny

FEW = ("train.epochs=1", "dataset.train_size=64")


@pytest.mark.parametrize(
    "name", ["dense", "topk", "powersgd", "dgc", "demo", "onebit_adam", "gravac", "local steps"]
)
def test_a_recipe_trains_with_compressors_and_policies(name: str) -> None:
    run = built(*RECIPE, *SETTINGS[name], *FEW)
    told = play(run)
    assert told.finished
    assert run.progress.step == 2
    assert run.world.ledger.payload_bytes > 0


@pytest.mark.parametrize("name", ["dgc", "demo"])
def test_a_method_with_momentum_of_its_own_leaves_none_to_a_recipes_optimizer(name: str) -> None:
    """The recipe's momentum is set before the compressor's file is read."""
    config = tiny(*RECIPE, *SETTINGS[name])
    assert config["optimizer"]["momentum"] == 0
    (group, *_) = built(*RECIPE, *SETTINGS[name]).optimizer.param_groups
    assert (group["momentum"], group["nesterov"]) == (0, False)


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
