"""The collectives of a run, timed by live ranks: for `calibrate` and for validate_network."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from dgc_repro.bench.world import everyone, is_first
from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.wire import Pending, Sizes
from dgc_repro.network.fit import Point

ALLREDUCE, ALLGATHER, ALLTOALL, BROADCAST = MEASURED = (
    *("allreduce", "allgather", "alltoall", "broadcast"),
)
WARMUP = 2
FEWEST = 3
FEWEST_SIZES = 2  # of a collective, for a line through them
Timed = Callable[[str, int, int], list[float]]
"""(collective, payload bytes, repeats) -> seconds of each repeat."""


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


def slowest(
    collective: str, payload_bytes: int, repeats: int, device_type: str = "cpu"
) -> list[float]:
    """Seconds of each repeat of the slowest rank; called by all ranks."""
    by_rank = everyone(time_collective(collective, payload_bytes, repeats, device_type))
    return [max(repeat) for repeat in zip(*by_rank, strict=True)]


def measure(sizes: Sequence[int], repeats: int, seconds: float, timed: Timed) -> list[Point]:
    """The median of each collective and size. ``seconds``: for all repeats of a size; a size of which three
    would take longer is left out, and larger ones too, but not the first two."""
    points = []
    for collective in MEASURED:
        slope = 0.0  # seconds a byte, of the last size: of the first one that is mostly latency
        for place, size in enumerate(sizes):
            if place >= FEWEST_SIZES and FEWEST * slope * size > seconds:
                break
            times = timed(collective, size, 1)
            left = min(repeats, max(FEWEST, int(seconds / max(times[0], 1e-6)))) - 1
            if left >= 1:
                times = [*times, *timed(collective, size, left)]
            took = statistics.median(times)
            slope = took / size
            points.append(Point(collective, size, took))
            if is_first():
                shown = f"  {collective} {size:>10,} B  {1e3 * took:10.3f} ms  ({len(times)})"
                print(shown, flush=True)
    return points
