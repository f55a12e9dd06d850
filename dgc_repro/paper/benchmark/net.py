"""Net speedups: how much sooner a model of full size has trained, with the steps that a setting costs more.

A step is modelled: compute, compress and decompress of a GPU from the published counts (results/bench), the
network by its model. The share of the steps that a setting costs is measured with the benchmark's small model
(equivalent.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dgc_repro.names import results_dir
from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import Network
from dgc_repro.paper import panels, plot
from dgc_repro.paper.artifact import described
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.equivalent import Share
from dgc_repro.paper.benchmark.workloads import DENSE, Workload, artifacts, workloads
from dgc_repro.paper.page import Drawing
from dgc_repro.paper.records import Run
from dgc_repro.paper.setting_names import name_of

GPU = "v100"
BASE = "forward and backward"
"""The line of the counts that has the model itself."""
RATES = tuple(float(rate) for rate in np.logspace(-1, 2, 31))
"""Gbit/s of the figure."""
LATENCY = "25us"


@dataclass(frozen=True)
class FullSize:
    """The full-size model of a workload: its counted steps on `GPU`, by method in ms, and its sizes."""

    name: str
    sizes: speed.Sizes
    compute: float
    exchange: Mapping[str, float]

    @property
    def where(self) -> str:
        """The model with its GPU, in words."""
        return f"{self.name} of {self.sizes.parameters / 1e6:.1f} M parameters on a {GPU.upper()}"


def full_size(workload: Workload) -> FullSize | None:
    """The full-size model of a workload; None where it has none, or nobody has counted it."""
    counts = speed.counts(results_dir()) if workload.full_size else None
    if counts is None:
        return None
    own = counts[counts["model"] == workload.full_size].set_index("method")
    if BASE not in own.index:
        return None
    numbers = {str(key): value for key, value in own.loc[[BASE]].iloc[0].items()}
    taken: pd.Series = own[f"modelled_{GPU}_ms"].drop(BASE).dropna() / 1e3
    return FullSize(
        workload.full_size,
        speed.Sizes(numbers["parameters"], numbers["vectors"], numbers["factors"]),
        numbers[f"modelled_{GPU}_ms"] / 1e3,
        {str(method): float(seconds) for method, seconds in taken.items()},
    )


def step_speedups(work: speed.Workload, model: FullSize, network: Network) -> dict[str, float]:
    """How many times as fast as dense training's a step of each method is, of those that can be predicted."""
    costs, found = Costs(network, speed.WORKERS), {}
    for run in {run.method: run for run in work.runs}.values():
        if run.method in model.exchange and speed.is_predicted(run):
            calls = speed.calls_at(run, speed.WORKERS)
            calls = speed.enlarged(run, calls, work.parameters, work.vectors, model.sizes)
            talk, hidden = speed.talked(run, calls, costs, model.compute)
            found[run.method] = model.compute + model.exchange[run.method] + talk - hidden
    return {method: found[DENSE] / seconds for method, seconds in found.items()}


class Worth(NamedTuple):
    """A setting's cost in percent of the steps, and its net speedups by network ("-" where none is modelled),
    in words."""

    steps: str
    net: Mapping[str, str]


def worth(runs: Sequence[Run], shares: Mapping[str, Share]) -> dict[str, Worth]:
    """What the settings of a workload's runs are worth, the smallest share of the steps first."""
    work = speed.Workload(runs)
    model = full_size(workloads()[runs[0].model])
    faster = {
        title: step_speedups(work, model, network) if model else {}
        for title, network in speed.NETWORKS.items()
    }
    return {
        method: Worth(
            share.text,
            {
                title: share.net_text(of[method]) if method in of else "-"
                for title, of in faster.items()
            },
        )
        for method, share in sorted(shares.items(), key=lambda item: (item[1].mean, item[1].low))
    }


def worth_table(
    runs: Mapping[str, Sequence[Run]], shares: Mapping[str, Mapping[str, Share]]
) -> pd.DataFrame:
    """Return the settings of workloads (``runs``, ``shares``: by name) with the share of the steps that they
    cost, and the net speedups of the full-size model on each network, where there is one."""
    return pd.DataFrame(
        {
            "workload": workloads()[name].title,
            "setting": name_of(method),
            "% of the steps": one.steps,
            **one.net,
        }
        for name, of_name in shares.items()
        for method, one in worth(runs[name], of_name).items()
    )


def stated() -> tuple[str, ...]:
    """The settings of the figure (conf/paper/benchmark.yaml)."""
    return next((tuple(node["net"]) for node in artifacts() if "net" in node), ())


def figure(
    runs: Sequence[Run], workload: Workload, shares: Mapping[str, Share], scale: str
) -> Drawing | None:
    """Describe the figure of net speedup against bandwidth; None without a model of full size or without the
    share of a setting. ``shares``: by method."""
    model = full_size(workload)
    settings = [name for name in stated() if name in shares and shares[name].mean < math.inf]
    if model is None or not settings:
        return None

    def draw(axes: Axes) -> None:
        work = speed.Workload(runs)
        steps = [
            step_speedups(work, model, Network(rate=f"{rate:g}gbit", latency=LATENCY))
            for rate in RATES
        ]
        axes.axhline(1.0, color=plot.BLACK, linewidth=0.8)
        for place, setting in enumerate(name for name in settings if name in steps[0]):
            net = np.array([shares[setting].net(one[setting]) for one in steps])
            color = plot.CYCLE[place % len(plot.CYCLE)]
            axes.plot(RATES, net[:, 0], color=color, label=name_of(setting))
            axes.fill_between(RATES, net[:, 1], net[:, 2], color=color, alpha=0.15, linewidth=0)

    note = (
        f"A step of {model.where} among {speed.WORKERS} workers is modelled, and multiplied by one less "
        "the share of the steps that the setting costs, which is measured with the small model. Bands are "
        "the 95 % intervals of that share alone. The line at 1 is training without compression."
    )
    used = [run for run in runs if run.method in (*settings, DENSE)]
    title = f"Net speedup of {model.name} by bandwidth: step speedup x (1 - share of the steps)"
    return described(
        title, note, used, scale,
        lambda: [panels.panel("", draw, x="Gbit/s a worker", y="net speedup", log="xy")],
        size=(6.4, 4.2), legend=3,
    )  # fmt: skip
