"""One collective of a run's kind, timed: what `calibrate` asks of every rank."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.wire import Pending, Sizes

ALLREDUCE, ALLGATHER, ALLTOALL, BROADCAST = MEASURED = (
    *("allreduce", "allgather", "alltoall", "broadcast"),
)
WARMUP = 2


def time_collective(
    collective: str, payload_bytes: int, repeats: int, device_type: str = "cpu"
) -> list[float]:
    """Seconds of each repeat on this rank, begun together; ``payload_bytes`` as the ledger counts them."""
    device = (
        torch.device(device_type, torch.cuda.current_device()) if device_type == "cuda" else None
    )
    wire = ProcessGroupWire(device or torch.device("cpu"))
    others = wire.world_size - 1
    float_bytes = torch.float32.itemsize
    if collective == ALLTOALL:
        payload_bytes = max(1, payload_bytes // max(1, others)) * others
    floats = torch.zeros(max(1, payload_bytes // float_bytes), device=wire.device)
    flat = torch.zeros(payload_bytes, dtype=torch.uint8, device=wire.device)
    each = payload_bytes // max(1, others)
    pieces = [0 if rank == wire.rank else each for rank in range(wire.world_size)]

    def begin() -> Pending:
        match collective:
            case "allreduce":
                return wire.sum_(floats)
            case "allgather":
                return wire.gather([flat], "calibrate")[1]
            case "alltoall":
                return wire.all_to_all([flat], [Sizes(pieces, pieces)], "calibrate")[1]
        return wire.broadcast_(flat)

    seconds = []
    for _ in range(WARMUP + repeats):
        _settle(device)
        dist.barrier()
        start = time.perf_counter()
        begin().wait()
        _settle(device)
        seconds.append(time.perf_counter() - start)
    return seconds[WARMUP:]


def _settle(device: torch.device | None) -> None:
    if device is not None:
        torch.cuda.synchronize(device)
