"""What makes two runs the same run: a hash of the resolved config, and the folder it names."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import pkgutil
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dgc_repro.errors import UserError
from dgc_repro.names import with_current_names, with_first_names

RESULTS_VERSION = 1
"""Raised when a fix changes numbers: runs of an older version are not taken for finished."""

WITHOUT_EFFECT = (
    ("sink",),
    ("paths",),
    ("scale", "seeds"),
    ("scale", "rates"),
    ("scale", "warmup"),
    ("launch", "timeout_seconds"),
    ("launch", "start_timeout_seconds"),
    ("exchange", "check"),
    ("train", "checkpoint_every_epochs"),
    ("train", "reshard"),
)
"""Keys that do not change what is measured (rates and warm-ups: a run's own are in its optimizer and
policy). Wrappers that are not in ``wrap`` are left out too, a network that is not named, `stopping` without a
target, and `generalization` that measures nothing."""
ADDED = (
    ("model", "blocks", [3, 4, 23, 3], ""),
    ("network", "as_workers", None, ""),
    ("network", "message_scale", 1.0, ""),
    ("compressor", "values", "fp32", ".RandomK"),
    ("policy", "ladder", None, ".Probed"),
    ("goal", "every_steps", None, ""),
    ("model", "low_rank", {"from_epoch": None, "rank_ratio": 0.25, "keep_first": 1}, ""),
    ("wrapper.error_feedback", "decay", 1.0, ""),
    ("schedule", "last", 0.0, ".Cosine"),
    ("train", "label_smoothing", 0.0, ""),
    ("optimizer", "norm_bias_factor", 1.0, ""),
    ("optimizer", "exempt_1d", False, ".Adam"),
    ("dataset", "reading", "columns", ""),
    ("dataset", "epoch_size", None, ""),
    ("train", "local_steps", 1, ""),
    ("train", "outer_lr", 0.7, ""),
    ("train", "outer_momentum", 0.9, ""),
)
"""Settings that came later, with the value that every run had before: no other run for it. Last, how the
``_target_`` ends of the components that had no such setting before."""


DEFAULTS = {
    "exchange": {"combine": "gather", "junction": "after_backward"},
    "launch": {"workers_per_node": None},
    "train": {"compute_ms": None, "profile": False, "step_time": "measured"},
}
"""Neutral values of settings that are no component's, for records that lack them."""
REVISED = (
    *("adaqs.AdaQS", "scadles.ScaDLES", "saturation.Saturation", "scaling.Scaling"),
    "onebit_adam.OneBitAdam",
)
"""Components that compute other numbers than they did under the same settings, since `RESULTS_VERSION`: ends
of their ``_target_``. Their runs are others than before; all others keep their hash."""


