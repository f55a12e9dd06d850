"""The two junctions on real DDP, and `attach`: the same training, wherever the exchange happens."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from jobs import Broken, Script, refusal, train, train_differently
from laws import same, same_bits
from processes import World
from samples import Fragile, LowRank, Threshold

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.policy.fixed import Fixed

JUNCTIONS = ["after_backward", "per_bucket"]
EF4 = ErrorFeedback(Uniform(4))
EF4_RANDOM = ErrorFeedback(Uniform(4, "stochastic", 50))
STOCK = Script(None)


def parameters(world: World, script: Script) -> dict[str, torch.Tensor]:
    """The trained parameters, which all ranks must have alike."""
    results = world(train, script)
    for one in results:
        assert one["message"] in ("", "nothing"), one["message"]
        assert same(one["parameters"], results[0]["parameters"]), "replicas drift"
    trained: dict[str, torch.Tensor] = results[0]["parameters"]
    return trained


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("junction", JUNCTIONS)
def test_dense_attached_is_stock_ddp_bit_for_bit(
    two_workers: World, junction: str, view: bool
) -> None:
    stock = parameters(two_workers, Script(None, view=view))
    assert same(parameters(two_workers, Script(Dense(), junction, view=view)), stock)
    assert not same(parameters(two_workers, Script(None, steps=2, view=view)), stock)


def test_dense_for_the_whole_model_is_stock_ddp_too(two_workers: World) -> None:
    assert same(
        parameters(two_workers, Script(Dense(), unit="model")), parameters(two_workers, STOCK)
    )


@pytest.mark.parametrize(
    "compressor", [EF4, EF4_RANDOM, ErrorFeedback(PerLayer(Uniform(6)))], ids=str
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_both_junctions_train_alike_bit_for_bit(
    two_workers: World, compressor: Any, channels_last: bool
) -> None:
    after, overlapped = (
        two_workers(train, Script(compressor, junction, channels_last=channels_last))
        for junction in JUNCTIONS
    )
    for one, other in zip(after, overlapped, strict=True):
        assert same(one["parameters"], other["parameters"])
        assert same(one["state"]["exchange"], other["state"]["exchange"])
        assert len(other["buckets"]) > 3, "one bucket a step shows nothing"
    assert not same(after[0]["state"]["exchange"], after[1]["state"]["exchange"])


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    "compressor", [LowRank(), Threshold(0.01), Ladder((LowRank(), EF4))], ids=str
)
def test_buckets_that_ask_more_than_once_begin_their_collectives_in_one_order(
    two_workers: World, compressor: Any, check: bool
) -> None:
    settings = {"check": check}
    if isinstance(compressor, Ladder):
        settings["policy"] = Fixed("any", (1,))
    after, overlapped = (
        parameters(two_workers, Script(compressor, junction, attach_settings=settings))
        for junction in JUNCTIONS
    )
    assert same(after, overlapped)


@pytest.mark.parametrize("compressor", [EF4, LowRank()], ids=str)
def test_buckets_that_land_during_backward_are_decompressed_then(
    two_workers: World, compressor: Any
) -> None:
    after = two_workers(train, Script(compressor))
    slow = two_workers(train, Script(compressor, "per_bucket", pause_seconds=0.2))
    for one, other in zip(after, slow, strict=True):
        assert same(one["parameters"], other["parameters"])
        assert len(other["early"]) >= 3, "nothing landed in time"


def test_a_refused_step_leaves_nothing_for_the_next(two_workers: World) -> None:
    """Neither a residual that has seen the NaN, nor a mean kept for a bucket that DDP has made anew."""
    script = Script(EF4, "per_bucket", static=True, view=True, nan_on=(1, 0), goes_on=True)
    for one in two_workers(train, script):
        assert one["message"] == "nothing"
        for gradients in one["gradients"]:
            assert all(bool(g.isfinite().all()) for g in gradients.values())


@pytest.mark.parametrize("junction", JUNCTIONS)
def test_three_workers_agree_and_gathered_junctions_are_alike(
    three_workers: World, junction: str
) -> None:
    assert same(
        parameters(three_workers, Script(EF4, junction)), parameters(three_workers, Script(EF4))
    )


def test_the_layout_in_memory_is_kept_and_does_not_change_dense_training(
    two_workers: World,
) -> None:
    stock = parameters(two_workers, Script(None, channels_last=True))
    assert stock["conv.weight"].is_contiguous(memory_format=torch.channels_last)
    for junction in JUNCTIONS:
        assert same(parameters(two_workers, Script(Dense(), junction, channels_last=True)), stock)
    unit = parameters(two_workers, Script(Dense(), unit="model", channels_last=True))
    assert same(unit, stock)


@pytest.mark.parametrize("no_sync", [False, True])
def test_gradients_accumulate_after_backward_with_and_without_no_sync(
    two_workers: World, no_sync: bool
) -> None:
    expected = parameters(two_workers, Script(EF4, micro_steps=2, no_sync=True))
    ours = parameters(two_workers, Script(EF4, micro_steps=2, no_sync=no_sync))
    assert same(ours, expected)
    dense = parameters(two_workers, Script(Dense(), micro_steps=2, no_sync=no_sync))
    assert same(dense, parameters(two_workers, Script(None, micro_steps=2, no_sync=True)))


def test_gradients_accumulate_per_bucket_with_no_sync_on_all_but_the_last(
    two_workers: World,
) -> None:
    for compressor in (EF4, Dense()):
        after = parameters(two_workers, Script(compressor, micro_steps=3))
        overlapped = parameters(
            two_workers, Script(compressor, "per_bucket", micro_steps=3, no_sync=True)
        )
        assert same(overlapped, after)


@pytest.mark.parametrize("junction", JUNCTIONS)
def test_a_parameter_without_a_gradient_on_any_rank_keeps_none_and_its_residual_waits(
    two_workers: World, junction: str
) -> None:
    on = (True, False, False, True)
    script = Script(EF4, junction, find_unused=True, steps=4, side_on=on)
    results = two_workers(train, script)
    assert same(results[0]["parameters"], results[1]["parameters"])
    gradients = [one["side.weight"] for one in results[0]["gradients"]]
    assert [gradient is None for gradient in gradients] == [False, True, True, False]
    # The step that uses it again sends what the first has left.
    without = replace(script, side_on=(False, False, False, True))
    alone = two_workers(train, without)[0]["gradients"][3]["side.weight"]
    assert not same_bits(gradients[3], alone)


@pytest.mark.parametrize("junction", JUNCTIONS)
def test_frozen_parameters_are_neither_sent_nor_moved(two_workers: World, junction: str) -> None:
    stock = parameters(two_workers, Script(None, freeze=True))
    for unit in ["layer", "model"] if junction == "after_backward" else ["layer"]:
        ours = two_workers(train, Script(Dense(), junction, unit=unit, freeze=True))
        assert same(ours[0]["parameters"], stock)
        sent = 4 * sum(t.numel() for n, t in stock.items() if n != "hidden.weight")
        assert ours[0]["state"]["ledger"]["payload_bytes"] == 3 * sent


@pytest.mark.parametrize("junction", JUNCTIONS)
@pytest.mark.parametrize("compressor", [EF4, Dense()], ids=["ef4", "dense"])
def test_a_nan_on_one_rank_stops_all_with_its_name_and_touches_no_residual(
    two_workers: World, junction: str, compressor: Any
) -> None:
    results = two_workers(train, Script(compressor, junction, nan_on=(1, 1)))
    for one in results:
        assert re.match(
            r"UserError: gradient: the gradient is not finite at step 2 \(.*rank 1: \w+",
            one["message"],
        ), one["message"]
        assert same(one["before"], one["after"])
    assert results[0]["message"] == results[1]["message"]
    if junction == "after_backward":
        assert "rank 0" not in results[0]["message"]


def test_a_compressor_that_fails_on_a_nan_stops_all_ranks_as_any_nan_does(
    two_workers: World,
) -> None:
    for one in two_workers(train, Script(Fragile(), nan_on=(1, 1))):
        assert re.match(r"UserError: gradient: .* at step 2 \(rank 1: \w+", one["message"])


@pytest.mark.parametrize("junction", JUNCTIONS)
def test_an_exception_in_an_exchange_is_raised_by_step(two_workers: World, junction: str) -> None:
    for one in two_workers(train, Script(Broken(1), junction)):
        assert one["message"] == "ZeroDivisionError: broken on purpose"


@pytest.mark.parametrize("junction", JUNCTIONS)
def test_ranks_that_disagree_end_on_all_ranks_and_do_not_hang(
    two_workers: World, junction: str
) -> None:
    scripts = [
        Script(compressor, junction, attach_settings={"check": True})
        for compressor in (Uniform(8), Uniform(4))
    ]
    said = [one["message"] for one in two_workers(train_differently, scripts)]
    assert said[0] == said[1]
    assert said[0].startswith("RanksDisagree: rank 1 is about to ask for: gather gradient")


@pytest.mark.parametrize("junction", JUNCTIONS)
def test_saved_and_loaded_training_goes_on_as_if_uninterrupted(
    two_workers: World, junction: str
) -> None:
    whole = two_workers(train, Script(EF4_RANDOM, junction))
    resumed = two_workers(train, Script(EF4_RANDOM, junction, resume_at=2))
    for one, other in zip(whole, resumed, strict=True):
        assert same(one["parameters"], other["parameters"])
        assert same(one["state"]["exchange"], other["state"]["exchange"])
        assert one["state"]["ledger"] == other["state"]["ledger"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"junction": "per_buckt"},
            "UserError: junction: one of after_backward, per_bucket",
        ),
        (
            {"junction": "per_bucket", "unit": "model"},
            "UserError: junction: per_bucket sends",
        ),
        ({"unit": "tensor"}, "UserError: unit: one of layer, model, got 'tensor'"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    two_workers: World, settings: dict[str, Any], message: str
) -> None:
    script = Script(
        Dense(), settings.pop("junction", "after_backward"), settings.pop("unit", "layer")
    )
    assert all(said.startswith(message) for said in two_workers(refusal, script))
