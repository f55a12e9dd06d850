"""The ledger against interfaces: in a lab, what is counted is what was said to be sent, within 2 %."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_rank import METHODS
from labs import need_a_lab

from dgc_repro.exchange import world as workers
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.network.counters import PIECE_BYTES, Counters, handed_over, messages
from dgc_repro.network.lab import Lab
from dgc_repro.train.meter import InterfaceMeter, NoMeter

RANK = Path(__file__).with_name("lab_rank.py")
TIMEOUT_SECONDS = 200
SEGMENT_BYTES = 1514
"""The longest on an interface of 1,500 bytes: with its Ethernet header."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_SECONDS + 20)]


def told_in_a_lab(rates: list[float]) -> dict[str, dict[str, float]]:
    """What rank 0 says of all methods."""
    need_a_lab()
    workers = len(rates)
    with Lab(rates) as lab:
        rendezvous = {
            "WORLD_SIZE": str(workers),
            "MASTER_ADDR": lab.address(0),
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": lab.interface,
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        ranks: list[subprocess.Popen[str]] = [
            lab.popen(
                rank,
                [sys.executable, str(RANK)],
                env=os.environ | rendezvous | {"RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(workers)
        ]
        said = [rank.communicate(timeout=TIMEOUT_SECONDS)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * workers
    told: dict[str, dict[str, float]] = json.loads(said[0])
    return told


@pytest.mark.parametrize(
    ("rates", "within"),
    [
        pytest.param([35e6] * 2, 0.005, id="2 workers, every packet real"),
        pytest.param([1e9] * 4, 0.005, id="4 workers, segmentation offload"),
        # A quick link fills a slow one's queue: TCP sends again what the queue dropped.
        pytest.param([10e9, 35e6], 0.005, id="unequal links"),
    ],
)
def test_ledger_and_counters_agree(rates: list[float], within: float) -> None:
    told = told_in_a_lab(rates)
    assert told.keys() == METHODS.keys()
    for name, metrics in told.items():
        assert metrics["comm/total_wire_bytes"] > 2e6, name  # or overheads would be all there is
        expected = metrics["net/expected_tx_bytes"]
        # TCP sends a segment again where a busy machine answers late: the counter has it twice.
        most = (1 + within) * expected + SEGMENT_BYTES * metrics["sent again"]
        assert (1 - within) * expected <= metrics["net/tx_bytes"] <= most, (name, metrics)
        # All that one sends another receives; each counts when it comes by. In front of a slower link
        # pieces are cut, with a header each.
        cut = 1e-3 if len(set(rates)) == 1 else 0.05
        assert metrics["net/rx_bytes"] == pytest.approx(metrics["net/tx_bytes"], rel=cut), name


class Quiet:
    """One worker among two that says the same."""

    size = 2

    def __init__(self) -> None:
        self.ledger = Ledger()

    def barrier(self, when: str) -> None:
        return

    def share(self, numbers: Any, purpose: str | None) -> list[float]:
        assert purpose is None
        return [2 * float(number) for number in numbers]


def test_what_lies_outside_start_and_stop_is_not_counted_and_sums_survive_a_checkpoint() -> None:
    world: Any = Quiet()
    counted = [0]

    def read(interface: str) -> Counters:
        assert interface == "eth0"
        return Counters(counted[0], 2 * counted[0], counted[0] // 1000, 0)

    def send(size: int) -> None:
        world.ledger.add("gradient", "allgather", size, 2)
        counted[0] += size

    meter = InterfaceMeter(world, "eth0", read)
    send(5_000_000)  # before
    meter.start()
    send(1_000_000)
    meter.stop()
    send(3_000_000)  # a checkpoint, say
    meter.stop()  # stopped already: nothing
    meter.start()
    send(2_000_000)
    meter.stop()
    metrics = meter.metrics()
    assert metrics["net/tx_bytes"] == 3_000_000
    assert metrics["net/rx_bytes"] == 6_000_000
    assert metrics["net/tx_packets"] == 3_000
    assert metrics["net/expected_tx_bytes"] == pytest.approx(
        handed_over({"allgather": 3e6}, {"allgather": 2}, 2) + 66 * 3000
    )

    other = InterfaceMeter(world, "eth0", read)
    other.load_state_dict(meter.state_dict())
    assert other.metrics() == metrics
    assert NoMeter().metrics() == {}


def test_headers_by_message() -> None:
    # A ring of 4: 3 steps twice, each of two parts; shares over 2 MB in parts of 1 MB.
    assert messages("allreduce", 4, 1e6) == 12
    assert messages("allreduce", 4, 6 * (5 << 20)) == 6 * 6
    assert messages("allgather", 4, 3 * PIECE_BYTES) == 6
    assert messages("allgather", 4, 3 * PIECE_BYTES + 3) == 12
    assert PIECE_BYTES == workers.PIECE_BYTES
    assert messages("alltoall", 4, 1e6) == 3
    assert messages("broadcast", 4, 1e6) == 0.75
    with pytest.raises(ValueError, match=r"^collective: one of allreduce, .*, got 'alltoal'"):
        messages("alltoal", 4, 1e6)
    one = handed_over({"allgather": 1e6}, {"allgather": 1}, 2)  # of a piece or less
    assert one == 1e6 + 2 * 3 * 48
    many = handed_over({"allgather": 1e6}, {"allgather": 11}, 2)
    assert many - one == 10 * 2 * 3 * 48
