"""Networks as they are written: units, lists, schedules, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dgc_repro.network.profile import Level, Network
from dgc_repro.network.units import bits_per_second, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100mbit", 1e8), ("2.5gbit", 2.5e9), ("10 kbit", 1e4), ("1200GBIT", 1.2e12), (".5gbit", 5e8)],
)
def test_a_rate_is_read(text: str, expected: float) -> None:
    assert bits_per_second("rate", text) == expected


@pytest.mark.parametrize(
    "text", ["100", 100, "100mb", "fast", "0mbit", "-1gbit", "1e3mbit", None, True]
)
def test_a_rate_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"^rate: a rate with its unit"):
        bits_per_second("rate", text)


@pytest.mark.parametrize(
    ("text", "expected"), [("50us", 50e-6), ("1ms", 1e-3), (0, 0.0), ("0us", 0.0)]
)
def test_a_duration_is_read(text: object, expected: float) -> None:
    assert seconds("latency", text) == pytest.approx(expected)


def test_rates_are_one_for_each_worker() -> None:
    network = Network(rates=["1gbit", "100mbit"])
    assert network.worker_rates(2) == [1e9, 1e8]
    assert network.outer == Level(1e8, 0.0)
    with pytest.raises(ValueError, match=r"^rates: one for each worker, got 2 for 3 workers"):
        network.worker_rates(3)


def test_two_levels() -> None:
    network = Network("10gbit", "50us", workers_per_node=4, node_rate="100gbit", node_latency="5us")
    assert network.inner == Level(1e11, pytest.approx(5e-6))
    assert Network("10gbit").inner is None


def test_a_schedule_is_read() -> None:
    network = Network(
        "1gbit", schedule=[{"step": 5, "rate": "100mbit"}, {"step": 9, "rate": "1gbit"}]
    )
    assert network.changes() == ((5, 1e8), (9, 1e9))
    assert Network("1gbit").changes() == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": "100"}, "rate: a rate with its unit"),
        ({"rates": "1gbit"}, "rates: a list, each a rate with its unit"),
        ({"rates": []}, "rates: a list, each a rate with its unit"),
        ({"rates": ["1gbit", "fast"]}, "rates: a list, each a rate with its unit"),
        ({"latency": "3"}, "latency: a duration with its unit"),
        ({"loss": 1}, "loss: a share of packets"),
        ({"schedule": "now"}, "schedule: a list such as"),
        ({"schedule": [5]}, "schedule: each entry as"),
        ({"schedule": [{"step": -1, "rate": "1gbit"}]}, "schedule: a step is a whole number"),
        ({"schedule": [{"step": 1, "rate": "1"}]}, "schedule: a rate with its unit"),
        (
            {"schedule": [{"step": 2, "rate": "1gbit"}, {"step": 2, "rate": "2gbit"}]},
            "schedule: steps ascend",
        ),
        ({"efficiency": 0}, "efficiency: a number above 0 and at most 1"),
        ({"efficiency": True}, "efficiency: a number above 0 and at most 1"),
        ({"software": "fast"}, "software: by collective, as {allreduce:"),
        ({"software": {"gossip": {}}}, "software: no collective 'gossip'; there are: allreduce"),
        ({"software": {"allreduce": {"rat": "1gbit"}}}, "software: by collective"),
        ({"software": {"allreduce": {"rate": "1"}}}, "software: a rate with its unit"),
        ({"latency": "50us"}, "latency: does nothing without a rate"),
        ({"loss": 0.1}, "loss: does nothing without a rate"),
        ({"efficiency": 0.9}, "efficiency: does nothing without a rate"),
        ({"allreduce": "tree"}, "allreduce: does nothing without a rate"),
        (
            {"rate": "1gbit", "node_latency": "5us"},
            "node_latency: does nothing without workers_per",
        ),
        ({"schedule": [{"step": 1, "rate": "1gbit"}]}, "schedule: does nothing without a rate"),
        ({"software": {"allreduce": {"rate": "1gbit"}}}, "software: does nothing without a rate"),
        (
            {"workers_per_node": 4, "node_rate": "1gbit"},
            "workers_per_node: does nothing without a rate",
        ),
        ({"workers_per_node": 4}, "workers_per_node: goes with node_rate"),
        (
            {"rate": "1gbit", "as_workers": 1},
            "as_workers: a whole number from 2 to 1000000, or null, got 1",
        ),
        ({"rate": "1gbit", "as_workers": 2.0}, "as_workers: a whole number from 2"),
        ({"rate": "1gbit", "message_scale": 0}, "message_scale: a number above 0, got 0"),
        ({"rate": "1gbit", "message_scale": "2"}, "message_scale: a number above 0, got '2'"),
        ({"as_workers": 32}, "as_workers: does nothing without a rate"),
        ({"message_scale": 2}, "message_scale: does nothing without a rate"),
        ({"workers_per_node": 1, "node_rate": "1gbit"}, "workers_per_node: a whole number from 2"),
    ],
)
def test_what_is_no_network_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Network(**settings)
