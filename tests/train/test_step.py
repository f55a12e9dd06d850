"""Variations of the step and of evaluation: accumulation, precision, memory format, compile."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from tiny_run import (
    PLAIN,
    SETTINGS,
    UNIFORM4_EF,
    assert_same_state,
    built,
    play,
)
from torch.utils._python_dispatch import TorchDispatchMode

from dgc_repro.train import step
from dgc_repro.train.evaluate import evaluate
from dgc_repro.train.loop import steps_left
from dgc_repro.train.run import Run
from dgc_repro.train.step import train_step

FLOAT32_EPS = 2.0**-24


def test_two_micro_batches_of_half_the_size_are_one_batch() -> None:
    """For a model without batch normalization, whose statistics see micro-batches."""
    # Without crops, which are drawn micro-batch by micro-batch.
    same = (*PLAIN, "dataset.augment=none")
    whole = built(*same, "train.batch_size=16")
    parts = built(*same, "train.batch_size=8", "train.accumulate=2")
    one, two = play(whole), play(parts)
    assert whole.steps_per_epoch == parts.steps_per_epoch
    # Another order of summation over 16 images and 192 inputs rounds each sum by at most 208 eps;
    # 8 steps with rates below 0.1 keep the differences of that size.
    assert one.losses == pytest.approx(two.losses, rel=300 * FLOAT32_EPS)
    for a, b in zip(whole.module.parameters(), parts.module.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=300 * FLOAT32_EPS)


def test_bf16_autocast_trains_near_fp32_and_keeps_everything_else_in_float32() -> None:
    run = built(*UNIFORM4_EF, "train.precision=bf16")
    told, fp32 = play(run), play(built(*UNIFORM4_EF))
    assert told.finished
    assert told.losses != fp32.losses
    # bf16 keeps 8 bits: 2^-8 a product; 18 layers of them in random directions.
    assert told.losses[0] == pytest.approx(fp32.losses[0], rel=18**0.5 * 2**-8)
    assert {p.dtype for p in run.module.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in run.module.parameters()} == {torch.float32}
    residuals = [*run.exchange.states(0)["residual"].values()]
    assert {residual.dtype for residual in residuals} == {torch.float32}


class Casts(TorchDispatchMode):
    """Counts the casts of tensors to bf16, by address."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[int] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if function is torch.ops.aten._to_copy.default and kwargs.get("dtype") is torch.bfloat16:
            self.counts[args[0].data_ptr()] += 1
        return function(*args, **kwargs)


def casts_of_a_step(*overrides: str) -> tuple[Run, int]:
    """A run after one step of four workers, and how often the step has cast the first weight."""
    run = built("train.precision=bf16", "launch.workers=4", "train.batch_size=8", *overrides)
    batches = next(iter(steps_left(run)))
    weight = next(run.module.parameters()).data_ptr()
    with Casts() as casts:
        train_step(run, batches)
    return run, casts.counts[weight]


def test_a_weight_is_cast_once_for_all_simulated_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    run, casts = casts_of_a_step()
    monkeypatch.setattr(step, "casts_kept", lambda run: nullcontext())
    other, casts_apart = casts_of_a_step()
    assert (casts, casts_apart) == (1, 4)
    assert_same_state(run, other)


def test_sam_casts_the_weights_that_it_has_moved() -> None:
    assert casts_of_a_step("optimizer=sam")[1] == 2 * 4


def test_channels_last_gives_the_same_losses_but_for_rounding() -> None:
    # At a low rate, because training itself makes any difference grow.
    slow = ("optimizer.lr=0.001", "train.epochs=1", "model.width=8")
    last = play(built("train.channels_last=true", *slow))
    first = play(built("train.channels_last=false", *slow))
    # Convolutions sum up to 9 x 32 products in another order: 288 eps a layer, 18 layers.
    assert last.losses == pytest.approx(first.losses, rel=18 * 288 * FLOAT32_EPS)


@pytest.mark.parametrize(("width", "channels_last"), [(4, False), (8, True)])
def test_narrow_models_avoid_the_kernel_that_corrupts_memory(
    width: int, channels_last: bool
) -> None:
    """oneDNN issue 6035: a strided 1x1 convolution with fewer than 8 channels, channels last, AVX2."""
    run = built(f"model.width={width}")
    (images, _), *_ = next(run.task.batches(0, 1, 0, 0)).micro_batches
    weight = run.module.get_parameter("layer2.0.downsample.0.weight")
    of_conv = run.module.get_parameter("layer1.0.conv1.weight")
    assert weight.shape[1] == width
    for tensor in (images, of_conv):
        assert tensor.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_one_vector_for_the_model_sends_one_scale_and_trains() -> None:
    whole, by_layer = built(*PLAIN, *SETTINGS["one vector"]), built(*PLAIN, *UNIFORM4_EF)
    told, other = play(whole), play(by_layer)
    assert told.finished
    assert list(whole.exchange.states(0)["residual"]) == ["model"]
    assert told.losses[0] == other.losses[0]
    assert told.losses != other.losses
    sent, sent_by_layer = (t.records[-1]["comm/payload_bytes"] for t in (told, other))
    assert sent < sent_by_layer  # one scale and one filling instead of one for each tensor


@pytest.mark.parametrize("workers", [3])
def test_evaluation_counts_every_image_once_whatever_the_number_of_workers(workers: int) -> None:
    run = built(f"launch.workers={workers}", "train.evaluation_batch_size=7")
    alone = built("launch.workers=1", "train.evaluation_batch_size=250")
    assert len(run.splits.test) % workers, "the size is not divisible"
    score, whole = evaluate(run, run.splits.test), evaluate(alone, alone.splits.test)
    assert score.count == whole.count == 53
    assert score.accuracy_percent == whole.accuracy_percent
    # Other batches: each of 53 losses may be rounded otherwise in float32, 18 layers deep.
    assert score.mean_loss == pytest.approx(whole.mean_loss, rel=18 * 288 * FLOAT32_EPS)


def test_evaluation_uses_running_statistics_and_leaves_them_alone() -> None:
    run = built()
    play(run, until=2)
    before = [buffer.clone() for buffer in run.module.buffers()]
    assert run.module.training
    evaluate(run, run.splits.test)
    assert run.module.training
    for now, then in zip(run.module.buffers(), before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.slow
def test_a_compiled_model_trains_alike_and_keeps_its_parameters_names() -> None:
    # The small model: two graphs (training, evaluation) of a few kernels compile in seconds.
    overrides = (*PLAIN, *UNIFORM4_EF, "train.epochs=1")
    eager, compiled = built(*overrides), built(*overrides, "train.compile=true")
    try:
        one, two = play(eager), play(compiled)
    finally:
        torch.compiler.reset()
    assert list(dict(compiled.module.named_parameters())) == list(
        dict(eager.module.named_parameters())
    )
    assert list(compiled.module.state_dict()) == list(eager.module.state_dict())
    # Fused kernels sum 192 products in another order.
    assert one.losses == pytest.approx(two.losses, rel=300 * FLOAT32_EPS)
