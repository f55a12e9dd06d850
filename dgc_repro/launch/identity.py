"""What makes two runs the same run, and the folder of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import pkgutil
from collections.abc import Container, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from dgc_repro import files
from dgc_repro.errors import UserError
from dgc_repro.names import (
    SAME_VALUE,
    defaults_of_sections,
    published_in,
    with_current_names,
)

PACKAGE = __name__.partition(".")[0]
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
    *(
        ("launch", key)
        for key in ("partition", "account", "qos", "sbatch", "setup", "python", "logs")
    ),
    ("train", "checkpoint_every_epochs"),
    ("train", "reshard"),
)
"""Keys that do not change what is measured (rates and warm-ups: a run's own are in its optimizer and
policy). Wrappers that are not in ``wrap`` are left out too, a network that is not named, `stopping` without a
target, `generalization` that measures nothing, and a whole ``train.steps_share``."""
NO_DEFAULT = object()


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
    """Whether a recorded run is the run of this config. A setting that the record lacks came later: it must
    have its default, that of its component's class or of conf/config.yaml."""
    return _is_same(_kept(recorded), _kept(config), defaults_of_sections())


def _is_same(recorded: Any, config: Any, defaults: Any, key: str = "") -> bool:
    if not isinstance(recorded, Mapping) or not isinstance(config, Mapping):
        return bool(recorded == config) or SAME_VALUE.get(key) == (recorded, config)
    if recorded.keys() - config.keys():
        return False
    target = str(config.get("_target_", ""))
    if config.keys() - recorded.keys() and target.partition(".")[0] == PACKAGE:
        defaults = _class_defaults(target)
    defaults = defaults if isinstance(defaults, Mapping) else {}
    return all(
        _is_same(recorded[name], value, defaults.get(name), f"{key}.{name}" if key else str(name))
        if name in recorded
        else defaults.get(name, NO_DEFAULT) == value
        for name, value in config.items()
    )


@functools.cache
def _class_defaults(target: str) -> dict[str, Any]:
    """The defaults of a component's fields, as a config has them."""
    found = {}
    for field in dataclasses.fields(pkgutil.resolve_name(target)):
        if field.default is not dataclasses.MISSING:
            value = field.default
            found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config that decide the numbers."""
    kept = deepcopy(dict(config))
    if "root" in kept.get("dataset", {}):
        kept["dataset"]["root"] = None  # where the data lies
    for *path, last in WITHOUT_EFFECT:
        node = kept
        for key in path:
            node = node.get(key, {})
        node.pop(last, None)
    if (kept.get("stopping") or {}).get("target") is None:
        kept.pop("stopping", None)
    if str((kept.get("generalization") or {}).get("_target_")).endswith(".Nothing"):
        del kept["generalization"]
    if kept.get("train", {}).get("steps_share") == 1:
        del kept["train"]["steps_share"]
    network = kept.get("network") or {"rate": None, "rates": None}
    if network["rate"] is None and network["rates"] is None:
        kept.pop("network", None)
    if (kept.get("experiment") or {}).get("paper") == "none":
        kept.pop("experiment")  # a name that follows from the other keys (launch/sweep.py)
    kept["wrapper"] = {name: kept.get("wrapper", {}).get(name) for name in kept.get("wrap", [])}
    return kept


def outside(config: Mapping[str, Any]) -> list[str]:
    """The components of a config that are not of this package."""
    return sorted({name for name in _targets(config) if name.partition(".")[0] != PACKAGE})


def _targets(node: Any) -> Iterator[str]:
    """Every ``_target_`` of a config."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield str(node["_target_"])
        for value in node.values():
            yield from _targets(value)


def _source(target: str) -> str | None:
    """The hash of the file that a component of the user's own comes from, so that an edited one makes
    another run; None where there is no file. `RESULTS_VERSION` marks changes of ours."""
    try:
        file = inspect.getsourcefile(pkgutil.resolve_name(target))
        return hashlib.sha256(Path(str(file)).read_bytes()).hexdigest()
    except Exception:  # whatever an import may raise: `component` reports it
        return None


def read_config(path: Path) -> dict[str, Any]:
    """The resolved config of a run folder, from its ``config.yaml``. Raises UserError."""
    try:
        config = files.parsed_yaml(files.text(path))
        if not isinstance(config, dict):
            raise TypeError(f"a mapping, got {type(config).__name__}")
        _kept(config)  # reads what every config has
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"paths.runs: {path} is not a config ({reason}); delete this file, and the command that made "
            "the run writes it again and continues"
        ) from error
    return with_current_names(config)


def run_folder(config: Mapping[str, Any]) -> Path:
    """``runs/<paper>-<artifact>-<row>-<scale>-s<seed>-<hash>``; of a run of your own
    ``runs/<row>-s<seed>-<hash>``, or the folder that the same run has under another name.

    The hash is made with the run. A run that was made before, here or published, is found by its settings
    and keeps its name, also where settings came later that would change its hash.
    """
    experiment, runs = config["experiment"], Path(config["paths"]["runs"])
    is_own, seed, digest = experiment["paper"] == "none", config["seed"], config_hash(config)
    parts = [experiment[key] for key in (("row",) if is_own else ("paper", "artifact", "row"))]
    parts += [] if is_own else [config["scale"]["name"]]
    stem = file_name("-".join([*map(str, parts), f"s{seed}"]))
    new = runs / f"{stem}-{digest}"
    if new.exists():
        return new
    if is_own and (same := sorted(runs.glob(f"*-s{seed}-{digest}"))):
        return same[0]
    if outside(config):
        return new  # its source decides too
    for folder in sorted(runs.glob(f"{stem}-{8 * '?'}")):
        with contextlib.suppress(UserError, OSError):  # also a folder without a config
            if is_same_run(read_config(folder / "config.yaml"), config):
                return folder
    run = None if is_own else published_id(config, stem)
    return runs / run if run else new


def published_id(config: Mapping[str, Any], stem: str) -> str | None:
    """The published run of a paper's config. ``stem``: of its name."""
    place = (config["experiment"]["paper"], config["scale"]["name"])
    folder = published_in(config["paths"]["results"]).joinpath(*map(str, place))
    known = _published(folder, folder.stat().st_mtime_ns) if folder.is_dir() else {}
    alike = (run for run in known if run.rpartition("-")[0] == stem)
    return next((run for run in alike if is_same_run(known[run], config)), None)


@functools.cache
def _published(folder: Path, _changed: int) -> dict[str, dict[str, Any]]:
    """The configs of a pool's runs by id."""
    from dgc_repro.paper import pool  # which takes a second to import

    return pool.configs(folder)


def file_name(text: str) -> str:
    """The text with ``_`` in the place of what a file name had better not contain."""
    return "".join(c if c.isalnum() or c in "-_.=" else "_" for c in text)
