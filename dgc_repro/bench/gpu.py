"""The exchange on this machine's GPU: its time and its launches. `selfcheck` compares its values.

make bench ARGS="--only gpu"            needs a GPU
"""

from __future__ import annotations

import gc
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from dgc_repro.bench.counting import triton_counts
from dgc_repro.bench.launches import methods, shapes_of
from dgc_repro.bench.methods import gradients_of
from dgc_repro.bench.rounds import rounds, timed
from dgc_repro.bench.tables import Row, Spread, Table
from dgc_repro.errors import UserError
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import Link
from dgc_repro.launch.components import build_compressor, build_policy
from dgc_repro.launch.overrides import composed
from dgc_repro.policy.interface import Plan

MODEL, CLASSES = "resnet101", 1000
REPEATS, WARMUP = 20, 3
COPY, STEP = "copy", "step"
COLUMNS = {
    "method": "method",
    "step x copy": "step_x",
    "step ms": "step_ms",
    "Triton launches": "launches",
}


def table(options: Namespace) -> Table:
    """Of `make bench`. Raises UserError where torch finds no GPU."""
    if not torch.cuda.is_available():
        raise UserError(
            "only: gpu needs a GPU that torch finds (torch.cuda.is_available()); leave it out"
        )
    repeats = options.repeats or REPEATS
    given = [f"model.width={options.width}"] if options.width else []
    about = (
        f"{torch.cuda.get_device_name()}; heavy-tailed gradients of ResNet101 (44.5 M values in 314 tensors "
        "at full width), methods as conf/compressor/ has them, layer by layer. Step: one worker's exchange "
        "with nobody, in multiples of a copy of all gradients timed right before; median of "
        f"{repeats} pairs (middle half)."
    )
    measure = partial(rows, torch.device("cuda"), repeats, given)
    return Table("gpu", "On the GPU", about, COLUMNS, measure, 300)


def rows(
    device: torch.device,
    repeats: int,
    overrides: Sequence[str] = (),
    cases: Mapping[str, Sequence[str]] | None = None,
) -> list[Row]:
    """A row a method. ``overrides``: of the model."""
    base = [f"model={MODEL}", *overrides, "scale=none", "policy=fixed", "train.epochs=1"]
    shapes = shapes_of(composed(base), CLASSES)
    gradients = {name: g.to(device) for name, g in gradients_of(shapes, 0).items()}
    copies = {name: torch.empty_like(gradient) for name, gradient in gradients.items()}

    def copy() -> None:
        torch._foreach_copy_(list(copies.values()), list(gradients.values()))
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    made: list[Row] = []
    for name, own in (methods() if cases is None else cases).items():
        config = composed([*base, *own, "policy=fixed"])
        compressor = build_compressor(config, build_policy(config))
        link = Link(SimulatedWire(1, device), Ledger(), Clock(device))
        exchange = GradientExchange(compressor, gradients, link, unit=config["exchange"]["unit"])

        def step(exchange: GradientExchange = exchange) -> None:
            exchange.open(0, copies, Plan(0))  # means are written over them
            exchange.finish()
            exchange.commit()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        found = rounds({COPY: timed(copy), STEP: timed(step)}, repeats, WARMUP)
        before, *_ = triton_counts()
        step()
        seconds = found[STEP]["seconds"]
        row = {"method": name, "launches": triton_counts()[0] - before}
        row |= Spread.of(seconds / found[COPY]["seconds"]).columns("step_x")
        made.append(row | Spread.of(1e3 * seconds).columns("step_ms"))
        gc.collect()
    return made
