"""Settings that cannot be: each component refuses them in one line that begins with the field's name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dgc_repro.dataset.digits import Digits
from dgc_repro.model.resnet101 import ResNet101
from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import Network
from dgc_repro.sink.wandb import Wandb
from dgc_repro.study.given import Gradients
from dgc_repro.study.lowrank import LowRank
from dgc_repro.study.saturation import Saturation
from dgc_repro.study.scaling import Scaling
from dgc_repro.study.waiting import Waiting
from dgc_repro.train.schedule import Step
from dgc_repro.train.stopping import Stopping

RATE = "a rate with its unit"
GIGABIT = Network("1gbit", "50us", efficiency=1.0)
NODES = Network("10gbit", "50us", workers_per_node=4, node_rate="100gbit", node_latency="5us")
STUDIED = {"networks": {"here": GIGABIT}, "compute_ms": 10.0, "latencies": ["50us"]}
SCALED: dict[str, Any] = {**STUDIED, "workers": [1, 2, 8], "bucket_mb": 1.0}
SATURATED: dict[str, Any] = {**STUDIED, "workers": 8, "factors": [10, 100]}
SATURATED |= {"stated_ms": 5.0, "steps": 1, "repeats": 3}
NARROW: dict[str, Any] = {"networks": {"n": NODES}}
CHANGES = [{"step": 1, "rate": "1gbit"}]
WITHOUT_RATE = {
    "latency": "50us",
    "loss": 0.1,
    "efficiency": 0.9,
    "allreduce": "tree",
    "schedule": CHANGES,
}
WITHOUT_RATE |= {"software": {"allreduce": {"rate": "1gbit"}}, "as_workers": 32, "message_scale": 2}


def with_rate(**settings: Any) -> Network:
    return Network("1gbit", **settings)


REFUSED: dict[Callable[..., Any], list[tuple[Any, str]]] = {
    ResNet101: [({"blocks": [3, 4, 23]}, "blocks: four whole numbers from 1 to 1000, one a stage, got")],
    Digits: [
        ({"validation": 0}, "validation: a whole number of images from 1, got 0"),
        ({"augment": "flip"}, "augment: one of none, crop, crop_flip, shift_flip, got 'flip'"),
    ],
    Step: [({"milestones_epochs": (5, 3)}, "milestones_epochs: ")],
    Stopping: [
        ({"target": 101}, "target: a number from 0 to 100 percent for metric accuracy"),
        ({"target": 0.5, "metric": "perplexity"}, "target: a number from 1 up"),
        ({"stop": True}, "stop: needs stopping.target, got null"),
        ({"every_steps": 5}, "every_steps: needs stopping.target"),
    ],
    Wandb: [({"tags": ["x" * 65]}, "tags: a list, each a word of 1 to 64 characters")],
    Network: [
        *(({"rate": v}, f"rate: {RATE}") for v in ("100", 100, "100mb", "0mbit", "1e3mbit", True)),
        *(({"rates": v}, "rates: a list, each a rate") for v in ("1gbit", [], ["1gbit", "fast"])),
        ({"latency": "3"}, "latency: a duration with its unit"),
        *(({"loss": v}, "loss: a share of packets") for v in (1, "much")),
        ({"schedule": "now"}, "schedule: a list such as"),
        ({"schedule": [{"step": 5}]}, "schedule: each entry as"),
        ({"schedule": [{"step": -1, "rate": "1gbit"}]}, "schedule: a step is a whole number"),
        ({"schedule": [{"step": 1, "rate": "1"}]}, f"schedule: {RATE}"),
        ({"schedule": [{"step": 2, "rate": "1gbit"}] * 2}, "schedule: steps ascend"),
        ({"software": "fast"}, "software: by collective, as {allreduce:"),
        ({"software": {"gossip": {}}}, "software: no collective 'gossip'; there are: allreduce"),
        ({"software": {"allreduce": {"rat": "1gbit"}}}, "software: by collective"),
        *(({key: value}, f"{key}: does nothing without a rate") for key, value in WITHOUT_RATE.items()),
        ({"workers_per_node": 4}, "workers_per_node: goes with node_rate"),
        ({"workers_per_node": 1, "node_rate": "1gbit"}, "workers_per_node: a whole number from 2"),
    ],
    with_rate: [({"node_latency": "5us"}, "node_latency: does nothing without workers_per")],
    Costs: [
        ((GIGABIT, 0), "workers: a whole number from 1, got 0"),
        ((Network(), 2), "rate: this needs one"),
        ((Network(rates=["1gbit", "1gbit"]), 3), "rates: one for each worker"),
        ((NODES, 6),
         "workers_per_node: 4 workers share a node, and 6 workers are no multiple of it; use 4 or 8"),
        ({"network": GIGABIT, "workers": 2, "allreduce": "star"}, "allreduce: one of ring, tree"),
    ],
    Waiting: [(([4, 2], 10, 1.0, 1.0), "workers: a list, each a whole number from 1, ascending")],
    LowRank: [(([2, 1], 5, [1], 4), "ranks: "), (([1], 5, [6], 4), "spectra: steps up to 5, got 6")],
    Gradients: [(((3,), np.zeros((2, 4), dtype=np.float32), False), "values: ")],
    Scaling: [(SCALED | NARROW | {"workers": [1, 6]}, "workers: that fill the nodes of n")],
    Saturation: [(SATURATED | NARROW | {"workers": 6}, "workers: that fill")],
}  # fmt: skip


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_settings_that_cannot_be_are_refused_by_the_name_of_the_field(
    make: Callable[..., Any],
) -> None:
    for given, message in REFUSED[make]:
        arguments, settings = ((), given) if isinstance(given, dict) else (given, {})
        with pytest.raises(ValueError, match=f"^{re.escape(message)}") as caught:
            make(*arguments, **settings)
        assert "\n" not in str(caught.value), given
