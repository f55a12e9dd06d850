"""The config files, of ours and of users, and their keys.

A paper's runs stand in one file, ``paper/<paper>.yaml``: its artifacts, and members of config groups.

Hydra's search path is the one list of folders: ours, those of ``--config-dir``, the ``conf/`` of papers that
are installed or lie in the working folder, and what other plugins and ``hydra.searchpath`` add.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from dgc_repro.errors import DiskFull, UserError, writing
from dgc_repro.names import conf_dir as _conf_dir
from dgc_repro.names import installed_papers, papers_in

conf_dir = _conf_dir
NOT_GROUPS = ("artifact", "runs")
"""Sections of a paper's file whose entries are no members of a config group."""
OF_ALL_KEYS = ("experiment", "method", "scale")
"""Groups of a paper's file whose members set keys of every section."""
FAMILY = "family"
"""Key of an experiment in a paper's file, for which ``scale=small`` means ``scale=<family>/small``."""
PROVIDER = "dgc_repro"
"""Hydra's name for where the members in papers' files come from."""
RESOLVED = re.compile(r"\$\{[^}]*:")
"""An interpolation with a resolver, such as ``${oc.env:NAME}``."""
_ADDED: list[Path] = []
_STORED: list[dict[str, Any]] = []

# Hydra copies the store for each composition and for each group of --help, and only reads it: 0.1 s each.
ConfigStore.__deepcopy__ = lambda self, _: self  # type: ignore[attr-defined]


class UserConfigs(SearchPathPlugin):
    """Puts users' folders of configs behind ours, and gives Hydra the members in files of papers."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        users = dict.fromkeys([*_ADDED, *_of_papers()])
        for folder in users:
            search_path.append("dgc_repro", f"file://{folder}")
        for sections in (s for folder in (conf_dir(), *users) for s in papers_in(folder).values()):
            if not any(sections is stored for stored in _STORED):
                _STORED.append(sections)
                for member, node in _members(sections):
                    group, _, name = member.rpartition("/")
                    package = "_global_" if group.partition("/")[0] in OF_ALL_KEYS else None
                    own = {key: value for key, value in node.items() if key != FAMILY}
                    ConfigStore.instance().store(name, own, group, package, PROVIDER)


def _members(sections: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The members of groups in a paper's file, each by its path such as ``experiment/gravac/lstm``."""
    for group, members in sections.items():
        if group not in NOT_GROUPS:
            yield from ((f"{group}/{member}", node) for member, node in members.items())


def papers() -> list[dict[str, Any]]:
    """The sections of all files of papers, ours first."""
    return [sections for root in conf_dirs() for sections in papers_in(root).values()]


def paper_members() -> dict[str, dict[str, Any]]:
    """The members of groups in all files of papers, each by its path such as ``experiment/gravac/lstm``."""
    return {member: node for sections in papers() for member, node in _members(sections)}


def artifacts() -> list[str]:
    """All ``<paper>/<artifact>`` there are."""
    return sorted({name for sections in papers() for name in sections.get("artifact", {})})


def _of_papers() -> list[Path]:
    """The folder ``conf`` of each paper that is installed or lies in the working folder."""
    found = [path.parent.resolve() for path in sorted(Path().glob("*/conf/paper"))]
    for package in installed_papers().values():
        with contextlib.suppress(Exception):  # an import may raise anything; `reproduce` says it
            spec = importlib.util.find_spec(package)
            places = (spec and spec.submodule_search_locations) or ()
            found += [Path(place) / "conf" for place in places if (Path(place) / "conf").is_dir()]
    return found


def use_user_configs() -> None:
    """Have Hydra search users' folders of configs too."""
    Plugins.instance().register(UserConfigs)


@contextlib.contextmanager
def composing() -> Iterator[None]:
    """Inside, Hydra finds the config files."""
    use_user_configs()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield


def add_conf_dirs(folders: Sequence[Path]) -> None:
    """Search users' own folders of configs after ours (``--config-dir``). Raises UserError where one is
    missing."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"--config-dir: no folder {folder}")
        if folder.resolve() not in _ADDED:
            _ADDED.append(folder.resolve())


def conf_dirs_apart(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The folders of ``--config-dir``, and the other arguments."""
    folders, others, rest = [], [], iter(arguments)
    for argument in rest:
        flag, equals, folder = argument.partition("=")
        if flag in ("--config-dir", "-cd"):
            folders.append(Path(folder if equals else next(rest, "<none>")))
        else:
            others.append(argument)
    return folders, others