def config_hash(config: Mapping[str, Any], importable: Container[str] | None = None) -> str:
    """Eight hex digits of what decides the numbers: settings, and the source of components outside this
    package, which are imported. ``importable``: import no others than these."""
    kept = _kept(config)
    targets = [name for name in outside(kept) if importable is None or name in importable]
    if sources := {target: digest for target in targets if (digest := _source(target))}:
        kept["sources"] = sources
    text = json.dumps([RESULTS_VERSION, kept], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def is_same_run(recorded: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a recorded run, perhaps older than some settings, is the run of this config. A setting that the
    record lacks must have its neutral value: the default of its component's class, else of `DEFAULTS`."""
    return _agree(_kept(recorded), _kept(config), DEFAULTS)


def _agree(recorded: Any, config: Any, defaults: Any) -> bool:
    if not isinstance(recorded, Mapping) or not isinstance(config, Mapping):
        return bool(recorded == config)
    target = str(config.get("_target_", ""))
    if target.partition(".")[0] == __name__.partition(".")[0]:
        fields = dataclasses.fields(pkgutil.resolve_name(target))
        defaults = {field.name: field.default for field in fields}
    defaults = defaults if isinstance(defaults, Mapping) else {}
    return recorded.keys() <= config.keys() and all(
        _agree(recorded[key], value, defaults.get(key))
        if key in recorded
        else key in defaults and defaults[key] == value
        for key, value in config.items()
    )


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config that decide the numbers, by their first names."""
    kept = with_first_names(config)
    if "root" in kept.get("dataset", {}):
        kept["dataset"]["root"] = None  # where the data lies
    for *path, last in WITHOUT_EFFECT:
        node = kept
        for key in path:
            node = node.get(key, {})
        node.pop(last, None)
    for group, key, before, of in ADDED:
        node = kept
        for part in group.split("."):
            node = node.get(part) or {}
        if key in node and node[key] == before and str(node.get("_target_", "")).endswith(of):
            del node[key]
    if (kept.get("goal") or {}).get("target") is None:
        kept.pop("goal", None)
    if str((kept.get("generalization") or {}).get("_target_")).endswith(".Nothing"):
        del kept["generalization"]
    network = kept.get("network") or {"rate": None, "rates": None}
    if network["rate"] is None and network["rates"] is None:
        kept.pop("network", None)
    if (kept.get("experiment") or {}).get("paper") == "none":
        kept.pop("experiment")  # a name that follows from the other keys (launch/sweep.py)
    kept["wrapper"] = {name: kept.get("wrapper", {}).get(name) for name in kept.get("wrap", [])}
    parts = [kept.get("policy"), kept.get("study"), *kept["wrapper"].values()]
    if any(str((part or {}).get("_target_")).endswith(REVISED) for part in parts):
        kept["revision"] = 2
    return kept


def outside(config: Mapping[str, Any]) -> list[str]:
    """The components of a config that are not of this package."""
    package = __name__.partition(".")[0]
    return sorted({name for name in _targets(config) if name.partition(".")[0] != package})


def _targets(node: Any) -> Iterator[str]:
    """Every ``_target_`` of a config."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield str(node["_target_"])
        for value in node.values():
            yield from _targets(value)


def _source(target: str) -> str | None:
    """The hash of the file that a component of the user's own comes from, so that an edited one makes
    another run; None where there is no file. `RESULTS_VERSION` and `REVISED` mark changes of ours."""
    try:
        file = inspect.getsourcefile(pkgutil.resolve_name(target))
        return hashlib.sha256(Path(str(file)).read_bytes()).hexdigest()
    except Exception:  # whatever an import may raise: `component` reports it
        return None


def read_config(path: Path) -> dict[str, Any]:
    """The resolved config of a run folder, from its ``config.yaml``. Raises UserError."""
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise TypeError(f"a mapping, got {type(config).__name__}")
        config_hash(config, importable=())  # reads what every config has
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise UserError(
            f"paths.runs: {path} is not a config ({reason}); delete this file, and the command that made "
            "the run writes it again and continues"
        ) from error
    return with_current_names(config)


def run_folder(config: Mapping[str, Any]) -> Path:
    """``runs/<paper>-<artifact>-<row>-<scale>-s<seed>-<hash>``; of a run of your own
    ``runs/<row>-s<seed>-<hash>``, or the folder that the same run has under another name."""
    experiment, runs = config["experiment"], Path(config["paths"]["runs"])
    end = [f"s{config['seed']}", config_hash(config)]
    if experiment["paper"] == "none":
        parts = [experiment["row"], *end]
        if same := sorted(runs.glob(f"*-{'-'.join(end)}")):
            return same[0]
    else:
        parts = [*(experiment[key] for key in ("paper", "artifact", "row"))]
        parts += [config["scale"]["name"], *end]
    return runs / file_name("-".join(str(part) for part in parts))


def file_name(text: str) -> str:
    """The text with ``_`` in the place of what a file name had better not contain."""
    return "".join(c if c.isalnum() or c in "-_.=" else "_" for c in text)
