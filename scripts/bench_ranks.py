"""Two gloo ranks on loopback that do a benchmark's work together (launch/replay.py has the processes)."""

from __future__ import annotations

import site
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dgc_repro.launch.replay import Ranks

WORLD_SIZE = 2


def on_ranks(function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """What rank 0 says; every rank calls the function, which is one of scripts/. Raises RanksFailed."""
    with Ranks(WORLD_SIZE) as ranks:
        ranks.ask("call", site.addsitedir, str(Path(__file__).resolve().parent))
        answer, *_ = ranks.ask("call", function, *arguments, seconds=seconds)
        return answer
