"""``optimized_metric``: the numbers of a finished run that a search optimizes (``hydra/sweeper=optuna``).

A name is a number of the last epoch, such as ``validation/accuracy_percent``. With ``@target`` behind it, it
is that number at the end of the first epoch that reaches ``stopping.target``, infinite where no epoch does:
``comm/payload_bytes@target`` are the payload bytes that reach a stated accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.exchange.clock import SPANS
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.launch.components import component
from dgc_repro.launch.networks import named_network
from dgc_repro.launch.ranks import RunFailed
from dgc_repro.launch.typed import made, nearest
from dgc_repro.paper.records import Run, read_run
from dgc_repro.train.stopping import Stopping

KEY, AT_TARGET = "optimized_metric", "@target"
PARTS = ("train", "validation", "test")
EVERY_RUN = (
    *("epoch", "step", "weights/change_norm", "time/train_seconds", *Ledger().metrics()),
    *(f"time/{span}_ms" for span in SPANS),
    *(f"{part}/{name}" for part in PARTS for name in ("loss", "accuracy_percent")),
)
OF_KIND = {
    "images": ("validation/top5_percent", "test/top5_percent"),
    "words": tuple(f"{part}/perplexity" for part in PARTS),
}
MODELLED = tuple(
    f"time/modelled_{name}" for name in ("seconds", "communicate_ms", "communicate_seconds")
)


def objectives(metric: Any, config: Mapping[str, Any]) -> list[str]:
    """The names in ``optimized_metric`` of a run with this config; none for null. Raises UserError for what
    such a run does not record."""
    names = metric if isinstance(metric, list) else [] if metric is None else [metric]
    if not all(isinstance(name, str) for name in names) or names == metric == []:
        like = "validation/accuracy_percent or [test/loss,comm/payload_bytes]"
        raise UserError(f"{KEY}: a name or a list of names, such as {like}, got {metric!r}")
    kind = getattr(component(config["dataset"], "dataset"), "gives", "images")
    known = (*EVERY_RUN, *OF_KIND[kind])
    for name in names:
        plain = name.removesuffix(AT_TARGET)
        if plain in MODELLED:
            if named_network(config) is None:
                raise UserError(f"{KEY}: {plain} needs a network, such as network=ethernet_1gbit")
        elif plain not in known:
            raise UserError(f"{KEY}: no run records {plain!r}; {nearest(plain, known)}")
        if plain != name and config["stopping"]["target"] is None:
            raise UserError(f"{KEY}: {name} needs stopping.target, got null; give one")
    return names


def measured(names: Sequence[str], folder: Path) -> float | list[float] | None:
    """The numbers of a finished run; one number alone. Raises UserError for one that the run has not
    recorded, RunFailed for one that is no number."""
    if not names:
        return None
    run = read_run(folder)
    values = [_value(run, name) for name in names]
    return values if len(values) > 1 else values[0]


def _value(run: Run, name: str) -> float:
    plain = name.removesuffix(AT_TARGET)
    value = run.last(plain)
    if plain != name:
        stopping = made(Stopping, run.setting("stopping"), "stopping")
        reached = [stopping.is_reached(dict(epoch)) for _, epoch in run.epochs.iterrows()]
        value = next(iter(run.epochs.loc[reached, plain]), math.inf)
    if math.isnan(value):
        raise RunFailed(f"{name} is not a number: the run diverged")
    return float(value)
