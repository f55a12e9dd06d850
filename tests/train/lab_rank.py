"""A rank in a lab: exchanges of recorded sizes, the interface read beside the ledger (test_meter.py)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from dgc_repro import Dense, ErrorFeedback, PowerSGD, TopK, Uniform
from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.aggregation import aggregated
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.train.meter import InterfaceMeter

STEPS = 2
SMALL, LARGE = (300, 1000), (2000, 2000)
METHODS: dict[str, tuple[Compressor, str, tuple[int, int]]] = {
    "dense": (Dense(), "gather", SMALL),
    "top-k": (ErrorFeedback(TopK(density=0.05)), "gather", LARGE),
    "4-bit": (ErrorFeedback(Uniform(bits=4)), "gather", LARGE),
    "PowerSGD": (PowerSGD(rank=64), "gather", LARGE),
    "top-k, sharded": (TopK(density=0.05), "sharded", LARGE),
    "4-bit, sharded": (Uniform(bits=4), "sharded", LARGE),
}
"""By name: method, aggregation, shape of the tensor: about a megabyte of payload a step."""


def segments_sent_again() -> int:
    """TCP segments that the kernel has sent twice in this rank's network namespace."""
    lines = Path("/proc/self/net/snmp").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def measured(method: Compressor, aggregation: str, shape: tuple[int, int]) -> dict[str, float]:
    """What some steps of a method have sent, by ledger and by counter, the mean over ranks."""
    world = World()
    exchange = Exchange(aggregated(method, aggregation), {"w": torch.empty(shape)}, world, seed=1)
    meter = InterfaceMeter(world, "eth0")
    source = torch.Generator().manual_seed(dist.get_rank())
    meter.start()
    before = segments_sent_again()
    for _ in range(STEPS):
        gradient: Tensor = torch.randn(shape, generator=source)
        world.share([0.0, 1.0])
        exchange.average([{"w": gradient}])
    meter.stop()
    again = torch.tensor([segments_sent_again() - before], dtype=torch.float64)
    dist.all_reduce(again)
    return (
        world.ledger.metrics()
        | meter.metrics()
        | {"sent again": again.item() / dist.get_world_size()}
    )


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {name: measured(*settings) for name, settings in METHODS.items()}
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)  # as launch/worker.py: gloo may abort a process that ends in Python's own way


if __name__ == "__main__":
    main()
