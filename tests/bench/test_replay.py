"""The replayed model: what backward hands out, in which order, and when; no process is started."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from dgc_repro.bench import replay
from dgc_repro.bench.replay import Case, Compute, Replay, layer_of, multiply_adds
from dgc_repro.compressor.dense import Dense
from dgc_repro.model.lstm import LSTM
from dgc_repro.model.resnet18 import ResNet18


def recorded() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"first.weight": (4, 3, 2, 2), "first.bias": (4,), "last.weight": (5, 4)}
    found = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    found["first.weight"] = found["first.weight"].to(memory_format=torch.channels_last)
    return found


def back(model: Replay) -> None:
    model(torch.zeros((), requires_grad=True)).backward()


def test_backward_leaves_the_recorded_gradients_laid_out_as_they_were() -> None:
    gradients = recorded()
    model = Replay(gradients)
    back(model)
    for parameter, gradient in zip(model.parameters(), gradients.values(), strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
        assert parameter.stride() == parameter.grad.stride() == gradient.stride()


@dataclass
class FakeTime:
    """A clock on which only sleeping takes time."""

    now: float = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(replay, "time", fake)
    return fake


def test_gradients_come_last_layer_first_when_their_share_of_backward_is_over(
    clock: FakeTime,
) -> None:
    model = Replay(recorded(), {"first": 3.0, "last": 1.0})
    model.compute = Compute("sleep", 0.5, 0.2)
    came: dict[str, float] = {}

    def note(name: str) -> None:
        came[name] = clock.now

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: note(name))
    for begin in (100.5, 101.2):  # the second step begins anew
        back(model)
        assert next(iter(came)) == "last_weight"
        assert came["last_weight"] == pytest.approx(begin + 0.05)
        assert came["first_bias"] == came["first_weight"] == pytest.approx(begin + 0.2)
        came.clear()


def test_a_cpu_that_is_late_does_not_delay_the_gradients_that_follow(clock: FakeTime) -> None:
    model = Replay(recorded(), {"first": 3.0, "last": 1.0})
    model.compute = Compute("sleep", 0.0, 0.2)
    model.last_weight.register_post_accumulate_grad_hook(lambda _: clock.sleep(0.1))  # type: ignore[operator,union-attr]
    back(model)
    assert clock.now == pytest.approx(100.2)


def test_compute_is_a_third_forward(clock: FakeTime) -> None:
    model = Replay(recorded())
    model.compute = Compute.of("sleep", 0.06)
    through = model(torch.zeros((), requires_grad=True))
    assert clock.now == pytest.approx(100.02)
    through.backward()
    assert clock.now == pytest.approx(100.06)


def test_without_shares_a_layer_counts_by_its_size() -> None:
    model = Replay(recorded())
    assert model._instants == pytest.approx([1.0, 20 / 72])


@pytest.mark.parametrize("width", [4, 8])
def test_multiply_adds_of_a_convolution_and_a_matrix(width: int) -> None:
    conv, linear = nn.Conv2d(3, width, 3, padding=1), nn.Linear(10, width)
    images, vectors = torch.zeros(2, 3, 5, 5), torch.zeros(7, 10)
    assert multiply_adds(conv, conv(images)) == 2 * 25 * width * 27
    assert multiply_adds(linear, linear(vectors)) == 7 * 10 * width
    assert multiply_adds(nn.BatchNorm2d(3), images) == 0.0


def test_multiply_adds_of_an_lstm_use_each_matrix_once_a_word() -> None:
    lstm = nn.LSTM(6, 6, 2, batch_first=True)
    assert multiply_adds(lstm, lstm(torch.zeros(3, 5, 6))) == 3 * 5 * 2 * 2 * 4 * 6 * 6


@pytest.mark.parametrize("model", [ResNet18(width=4), LSTM(width=8)])
def test_every_parameter_belongs_to_a_layer_that_can_be_counted(model: ResNet18 | LSTM) -> None:
    built = model.build(10)
    leaves = {name for name, part in built.named_modules() if not list(part.children())}
    assert {layer_of(name) for name, _ in built.named_parameters()} <= leaves


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"compressor": Dense()}, "overlap"),
        ({"overlap": True}, "overlap"),
        ({"hook": "bf15"}, "hook"),
    ],
)
def test_a_case_that_cannot_be_is_refused_by_field(settings: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        Case("wrong", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_compute_of_no_duration_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="^backward_seconds: "):
        Compute("wrong", 0.0, seconds)
