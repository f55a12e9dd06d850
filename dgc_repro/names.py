"""Where the config files lie, the files of papers, git in this checkout, and keys and values that were
renamed or are gone. Records written before have the first names. Functions that read YAML import its library,
which only the extra ``repro`` installs: `conf_dir` works without it."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import subprocess
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from dgc_repro.errors import UserError

PAPERS = "dgc_repro.papers"
"""The group of entry points by which other packages bring papers: name of the paper, its package."""
_PACKAGE = Path(__file__).resolve().parent
FIRST_KEYS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("stopping",): ("goal",),
    ("exchange", "overlap"): ("exchange", "junction"),
    ("exchange", "aggregation"): ("exchange", "combine"),
}
"""The first name of each renamed key."""
FIRST_VALUES: dict[tuple[str, ...], dict[Any, Any]] = {
    ("exchange", "overlap"): {False: "after_backward", True: "per_bucket"},
    ("exchange", "aggregation"): {"sharded": "scatter"},
    ("policy", "gain"): {"energy": "error_fed"},
}
"""The first name of each renamed value, by the key's new name."""
SAME_VALUE = {"train.precision": ("bf16", "half")}
"""By key, a recorded value and the value of today that is the same run: recipes named bf16 before they left
the choice between bf16 and fp16 to the device."""
GONE: dict[tuple[str, ...], tuple[Any, str]] = {
    ("exchange", "check"): (
        False,
        "TORCH_DISTRIBUTED_DEBUG=DETAIL compares what ranks are about to send",
    ),
    ("compressor", "indices"): ("auto", "places always travel in the coding of the fewest bytes"),
    ("compressor", "values"): ("fp32", "values of chosen entries always travel as float32"),
    ("launch", "workers_per_node"): (None, "dgc_repro.attach averages inside nodes, docs/fsdp.md"),
    ("compressor", "feedback"): (
        "own",
        "error feedback is the paper's, with a worker's own factors",
    ),
}
"""Keys that are no more: the value that did nothing, and what there is instead. A record with this value is
the run of a config without the key. With another value it is no run of today."""


def conf_dir() -> Path:
    """The folder with ``config.yaml`` and the groups: in the wheel, or beside the package in a checkout."""
    for candidate in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise FileNotFoundError(f"no conf/ in {_PACKAGE} or beside it: the installation is incomplete")


def results_dir() -> Path:
    """The folder of the published results: in the wheel, or beside the package in a checkout."""
    packed = _PACKAGE / "published"
    return packed if packed.is_dir() else _PACKAGE.parent / "results"


def published_in(stated: str) -> Path:
    """The folder from which published runs are read: the one that ``paths.results`` states, or, where that
    does not exist, as beside an installed wheel, the package's own."""
    folder = Path(stated).absolute()
    return folder if folder.is_dir() else results_dir()


def installed_papers() -> dict[str, str]:
    """The package of each paper that an installed package brings; of two with one name, the one that Python
    finds first."""
    return _papers_of(importlib.metadata.entry_points)


