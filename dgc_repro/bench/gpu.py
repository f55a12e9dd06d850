"""The exchange on this machine's GPU: its time and its launches. `selfcheck` compares its values.

make bench ARGS="--only gpu"            needs a GPU
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from functools import partial

import torch

from dgc_repro.bench.alone import Alone
from dgc_repro.bench.counting import triton_counts
from dgc_repro.bench.launches import methods, shapes_of
from dgc_repro.bench.methods import gradients_of
from dgc_repro.bench.rounds import rounds, timed
from dgc_repro.bench.tables import Row, Spread, Table
from dgc_repro.errors import UserError
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.settings import build_compressor, build_policy
from dgc_repro.study.compressing import wait_for

MODEL, CLASSES = "resnet101", 1000
REPEATS, WARMUP = 20, 3
COPY, STEP = "copy", "step"
COLUMNS = {
    "method": "method",
    "step x copy": "step_x",
    "step ms": "step_ms",
    "Triton launches": "launches",
}


def table(quick: bool) -> Table:
    """Of `make bench`. Raises UserError where torch finds no GPU."""
    if not torch.cuda.is_available():
        raise UserError(
            "only: gpu needs a GPU that torch finds (torch.cuda.is_available()); leave it out"
        )
    about = (
        f"{torch.cuda.get_device_name()}; heavy-tailed gradients of ResNet101 (44.5 M values in 314 "
        "tensors), methods as conf/compressor/ has them, layer by layer. Step: one worker's exchange "
        "with nobody, in multiples of a copy of all gradients timed right before; median of "
        f"{REPEATS} pairs (middle half)."
    )
    measure = partial(rows, torch.device("cuda"), REPEATS)
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
    copies = [torch.empty_like(gradient) for gradient in gradients.values()]

    def copy() -> None:
        torch._foreach_copy_(copies, list(gradients.values()))
        wait_for(device)

    made: list[Row] = []
    for name, own in (methods() if cases is None else cases).items():
        config = composed([*base, *own, "policy=fixed"])
        compressor = build_compressor(config, build_policy(config))
        alone = Alone(compressor, gradients, unit=config["exchange"]["unit"])
        found = rounds({COPY: timed(copy), STEP: alone.step}, repeats, WARMUP)
        before, *_ = triton_counts()
        alone.step()
        seconds = found[STEP]["seconds"]
        row = {"method": name, "launches": triton_counts()[0] - before}
        row |= Spread.of(seconds / found[COPY]["seconds"]).columns("step_x")
        made.append(row | Spread.of(1e3 * seconds).columns("step_ms"))
        gc.collect()
    return made
