"""Variations of the step and of evaluation: accumulation, precision, memory format, compile, smoothed labels,
a trace of some steps, a gradient that is not finite."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_run import PLAIN, SETTINGS, UNIFORM4_EF, assert_same_state, built, play, state_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dgc_repro.exchange.clock import SPANS
from dgc_repro.train import step
from dgc_repro.train.evaluate import evaluate
from dgc_repro.train.loop import steps_left, train
from dgc_repro.train.profile import SKIPPED_STEPS, TRACED_STEPS, profiled
from dgc_repro.train.randomness import Workers
from dgc_repro.train.run import Run
from dgc_repro.train.step import forward_backward, train_step

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


@pytest.mark.parametrize(("width", "channels_last"), [(4, False), (8, True)])
def test_narrow_models_avoid_a_kernel_that_corrupts_memory(width: int, channels_last: bool) -> None:
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


def test_evaluation_counts_every_image_once_whatever_the_number_of_workers() -> None:
    run = built("launch.workers=3", "train.evaluation_batch_size=7")  # 53 images
    alone = built("launch.workers=1", "train.evaluation_batch_size=250")
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


# Label smoothing.


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_share_of_the_target_is_spread_over_classes_but_not_in_evaluation(share: float) -> None:
    """Szegedy et al., section 7: q(k) = (1 - share) [k = y] + share / K."""
    run = built(*PLAIN, f"train.label_smoothing={share}")
    batch = next(iter(steps_left(run)))[0]
    ((inputs, targets),) = list(batch.micro_batches)
    logits = run.module(inputs)
    wanted = torch.full(logits.shape, share / logits.shape[1], dtype=torch.float64)
    wanted[torch.arange(len(targets)), targets] += 1 - share
    per_image = -(wanted * logits.double().log_softmax(1)).sum(1)
    (gradient,) = torch.autograd.grad(per_image.mean(), run.module.head.weight)

    again = next(iter(steps_left(run)))[0]
    run.module.zero_grad()
    loss, _, _ = forward_backward(run, 0, again)
    assert loss == pytest.approx(per_image.sum().item(), rel=1e-5)
    torch.testing.assert_close(run.module.head.weight.grad, gradient, rtol=1e-4, atol=1e-6)

    part, losses = run.splits.test, 0.0
    run.module.eval()
    for images, labels in run.task.evaluation_batches(part, [0], 1):
        losses += F.cross_entropy(run.module(images).double(), labels, reduction="sum").item()
    assert evaluate(run, part).mean_loss == pytest.approx(losses / len(part), rel=1e-5)


# A trace of a few steps, with the spans of the clock.


@pytest.mark.parametrize("epochs", [1, 4])
def test_a_trace_has_steps_and_spans_and_changes_no_number(tmp_path: Path, epochs: int) -> None:
    given = (*PLAIN, *UNIFORM4_EF, f"train.epochs={epochs}")
    run, losses = built(*given, "train.profile=true"), []
    with profiled(run, tmp_path) as after_step:

        def on_step(metrics: Mapping[str, Any]) -> None:
            losses.append(float(metrics["train/loss"]))
            after_step()

        train(run, on_step, lambda epoch: None, lambda: None)
    assert losses == play(built(*given)).losses
    text = gzip.decompress((tmp_path / "trace-0.json.gz").read_bytes())
    names = {event.get("name", "") for event in json.loads(text)["traceEvents"]}
    steps = {name for name in names if name.startswith("ProfilerStep")}
    enough = len(losses) >= SKIPPED_STEPS + TRACED_STEPS
    assert len(steps) == (TRACED_STEPS if enough else len(losses) - 1)
    assert {"compute", "compress", "decompress"} <= names & set(SPANS)
    assert "aten::" in (tmp_path / "profile-0.txt").read_text()


# A gradient that is not finite. Real processes: test_worlds.py.


@pytest.mark.parametrize("first", ["cuda", "cpu"])
def test_skip_leaves_the_step_out(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``first``: where payloads are sent before the signals are read."""
    monkeypatch.setattr("dgc_repro.exchange.junction.SEND_FIRST", {first})
    poison = "+model={_target_:odd_models.Plain,poisoned_steps:[2],poisoned_rank:1}"
    run = built("~model", poison, *UNIFORM4_EF, "train.on_nonfinite=skip")
    play(run, until=2)
    before = state_of(run)
    assert any(bool(tensor.any()) for tensor in before["compressor"])
    play(run, until=3)
    assert run.progress.step == 3
    assert run.progress.tally.skipped_steps == 1
    after = state_of(run)
    for name in ("model", "optimizer", "compressor"):
        assert all(map(torch.equal, before[name], after[name])), name


def test_a_simulated_worker_draws_as_a_process_does_and_buffers_follow_worker_0() -> None:
    module, draws = nn.BatchNorm1d(1), 2
    alone = []
    for rank in range(2):
        Workers(rank, 1, 3, module)
        alone.append([float(torch.rand(())) for _ in range(draws)])
    together, drawn = Workers(0, 2, 3, module), [list[float](), list[float]()]
    for _ in range(draws):
        for worker in range(2):
            with together.turn_of(worker):
                drawn[worker].append(float(torch.rand(())))
                module.running_mean.fill_(worker + 1.0)  # type: ignore[union-attr, operator]
    assert drawn == alone
    assert alone[0] != alone[1]
    assert module.running_mean.tolist() == [1.0]  # type: ignore[union-attr, operator]
