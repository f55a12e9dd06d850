"""Settings that cannot be: each component refuses them in one line that begins with the field's name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dgc_repro.dataset.digits import Digits
from dgc_repro.dataset.ptb import Ptb
from dgc_repro.dataset.pydoc import Pydoc
from dgc_repro.model.lstm import LSTM
from dgc_repro.model.resnet18 import ResNet18
from dgc_repro.model.resnet101 import ResNet101
from dgc_repro.model.vgg16 import VGG16
from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import Network
from dgc_repro.sink.jsonl import Jsonl
from dgc_repro.sink.wandb import Wandb
from dgc_repro.study.allreduce import Allreduce
from dgc_repro.study.density import RandomSupports, RealSupports
from dgc_repro.study.given import Gradients
from dgc_repro.study.lowrank import LowRank
from dgc_repro.study.payloads import Payloads
from dgc_repro.study.saturation import Saturation
from dgc_repro.study.scaling import Scaling
from dgc_repro.study.waiting import Waiting
from dgc_repro.train.schedule import Constant, Cosine, Step
from dgc_repro.train.settings import SGD
from dgc_repro.train.stopping import Stopping

WHOLE = "a whole number from 1, got"
CLASSES = "num_classes: a whole number from 2, or null, got 1"
BLOCKS = "blocks: four whole numbers from 1 to 1000"
RATE = "a rate with its unit"
NO_RATE = "does nothing without a rate"
GIGABIT = Network("1gbit", "50us", efficiency=1.0)
NODES = Network("10gbit", "50us", workers_per_node=4, node_rate="100gbit", node_latency="5us")
STUDIED = {"networks": {"here": GIGABIT}, "compute_ms": 10.0, "latencies": ["50us"]}
SCALED: dict[str, Any] = {**STUDIED, "workers": [1, 2, 8], "bucket_mb": 1.0}
SATURATED: dict[str, Any] = {
    **STUDIED,
    "workers": 8,
    "factors": [10, 100],
    "stated_ms": 5.0,
    "steps": 1,
    "repeats": 3,
}
NARROW: dict[str, Any] = {"networks": {"n": NODES}}


def with_rate(**settings: Any) -> Network:
    return Network("1gbit", **settings)


def pairs(networks: Any, workers: Any, sizes: Any) -> Allreduce:
    return Allreduce(networks, workers, sizes)


REFUSED: dict[Callable[..., Any], list[tuple[Any, str]]] = {
    # Models.
    ResNet18: [
        ({"stem": "mnist"}, "stem: one of cifar, imagenet, got 'mnist'"),
        ({"width": 0}, f"width: {WHOLE} 0"),
        ({"width": "wide"}, f"width: {WHOLE} 'wide'"),
        ({"width": True}, f"width: {WHOLE} True"),
        ({"num_classes": 1}, CLASSES),
    ],
    ResNet101: [
        ({"stem": "mnist"}, "stem: one of cifar, imagenet, got 'mnist'"),
        ({"width": 0}, f"width: {WHOLE} 0"),
        ({"num_classes": 1}, CLASSES),
        ({"blocks": [3, 4, 23]}, f"{BLOCKS}, one a stage, got [3, 4, 23]"),
        ({"blocks": [3, 4, 23, 0]}, BLOCKS),
        ({"blocks": "3,4,6,3"}, BLOCKS),
        ({"blocks": None}, BLOCKS),
    ],
    VGG16: [
        ({"batch_norm": 1}, "batch_norm: true or false, got 1"),
        ({"width": 0}, f"width: {WHOLE} 0"),
        ({"num_classes": 1}, CLASSES),
    ],
    LSTM: [
        ({"width": 0}, f"width: {WHOLE} 0"),
        ({"layers": 1.5}, "layers: a whole number from 1 to 1000, got 1.5"),
        ({"dropout": 1.0}, "dropout: a number from 0 to below 1, got 1.0"),
        ({"dropout": "some"}, "dropout: a number from 0 to below 1, got 'some'"),
        ({"tied": "no"}, "tied: true or false, got 'no'"),
        ({"num_classes": 1}, CLASSES),
    ],
    # Data sets.
    Digits: [
        ({"validation": 0}, "validation: a whole number of images from 1, got 0"),
        ({"test": -1}, "test: a whole number of images from 1, got -1"),
        ({"train_size": "all"}, "train_size: a whole number of images from 1, or null, got 'all'"),
        ({"test_size": 0}, "test_size: a whole number of images from 1, or null, got 0"),
        ({"augment": "flip"}, "augment: one of none, crop, crop_flip, shift_flip, got 'flip'"),
        ({"split_seed": -1}, "split_seed: a whole number from 0, got -1"),
    ],
    Ptb: [({"train_part": "test"}, "train_part: one of train, valid, got 'test'")],
    Pydoc: [({"bptt": v}, f"bptt: {WHOLE} {v!r}") for v in (0, -1, True, 1.5, "ten", None)],
    # Optimizer, schedule, stopping.
    Constant: [({"warmup_epochs": -1}, "warmup_epochs: ")],
    Cosine: [({"warmup_epochs": -0.5}, "warmup_epochs: ")],
    Step: [({"milestones_epochs": (5, 3)}, "milestones_epochs: ")],
    SGD: [
        ({"lr": 0}, "lr: "),
        ({"momentum": 1}, "momentum: "),
        ({"weight_decay": -1}, "weight_decay: "),
        ({"reference_batch": 0}, "reference_batch: "),
    ],
    Stopping: [
        (
            {"metric": "top1"},
            "metric: one of accuracy, top5, perplexity, train_cross_entropy, got 'top1'",
        ),
        ({"target": 101}, "target: a number from 0 to 100 percent for metric accuracy"),
        ({"target": 0.5, "metric": "perplexity"}, "target: a number from 1 up"),
        ({"target": "high"}, "target: a number, or null, got 'high'"),
        ({"target": float("nan")}, "target: a number, or null, got nan"),
        ({"stop": "yes", "target": 5}, "stop: true or false, got 'yes'"),
        ({"stop": True}, "stop: needs stopping.target, got null"),
        ({"plateau": 1}, "plateau: a share from 0 to below 1, got 1"),
        ({"plateau": -0.1}, "plateau: a share from 0 to below 1, got -0.1"),
    ],
    # Sinks.
    Jsonl: [
        ({"every_steps": v}, "every_steps: a whole number from 0") for v in (-1, True, 2.5, "ten")
    ],
    Wandb: [
        ({"mode": "on"}, "mode: one of offline, online, disabled, got 'on'; "),
        ({"project": ""}, "project: "),
        ({"tags": "mine"}, "tags: a list, each a word of 1 to 64 characters, got 'mine'"),
        ({"tags": ["x" * 65]}, "tags: a list, each a word of 1 to 64 characters"),
        ({"every_steps": -1}, "every_steps: "),
    ],
    # Networks.
    Network: [
        *(({"rate": v}, f"rate: {RATE}") for v in ("100", 100, "100mb", "fast", "0mbit")),
        *(({"rate": v}, f"rate: {RATE}") for v in ("-1gbit", "1e3mbit", True)),
        ({"rates": "1gbit"}, "rates: a list, each a rate"),
        ({"rates": []}, "rates: a list, each a rate"),
        ({"rates": ["1gbit", "fast"]}, "rates: a list, each a rate"),
        *(({"latency": v}, "latency: a duration with its unit") for v in ("3", "soon")),
        *(({"loss": v}, "loss: a share of packets") for v in (1, 2, "much")),
        ({"schedule": "now"}, "schedule: a list such as"),
        *(({"schedule": [v]}, "schedule: each entry as") for v in (5, {"step": 5})),
        ({"schedule": [{"step": -1, "rate": "1gbit"}]}, "schedule: a step is a whole number"),
        ({"schedule": [{"step": 1, "rate": "1"}]}, f"schedule: {RATE}"),
        ({"schedule": [{"step": 2, "rate": "1gbit"}] * 2}, "schedule: steps ascend"),
        ({"efficiency": 0}, "efficiency: a number above 0 and at most 1"),
        ({"efficiency": True}, "efficiency: a number above 0 and at most 1"),
        ({"software": "fast"}, "software: by collective, as {allreduce:"),
        ({"software": {"gossip": {}}}, "software: no collective 'gossip'; there are: allreduce"),
        ({"software": {"allreduce": {"rat": "1gbit"}}}, "software: by collective"),
        ({"software": {"allreduce": {"rate": "1"}}}, f"software: {RATE}"),
        ({"latency": "50us"}, f"latency: {NO_RATE}"),
        ({"loss": 0.1}, f"loss: {NO_RATE}"),
        ({"efficiency": 0.9}, f"efficiency: {NO_RATE}"),
        ({"allreduce": "tree"}, f"allreduce: {NO_RATE}"),
        ({"schedule": [{"step": 1, "rate": "1gbit"}]}, f"schedule: {NO_RATE}"),
        ({"software": {"allreduce": {"rate": "1gbit"}}}, f"software: {NO_RATE}"),
        ({"workers_per_node": 4, "node_rate": "1gbit"}, f"workers_per_node: {NO_RATE}"),
        ({"workers_per_node": 4}, "workers_per_node: goes with node_rate"),
        ({"as_workers": 32}, f"as_workers: {NO_RATE}"),
        ({"message_scale": 2}, f"message_scale: {NO_RATE}"),
        ({"workers_per_node": 4, "node_rate": "fast"}, f"node_rate: {RATE}"),
        (
            {"workers_per_node": 1, "node_rate": "1gbit"},
            "workers_per_node: a whole number from 2",
        ),
    ],
    with_rate: [
        ({"node_latency": "5us"}, "node_latency: does nothing without workers_per"),
        ({"as_workers": 1}, "as_workers: a whole number from 2 to 1000000, or null, got 1"),
        ({"as_workers": 2.0}, "as_workers: a whole number from 2"),
        ({"message_scale": 0}, "message_scale: a number above 0 and at most 1000000000, got 0"),
        ({"message_scale": "2"}, "message_scale: a number above 0 and at most 1000000000, got '2'"),
    ],
    Costs: [
        ((GIGABIT, 0), "workers: a whole number from 1, got 0"),
        ((GIGABIT, True), "workers: a whole number"),
        ((Network(), 2), "rate: this needs one"),
        ((Network(rates=["1gbit", "1gbit"]), 3), "rates: one for each worker"),
        (
            (NODES, 6),
            "workers_per_node: 4 workers share a node, and 6 workers are no multiple of it; use 4 or 8",
        ),
        ({"network": GIGABIT, "workers": 2, "allreduce": "star"}, "allreduce: one of ring, tree"),
    ],
    # Studies.
    Waiting: [
        (([4, 2], 10, 1.0, 1.0), "workers: a list, each a whole number from 1, ascending"),
        (([0], 10, 1.0, 1.0), "workers: a list, each a whole number from 1"),
        ((8, 10, 1.0, 1.0), "workers: a list"),
        (([1], 1, 1.0, 1.0), "trials: "),
        (([1], 10, 0, 1.0), "mean_ms: a number above 0"),
        (([1], 10, 1.0, -1), "deviation_ms: a number from 0"),
    ],
    RandomSupports: [
        ((50, [2], [100]), "values: "),
        ((500, [1], [100]), "workers: "),
        ((500, [2], [1]), "factors: "),
    ],
    RealSupports: [(([2], [10], [1], 1), "bits: "), (([2], [10], [4], 0), "steps: ")],
    LowRank: [
        (([2, 1], 5, [1], 4), "ranks: "),
        (([1], 5, [6], 4), "spectra: steps up to 5, got 6"),
    ],
    Payloads: [((1.5, 161, 8), "density: "), ((0.001, 0, 8), "gru_inputs: ")],
    Gradients: [(((3,), np.zeros((2, 4), dtype=np.float32), False), "values: ")],
    pairs: [(({}, [1], [1]), "workers: "), (({}, [2], [0]), "sizes: ")],
    Scaling: [
        (SCALED | {"compute_ms": None}, "compute_ms: "),
        (SCALED | {"latencies": ["fast"]}, "latencies: "),
        (SCALED | NARROW | {"workers": [1, 6]}, "workers: that fill the nodes of n"),
    ],
    Saturation: [
        (SATURATED | {"stated_ms": -1}, "stated_ms: "),
        (SATURATED | {"repeats": 0}, "repeats: "),
        (SATURATED | NARROW | {"workers": 6}, "workers: that fill"),
    ],
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_settings_that_cannot_be_are_refused_by_the_name_of_the_field(
    make: Callable[..., Any],
) -> None:
    for given, message in REFUSED[make]:
        arguments, settings = ((), given) if isinstance(given, dict) else (given, {})
        with pytest.raises(ValueError, match=f"^{re.escape(message)}") as caught:
            make(*arguments, **settings)
        assert "\n" not in str(caught.value), given