@functools.cache  # Python reads a file of every installed package, in 10 ms
def _papers_of(entry_points: Callable[..., Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for point in entry_points(group=PAPERS):
        found.setdefault(point.name, point.value)
    return found


def papers_in(conf: Path) -> dict[str, dict[str, Any]]:
    """The files ``paper/<paper>.yaml`` of a folder of configs. Raises UserError for one that is no YAML."""
    files = sorted((conf / "paper").glob("*.yaml"))
    return {path.stem: _sections(path, path.stat().st_mtime_ns) for path in files}


@functools.cache
def _sections(path: Path, _changed: int) -> dict[str, Any]:
    """A paper's ``artifact``, the strings in ``runs``, and members of config groups by group. A member of
    ``scale`` has its name and its family."""
    import yaml

    try:
        found = yaml.load(
            path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except yaml.YAMLError as error:
        raise UserError(f"{path}: is no YAML ({' '.join(str(error).split())})") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: has sections such as artifact and experiment, got {found!r}")
    for member, node in found.get("scale", {}).items():
        family, _, name = member.rpartition("/")
        node["scale"] = {"name": name, "family": family, **node["scale"]}
    sections: dict[str, Any] = found
    return sections


def scale_of(family: str, name: str) -> dict[str, Any] | None:
    """What a scale sets, in ``conf/scale/`` or in a paper's file. None where it is not stated."""
    import yaml

    member, conf = f"{family}/{name}".strip("/"), conf_dir()
    for sections in papers_in(conf).values():
        if member in sections.get("scale", {}):
            return dict(sections["scale"][member])
    path = conf / "scale" / f"{member}.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))) if path.is_file() else None


@functools.cache
def defaults_of_sections() -> dict[str, Any]:
    """The settings of a run's sections that are no component's, as the files of conf/ have them."""
    import yaml

    files = (conf_dir() / f"{name}.yaml" for name in ("config", "base", "launch/local"))
    config, base, launch = (yaml.safe_load(file.read_text(encoding="utf-8")) for file in files)
    return {**config, **base, "launch": launch}


@functools.cache
def defaults_of_component(target: str) -> dict[str, Any]:
    """The defaults of a component's settings that are constants, read from the source of its class and of its
    bases: importing it would import torch. Empty outside of this package."""
    module, _, name = target.rpartition(".")
    if module.partition(".")[0] != _PACKAGE.name:
        return {}
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a record names a module that is no more
        return {}
    if spec is None or spec.origin is None:
        return {}
    found: dict[str, Any] = {}
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        match node:
            case ast.ImportFrom(module=str(other)) if any(one.name == name for one in node.names):
                return defaults_of_component(f"{other}.{name}")
            case ast.ClassDef(name=own) if own == name:
                for base in node.bases:
                    if isinstance(base, ast.Name):
                        found |= defaults_of_component(f"{module}.{base.id}")
                for line in node.body:
                    match line:
                        case ast.AnnAssign(target=ast.Name(id=key), value=ast.expr() as value):
                            with contextlib.suppress(ValueError):
                                found[key] = ast.literal_eval(value)
    return found


def default_of(key: str) -> Any:
    """The value of a dotted key of a section in the files of conf/; None where a component has the key."""
    group, _, name = key.partition(".")
    section = defaults_of_sections().get(group)
    return section.get(name) if name and isinstance(section, dict) else None


def git(command: str) -> str:
    """The output of git in the package's own checkout; empty where there is none."""
    try:
        done = subprocess.run(
            ["git", *command.split()],
            cwd=_PACKAGE,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def renamed(key: str) -> str:
    """A clause that names the new key in the place of a dotted first one, or says what there is in the place
    of one that is gone; empty of another key."""
    if tuple(key.split(".")) in GONE:
        return f"it is no more: {GONE[tuple(key.split('.'))][1]}"
    for new, first in FIRST_KEYS.items():
        old = ".".join(first)
        if key == old or key.startswith(f"{old}."):
            values = [f"{v} is {str(k).lower()}" for k, v in FIRST_VALUES.get(new, {}).items()]
            now = ".".join(new) + key[len(old) :]
            return f"it is {now} now" + (f" ({', '.join(values)})" if values else "")
    return ""


def with_current_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded config with the names that keys and values have now."""
    found = deepcopy(dict(config))
    for key, first in FIRST_KEYS.items():
        _move(found, first, key)
    for key, names in FIRST_VALUES.items():
        _replace(found, key, {first: name for name, first in names.items()})
    for key, (without_effect, _) in GONE.items():
        node, last = _node(found, key)
        if node.get(last, object()) == without_effect:
            del node[last]
    return found


def _node(config: dict[str, Any], key: Sequence[str]) -> tuple[dict[str, Any], str]:
    """The section of a key (an empty one where there is none), and its last name."""
    node: Any = config
    for part in key[:-1]:
        node = node.get(part)
        if not isinstance(node, dict):
            return {}, key[-1]
    return node, key[-1]


def _move(config: dict[str, Any], old: Sequence[str], new: Sequence[str]) -> None:
    node, last = _node(config, old)
    if last in node:
        node[new[-1]] = node.pop(last)


def _replace(config: dict[str, Any], key: Sequence[str], names: Mapping[Any, Any]) -> None:
    node, last = _node(config, key)
    if isinstance(node.get(last), str | bool):
        node[last] = names.get(node[last], node[last])
