"""Readings of an interface."""

from __future__ import annotations

import pytest

from dgc_repro.network import counters
from dgc_repro.network.counters import Counters

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
