"""Ring, tree and recursive halving-doubling allreduce: modelled time, and the size from which a ring wins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from dgc_repro.paper import panels
from dgc_repro.paper.artifact import Artifact, Rows, Shown, drawing, looks_of
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, Values, amount, join, longer, study_of
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
ALGORITHMS = {"ring": "ring", "tree": "tree", "halving_doubling": "halving-doubling"}
ONE_LEVEL = [f"ethernet_{rate}" for rate in ("100mbit", "1gbit", "10gbit", "25gbit", "100gbit")]
TWO_LEVELS = "gcp_v100_32"
"""Networks (conf/network) of one level, and one with nodes that share a link."""
CALLED = {
    **{
        name: f"Ethernet, {rate} Gbit/s"
        for name, rate in zip(ONE_LEVEL, (0.1, 1, 10, 25, 100), strict=True)
    },
    TWO_LEVELS: "nodes of 4 V100",
}
"""The networks in words."""
ROWS = {f"{n}.{a}": f"{CALLED[n]}: {ALGORITHMS[a]}" for n in CALLED for a in ALGORITHMS}
TIME, CROSSOVER = "time of an allreduce", "message size from which a ring is as fast"
SIZES = [(16, 1000), (16, 1_000_000), (16, 100_000_000), (24, 100_000_000), (256, 100_000_000)]
"""Workers and bytes of the table; 24 is no power of two. Ours."""
CROSSOVER_WORKERS = (4, 16, 24, 64, 256)
SHOWN = (("ethernet_1gbit", 64), (TWO_LEVELS, 32))
EQUAL_SHARE = 0.05
"""Times within 5 % of each other are equal. Ours."""
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def place(workers: int, num_bytes: float) -> str:
    """The setting of the frame's lines."""
    return f"{workers} workers, {amount([num_bytes])}"


def crossing(values: Values) -> str:
    """A message size; always: below a byte."""
    if not len(values):
        return "-"
    return "never" if math.isinf(values[0]) else "always" if values[0] < 1 else amount(values)


def seconds(values: Values) -> str:
    """A time in the unit that keeps it at or above one."""
    return amount(values, TIME_UNITS)


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: a row for each algorithm on each network."""
    table = study_of(runs)
    table["row"] = table["network"] + "." + table["algorithm"]
    costs, crossings = (table[table["what"] == what].copy() for what in ("cost", "crossover"))
    places = zip(costs["workers"], costs["bytes"], strict=True)
    costs["setting"] = [place(workers, size) for workers, size in places]
    crossings["setting"] = crossings["workers"].astype(str) + " workers"
    return join(
        longer(costs, {"seconds": (TIME, "s", "modelled")}),
        longer(crossings, {"bytes": (CROSSOVER, "bytes")}),
    )


def _head(shown: Shown) -> list[tuple[str, str]]:
    networks = shown.runs[0].config["study"]["networks"].items()
    described = [
        f"{CALLED.get(name, name)}: {of['rate']}, {of['latency']} ({of['source']})"
        for name, of in networks
    ]
    return [("seconds", "all modelled (network/cost.py)"), ("networks", "; ".join(described))]


def _panel(shown: Shown, network: str, workers: int) -> panels.Panel:
    """Time by size."""
    of = study_of(shown.runs).query(
        "what == 'cost' and network == @network and workers == @workers"
    )
    drawn = [
        panels.means(of[of["algorithm"] == name], "bytes", "seconds", **look.line)
        for name, look in looks_of(ALGORITHMS).items()
    ]
    title, x = f"{CALLED[network]}; {workers} workers", "message size (bytes)"
    return panels.panel(title, *drawn, x=x, y="modelled time (s)", log="xy")


_nodes = Check(
    TIME, f"{TWO_LEVELS}.ring", f"{TWO_LEVELS}.halving_doubling", 1 - EQUAL_SHARE, 1 + EQUAL_SHARE,
    place(16, 100_000_000), ratio=True,
)  # fmt: skip
page = Artifact(
    __file__,
    rows=ROWS,
    numbers=numbers,
    tables={
        "Message size from which a ring is at least as fast": Rows(
            {row: label for row, label in ROWS.items() if not row.endswith(".ring")},
            [Column(f"N = {n}", CROSSOVER, crossing, f"{n} workers") for n in CROSSOVER_WORKERS],
            "than",
        ),
        "Time of an allreduce": Rows(
            ROWS,
            [Column(f"N = {n}: {amount([b])}", TIME, seconds, place(n, b)) for n, b in SIZES],
            "network and algorithm",
        ),
    },
    claims=(WORDS.claim("nodes", _nodes, at=_nodes.setting),),
    figures={
        "allreduce": drawing(
            "Ring, tree and halving-doubling allreduce, modelled",
            lambda shown: [_panel(shown, *of) for of in SHOWN],
            "All times are modelled (network/cost.py); nothing was measured.",
        )
    },
    head=_head,
    alike=(),
    modelled=True,
)
