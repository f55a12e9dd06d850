"""What an interface has counted, and what the ledger's wire bytes become there: headers of TCP and of gloo.

The interface counts packets too, so that nothing is assumed of them: each has 66 bytes of headers (Ethernet
14, IPv4 20, TCP 20, its timestamps 12), and what the kernel hands over in one piece for later cutting
(segmentation offload) counts as one packet with one header. Not included are retransmissions, options of
selective acknowledgements (12 bytes and more in packets after a loss), and barriers, whose packets have
hardly a byte of data.

gloo sends each message with a header of 48 bytes, after the sender has announced it and the receiver has
said that it waits, 48 bytes each: 144 bytes a message. How many messages a collective has, a rank, follows
from its algorithm (gloo as torch has it): allreduce.cc cuts each rank's share of a ring in two, and shares
over 2 MB in segments of 1 MB; allgather.cc cuts in two, each of the pieces in which
exchange/process_group.py hands over a large gather; alltoallv.cc and broadcast.cc send each part whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

# sysfs shows the interfaces of the namespace it was mounted in, not the reader's own.
OF_THIS_PROCESS = "/proc/self/net/dev"
PACKET_HEADER = 66
PER_MESSAGE = 3 * 48
LARGEST_SEGMENT = 1 << 20
PIECE_BYTES = 1 << 20  # of exchange/world.py, which needs torch


@dataclass(frozen=True)
class Counters:
    """Sums since the interface was made, link layer included."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int

    def __sub__(self, earlier: Self) -> Counters:
        return Counters(*(a - b for a, b in zip(astuple(self), astuple(earlier), strict=True)))


def read(interface: str, path: str = OF_THIS_PROCESS) -> Counters:
    """An interface of this process's own namespace. Raises ValueError where there is none."""
    return parse(interface, Path(path).read_text(encoding="ascii"))


def parse(interface: str, text: str) -> Counters:
    """An interface's line of ``/proc/net/dev``. Raises ValueError where there is none."""
    for line in text.splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            fields = [int(number) for number in numbers.split()]
            return Counters(
                tx_bytes=fields[8], rx_bytes=fields[0], tx_packets=fields[9], rx_packets=fields[1]
            )
    raise ValueError(f"interface: no {interface!r} in this network namespace")


def messages(collective: str, workers: int, moved_bytes: float) -> float:
    """Messages that a rank sends in one collective, the mean over ranks, where it moves so many bytes.
    Raises ValueError for an unknown collective."""
    others = workers - 1
    if collective == "allreduce":
        share = moved_bytes / (2 * others) if others else 0.0
        return 2 * others * max(2, 2 * math.ceil(share / (2 * LARGEST_SEGMENT)))
    pieces = max(1, math.ceil(moved_bytes / (others * PIECE_BYTES))) if others else 1
    known = {
        "allgather": 2.0 * others * pieces,
        "alltoall": float(others),
        "broadcast": others / workers,
    }
    if collective not in known:
        raise ValueError(f"collective: one of allreduce, {', '.join(known)}, got {collective!r}")
    return known[collective]


def handed_over(moved: Mapping[str, float], calls: Mapping[str, int], workers: int) -> float:
    """Bytes that a rank hands over to TCP, the mean over ranks: wire bytes and gloo's headers.

    ``moved``: wire bytes by collective (`Ledger.moved_by_collective`); ``calls``: how many there were."""
    return sum(
        size
        + PER_MESSAGE * calls[collective] * messages(collective, workers, size / calls[collective])
        for collective, size in moved.items()
    )
