"""What methods lose in the published benchmark: `predict` shows it, `recommend` chooses by it.

A time alone would recommend methods that do not converge. The benchmark's models are slim, so its losses are
extrapolations: `Benchmark.source` says of which model, data, workers and scale they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.launch.paths import option, options
from dgc_repro.paper import facts, frame
from dgc_repro.paper.benchmark import methods
from dgc_repro.paper.records import Run
from dgc_repro.results import published_runs

POOL = "benchmark/small"
WORKLOADS = {"LSTM": "lstm", "Transformer": "transformer"}
"""By the model's class; any other model is compared with the ResNet."""


class Benchmark:
    """The published runs of the workload that is like a model. ``frame``: of their numbers, None without
    runs."""

    def __init__(self, model: str) -> None:
        """``model``: a class name such as LSTM."""
        self.workload = WORKLOADS.get(model, "resnet")
        try:
            published: Sequence[Run] = published_runs(POOL)
        except UserError:  # an installed package comes without results/
            published = ()
        self.runs = [
            run
            for run in published
            if run.model == self.workload and methods.TUNES not in run.method
        ]
        self.dense = next((run for run in self.runs if run.method == methods.DENSE), None)
        self.frame: pd.DataFrame | None = methods.numbers(self.runs) if self.dense else None

    @property
    def source(self) -> str:
        """Where the losses come from, in a sentence."""
        if self.dense is None:
            return f"loss: unknown, results/{POOL} is not here"
        unit = "points of accuracy" if self.workload == "resnet" else "percent of perplexity"
        return (
            f"loss: {unit} against dense training, mean over n seeds, in results/{POOL}: "
            f"{facts.model_text(self.dense)}, {facts.data_text(self.runs)}, "
            f"{facts.world_text(self.dense)}; of another model an extrapolation"
        )

    def losses(self, config: Mapping[str, Any]) -> list[float]:
        """One a seed; none where the method of a run's config was not trained there."""
        rows = (run.row for run in self.runs if _is_same_method(run.config, config))
        row = next(rows, None)
        if row is None or self.frame is None:
            return []
        return frame.of(self.frame, methods.LOSS, row)


def _is_same_method(recorded: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a recorded config trained the method of ``config``. Settings that the record does not have yet
    are defaults. `per_layer` is left out: which vectors go uncompressed is no part of a method's name."""
    theirs, ours = recorded["compressor"], config["compressor"]
    exchange, own = recorded["exchange"], config["exchange"]
    return (
        _times_fewer(theirs) == _times_fewer(ours)
        and _same(theirs, ours, "compressor", but=("factor", "density"))
        and _wrappers(recorded) == _wrappers(config)
        and all(
            _same(
                recorded["wrapper"].get(name, {}), config["wrapper"].get(name, {}), "wrapper", name
            )
            for name in _wrappers(config)
        )
        and _alike(recorded["policy"], config["policy"], ("_target_", "field", "values", "rungs"))
        and _alike(recorded["optimizer"], config["optimizer"], ("_target_", "momentum"))
        and recorded["train"].get("local_steps", 1) == config["train"]["local_steps"]
        and _alike(exchange, own, ("aggregation", "unit"))
    )


def _same(
    one: Mapping[str, Any],
    other: Mapping[str, Any],
    group: str,
    name: str = "",
    but: Sequence[str] = (),
) -> bool:
    """Whether all settings are equal. A setting that one of them lacks has the default of the YAML ``name``,
    by default that of the ``_target_``'s module."""
    name = name or str(one["_target_"]).split(".")[-2]
    node = option(group, name) if name in options(group) else {}
    usual = node.get(group, node)
    keys = {*one, *other} - {*but}
    return all(one.get(key, usual.get(key)) == other.get(key, usual.get(key)) for key in keys)


def _alike(one: Mapping[str, Any], other: Mapping[str, Any], keys: Sequence[str]) -> bool:
    return all(one.get(key) == other.get(key) for key in keys)


def _times_fewer(compressor: Mapping[str, Any]) -> float | None:
    """A sparsifier's factor, 100 where none is given; None for another compressor."""
    factor, density = compressor.get("factor"), compressor.get("density")
    if density:
        return round(1 / float(density), 6)
    return round(float(factor or 100), 6) if "factor" in compressor else None


def _wrappers(config: Mapping[str, Any]) -> list[str]:
    return [name for name in config["wrap"] if name != "per_layer"]
