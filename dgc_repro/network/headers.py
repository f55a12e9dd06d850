"""From the ledger's wire bytes to what an interface counts: headers of Ethernet, IP, TCP and gloo.

Per packet 66 bytes (Ethernet 14, IPv4 20, TCP 20, its timestamps 12) for 1448 bytes of data. Packets
that the kernel hands over in one piece for later cutting (segmentation offload) count one header a
piece. Answers: the receiver acknowledges every other piece with a packet of 66 bytes, unless it has
something to send just then, which it has about half the time when all workers send and receive; taken as
half, which leaves at most 66 / (4 * 1448) = 1.1 % either way of real packets, less of larger pieces.

gloo sends each message with a header of 48 bytes, after the sender has announced it and the receiver has
said that it waits, 48 bytes each in a packet of its own: 3 * (66 + 48) bytes a message. How many messages a
collective has, a rank, follows from its algorithm (gloo as torch has it): allreduce.cc cuts each rank's
share of a ring in two, and shares over 2 MB in segments of 1 MB; allgather.cc cuts in two;
alltoallv.cc and broadcast.cc send each part whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

PACKET_HEADER = 66
SEGMENT = 1448  # bytes of data in a packet of 1514
GLOO_HEADER = 48
PER_MESSAGE = 3 * (PACKET_HEADER + GLOO_HEADER)
LARGEST_SEGMENT = 1 << 20
ACKNOWLEDGED = 2  # pieces by one packet
ALONE = 0.5  # share of acknowledgements that travel alone


def messages(collective: str, workers: int, moved_bytes: float) -> float:
    """Messages that a rank sends in one collective, the mean over ranks, where it moves so many bytes.

    Raises ValueError for a collective that is not known."""
    others = workers - 1
    if collective == "allreduce":
        share = moved_bytes / (2 * others) if others else 0.0
        return 2 * others * max(2, 2 * math.ceil(share / (2 * LARGEST_SEGMENT)))
    known = {"allgather": 2.0 * others, "alltoall": float(others), "broadcast": others / workers}
    if collective not in known:
        raise ValueError(f"collective: one of allreduce, {', '.join(known)}, got {collective!r}")
    return known[collective]


def expected_bytes(
    moved: Mapping[str, float],
    calls: Mapping[str, int],
    workers: int,
    packets_at_once: float = 1.0,
) -> float:
    """What a rank's interface counts as sent, the mean over ranks. ``moved``: wire bytes by collective
    (`Ledger.moved_by_collective`); ``calls``: how many there were; ``packets_at_once``: packets to a
    piece (`lab.packets_at_once`)."""
    total = 0.0
    for collective, size in moved.items():
        number = calls[collective]
        total += size * per_byte(packets_at_once)
        total += PER_MESSAGE * number * messages(collective, workers, size / number)
    return total


def per_byte(packets_at_once: float = 1.0) -> float:
    """Bytes that an interface counts for each byte of data, of long messages in both directions."""
    piece = SEGMENT * packets_at_once
    return 1 + PACKET_HEADER / piece * (1 + ALONE / ACKNOWLEDGED)
