"""Rows ``exchange``: ranks that exchange gradients, against simulated workers."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

COLLECTIVE_SECONDS = 60.0


@contextmanager
def joined(backend: str) -> Iterator[None]:
    """Inside, the ranks of this row are a world of torch.distributed. The first call decides the backend; the
    world lasts as long as the process."""
    if not dist.is_initialized():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            backend,
            init_method=f"file://{os.environ['SELFCHECK_RENDEZVOUS']}",
            rank=int(os.environ["SELFCHECK_RANK"]),
            world_size=int(os.environ["SELFCHECK_RANKS"]),
            timeout=datetime.timedelta(seconds=COLLECTIVE_SECONDS),
        )
    yield
