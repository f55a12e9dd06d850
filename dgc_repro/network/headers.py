"""From the ledger's wire bytes to what an interface counts: headers of Ethernet, IP, TCP and gloo.

The interface counts packets too, so that nothing is assumed of them: each has 66 bytes of headers (Ethernet
14, IPv4 20, TCP 20, its timestamps 12), acknowledgements that travel alone are nothing else, and what the
kernel hands over in one piece for later cutting (segmentation offload) counts as one packet with one
header. Not known are data that TCP has sent twice, and options of selective acknowledgements (12 bytes and
more in packets after a loss); barriers, whose packets have hardly a byte of data, are left out.

gloo sends each message with a header of 48 bytes, after the sender has announced it and the receiver has
said that it waits, 48 bytes each: 144 bytes a message. How many messages a
collective has, a rank, follows from its algorithm (gloo as torch has it): allreduce.cc cuts each rank's
share of a ring in two, and shares over 2 MB in segments of 1 MB; allgather.cc cuts in two, each of the
pieces in which exchange/process_group.py hands over a large gather; alltoallv.cc and broadcast.cc send
each part whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

PACKET_HEADER = 66
PER_MESSAGE = 3 * 48
LARGEST_SEGMENT = 1 << 20
PIECE_BYTES = 1 << 20  # of exchange/process_group.py, which needs torch


def messages(collective: str, workers: int, moved_bytes: float) -> float:
    """Messages that a rank sends in one collective, the mean over ranks, where it moves so many bytes.

    Raises ValueError for a collective that is not known."""
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