def conf_dirs() -> list[Path]:
    """Every folder that Hydra searches for configs of ours and of users, ours first."""
    found = config_loader().get_search_path().get_path()
    return [folder_of(e.path) for e in found if e.provider not in ("hydra", "schema")]


def sources() -> list[bytes] | None:
    """Return the content of all that Hydra composes the configs of runs from: the config files, and the
    members in papers' files. None where there is more: a member that a plugin has stored, a list of
    defaults with a resolver, or a folder that is a link, which may lead anywhere."""
    found = [json.dumps(_STORED, default=str).encode()]
    for root in conf_dirs():
        for path in sorted(root.rglob("*")):
            if path.is_symlink() and path.is_dir():
                return None
            if path.suffix == ".yaml" and path.is_file():  # an editor's lock is a link to nowhere
                found += [str(path.relative_to(root)).encode(), path.read_bytes()]
    is_more = any(_stored_by_others(ConfigStore.instance().repo)) or any(
        map(_chooses_by_resolver, found)
    )
    return None if is_more else found


def _chooses_by_resolver(content: bytes) -> bool:
    """Whether a config file may have a list of defaults with a resolver."""
    text = content.decode("utf-8", "replace")
    if "defaults" not in text or not RESOLVED.search(text):
        return False
    try:
        parsed = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return any(RESOLVED.search(json.dumps(node, default=str)) for node in _defaults_in(parsed))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return True


def _defaults_in(node: Any) -> Iterator[Any]:
    """Every list of defaults in a config, and in the members of a paper's file."""
    for one in node.values() if isinstance(node, Mapping) else node:
        if isinstance(one, Mapping | list):
            yield from _defaults_in(one)
    if isinstance(node, Mapping) and "defaults" in node:
        yield node["defaults"]


def _stored_by_others(store: Mapping[str, Any]) -> Iterator[bool]:
    """Whether each member is neither Hydra's nor one of a paper's file."""
    for name, node in store.items():
        if isinstance(node, Mapping):
            if name != "hydra":
                yield from _stored_by_others(node)
        else:
            yield node.provider not in ("hydra", PROVIDER)


def folder_of(place: str) -> Path:
    """The folder of an entry of Hydra's search path, ``file://<folder>`` or ``pkg://<package>``. Raises
    UserError for a package that Python does not find."""
    scheme, _, name = place.rpartition("://")
    if scheme != "pkg":
        return Path(name)
    package, *folders = name.replace("/", ".").split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"hydra.searchpath: no package {package!r}; install it, or use file://<folder>"
        )
    return Path(next(iter(spec.submodule_search_locations)), *folders)


def config_loader() -> ConfigLoader:
    """Hydra's, of the command that is running or of the defaults."""
    if not GlobalHydra.instance().is_initialized():
        with composing():
            return GlobalHydra.instance().config_loader()
    return GlobalHydra.instance().config_loader()


def is_group(name: str) -> bool:
    """Whether a key is a group of configs."""
    return "." not in name and name in config_loader().list_groups("")


def options(group: str) -> list[str]:
    """The members of a group."""
    return config_loader().get_group_options(group)


def option(group: str, name: str) -> dict[str, Any]:
    """What a group's YAML says, as it stands there."""
    path = conf_dir() / group / f"{name}.yaml"
    node: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return node


def members(group: str) -> list[dict[str, Any]]:
    """What each of our YAML files of a group says."""
    return [option(group, path.stem) for path in sorted((conf_dir() / group).glob("*.yaml"))]


@contextlib.contextmanager
def writing_to(key: str, folder: Path) -> Iterator[None]:
    """Raise UserError where what is done inside cannot write to the folder that a key names, and DiskFull for
    a full disk."""
    try:
        with writing(folder):
            yield
    except DiskFull:
        raise
    except OSError as error:
        raise UserError(
            f"{key}: cannot write to {folder} ({error.strerror}); give a folder of yours"
        ) from error


def flat_keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of the leaves."""
    for key, value in node.items():
        if key in ("defaults", "_target_", "hydra"):
            continue
        if isinstance(value, Mapping):
            yield from flat_keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
