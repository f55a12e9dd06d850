"""The way of one gradient through the code: every call of a function of ours in the backward of one step of
top-k with error feedback under DDP, in which the gradient is exchanged.

    python tests/exchange/hops.py       prints the calls, each indented below its caller

A profiler hook (`sys.setprofile`) counts. The model has one weight, so that a loop over tensors counts once.
One process, gloo; a second rank would change no call. A generator counts each time that it is resumed;
comprehensions do not count, which newer Pythons run inside of their function.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import dgc_repro
from dgc_repro import ErrorFeedback, TopK, attach
from dgc_repro.exchange.hook import wrap

PACKAGE = Path(dgc_repro.__file__).parent
WARMUP_STEPS = 3  # buffers are made, caches filled
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
Call = tuple[int, str, str]
"""Depth, file, function."""


class Calls:
    """Counts calls of functions of the package while it is entered."""

    def __init__(self) -> None:
        self.found: list[Call] = []
        self._depth = 0

    def __enter__(self) -> list[Call]:
        sys.setprofile(self._seen)
        return self.found

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, argument: Any) -> None:
        path, code = Path(frame.f_code.co_filename), frame.f_code
        if event not in ("call", "return") or not path.is_relative_to(PACKAGE):
            return
        if code.co_name in COMPREHENSIONS:
            return
        if event == "call":
            file = str(path.relative_to(PACKAGE))
            self.found.append((self._depth, file, code.co_qualname))
        self._depth += 1 if event == "call" else -1


def calls_of_a_step() -> list[Call]:
    """The calls of one step."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
        try:
            model = wrap(nn.Linear(64, 64, bias=False), torch.device("cpu"))
            exchange = attach(model, ErrorFeedback(TopK(0.1)))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(WARMUP_STEPS + 1):
                optimizer.zero_grad()
                loss = model(torch.ones(2, 64)).square().mean()
                calls = Calls()
                with calls if step == WARMUP_STEPS else torch.enable_grad():
                    loss.backward()
                optimizer.step()
            exchange.detach()
            return calls.found
        finally:
            dist.destroy_process_group()


def counted(calls: list[Call]) -> tuple[int, int, int]:
    """How many calls there are, of how many functions, in how many files."""
    return len(calls), len({call[1:] for call in calls}), len({file for _, file, _ in calls})


if __name__ == "__main__":
    of_a_step = calls_of_a_step()
    for depth, file, function in of_a_step:
        print(f"{'  ' * depth}{file}: {function}")
    print("{} calls of {} functions in {} files".format(*counted(of_a_step)))
