"""Networks as they are written: units, lists, schedules; and readings of an interface."""

from __future__ import annotations

import pytest

from dgc_repro.network import counters
from dgc_repro.network.counters import Counters
from dgc_repro.network.profile import Level, Network
from dgc_repro.network.units import bits_per_second, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100mbit", 1e8), ("2.5gbit", 2.5e9), ("10 kbit", 1e4), ("1200GBIT", 1.2e12), (".5gbit", 5e8)],
)
def test_a_rate_is_read(text: str, expected: float) -> None:
    assert bits_per_second("rate", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("50us", 50e-6), ("1ms", 1e-3), (0, 0.0), ("0us", 0.0)]
)
def test_a_duration_is_read(text: object, expected: float) -> None:
    assert seconds("latency", text) == pytest.approx(expected)


def test_rates_are_one_for_each_worker() -> None:
    network = Network(rates=["1gbit", "100mbit"])
    assert network.worker_rates(2) == [1e9, 1e8]
    assert network.outer_at(0, 2) == Level(1e8, 0.0)
    with pytest.raises(ValueError, match=r"^rates: one for each worker, got 2 for 3 workers"):
        network.worker_rates(3)


def test_levels_and_a_schedule_are_read() -> None:
    nodes = Network("10gbit", "50us", workers_per_node=4, node_rate="100gbit", node_latency="5us")
    assert nodes.inner == Level(1e11, pytest.approx(5e-6))
    schedule = [{"step": 5, "rate": "100mbit"}, {"step": 9, "rate": "1gbit"}]
    assert Network("1gbit", schedule=schedule).changes() == ((5, 1e8), (9, 1e9))
    assert (Network("1gbit").inner, Network("1gbit").changes()) == (None, ())


TEXT = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:     100       2    0    0    0     0          0         0      200       3    0    0
  eth0: 2242798    2205    0    0    0     0          0         0  2242014    2195    0    0
"""


def test_a_line_is_read_and_readings_are_subtracted() -> None:
    reading = counters.parse("eth0", TEXT)
    assert reading == Counters(2242014, 2242798, 2195, 2205)
    assert reading - counters.parse("lo", TEXT) == Counters(2241814, 2242698, 2192, 2203)


def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="^interface: no 'eth9'"):
        counters.parse("eth9", TEXT)


def test_this_process_has_a_loopback() -> None:
    assert counters.read("lo").tx_bytes == counters.read("lo").rx_bytes
