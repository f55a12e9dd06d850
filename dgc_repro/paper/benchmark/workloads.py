"""The benchmark's workloads, as conf/paper/benchmark.yaml states them: metric, margin, full model."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from dgc_repro.names import conf_dir, papers_in

ACCURACY = "accuracy_percent"


class Workload(NamedTuple):
    """What is judged of a workload.

    metric     of the last test, such as ``perplexity``
    margin     of equivalence: points of accuracy, or percent of another metric
    full_size  the model of results/bench that the workload's model is a slim version of; empty: none
    """

    title: str
    metric: str
    margin: float
    full_size: str = ""

    @property
    def is_difference(self) -> bool:
        """Whether a loss is a difference in points; else it is a ratio in percent."""
        return self.metric == ACCURACY

    @property
    def unit(self) -> str:
        """Of a loss against dense training."""
        return "points" if self.is_difference else "%"

    @property
    def unit_in_words(self) -> str:
        """The unit with what it is a part of."""
        return "points of accuracy" if self.is_difference else f"% of {self.metric}"

    @property
    def heading(self) -> str:
        """The metric's heading in a table."""
        return "accuracy, %" if self.is_difference else self.metric


@functools.cache
def artifacts() -> tuple[Mapping[str, Any], ...]:
    """The benchmark's artifacts, in the order of their names."""
    stated = papers_in(conf_dir())["benchmark"]["artifact"]
    return tuple(stated[name] for name in sorted(stated))


@functools.cache
def workloads() -> dict[str, Workload]:
    """The workloads of all artifacts by name, in the order in which pages show them."""
    stated = (item for node in artifacts() for item in node.get("workloads", {}).items())
    return {name: Workload(**settings) for name, settings in stated}
