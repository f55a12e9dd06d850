"""One part of an artifact that is computed and not trained: a component in, rows out.

The record is a run folder like any other, with ``rows.csv`` in the place of metrics. A part whose study
takes something of a model (its tensors, gradients, compress times) is composed like a run and has that
made by launch/study_inputs.py; any other part has nothing but its seed and its settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dgc_repro.errors import UserError
from dgc_repro.launch import environment
from dgc_repro.launch.build import validate
from dgc_repro.launch.components import component
from dgc_repro.launch.measure import Computed, computed_once
from dgc_repro.launch.paths import option, options
from dgc_repro.launch.single import scale_line
from dgc_repro.launch.study_inputs import recorded
from dgc_repro.launch.typed import nearest
from dgc_repro.study.given import NOTHING, TIMES, Study

STUDY = "study"
NETWORKS = "networks"
ROWS_FILE = "rows.csv"


def study_config(config: dict[str, Any], given: Sequence[str] = ()) -> Path:
    """Compute unless it is done, and return the run folder. ``config``: seed, scale, experiment, paths
    and ``study``; of a study that takes something of a model, a whole run's.

    Raises UserError.
    """
    study = build_study(config[STUDY])
    plain = {key: value for key, value in config.items() if key != STUDY}
    if study.takes != NOTHING:
        validate(plain)
        print(scale_line(plain), flush=True)

    def computed() -> Computed:
        busy = environment.busy_cores() if study.takes == TIMES else math.nan
        made: tuple[Any, ...] = ()
        facts: dict[str, Any] = {"data": "none"}
        if study.takes != NOTHING:
            handed, facts = recorded(study.takes, plain, study)
            made = (handed,)
        try:
            rows = study.run(config["seed"], *made)
        except ValueError as error:
            raise UserError(f"{_place(config[STUDY])}.{error}") from error
        here = environment.describe(torch.device("cpu"), "none", 1, facts.pop("data"))
        if study.takes == TIMES:
            here |= {"busy_cores": busy, "threads_per_worker": facts.pop("threads")}
        return rows, here, facts

    return computed_once(config, ROWS_FILE, computed)


def build_study(node: Mapping[str, Any]) -> Study:
    """The study of a node that `with_networks` has seen. Raises UserError naming the key."""
    place = _place(node)
    more = {}
    if NETWORKS in node:
        more[NETWORKS] = {
            name: component(inner, f"{place}.{NETWORKS}.{name}")
            for name, inner in node[NETWORKS].items()
        }
    settings = {key: value for key, value in node.items() if key != "part"}
    study: Study = component(settings, place, **more)
    return study


def with_networks(node: dict[str, Any]) -> dict[str, Any]:
    """The node with its networks written out, each as its file in conf/network/ has it, so that the
    record says all that was assumed. Raises UserError for a name that is none."""
    if NETWORKS not in node or isinstance(node[NETWORKS], Mapping):
        return node
    key = f"{_place(node)}.{NETWORKS}"
    names = node[NETWORKS]
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise UserError(f"{key}: a list such as [ethernet_1gbit], got {names!r}")
    known = options("network")
    known.remove("none")
    found = {}
    for name in names:
        if name not in known:
            raise UserError(f"{key}: no network {name!r}; {nearest(str(name), known)}")
        found[name] = option("network", name)
    return {**node, NETWORKS: found}


def _place(node: Mapping[str, Any]) -> str:
    """Where the node stands in the artifact's file."""
    return f"{STUDY}.{node['part']}"
