"""The pages of ``--help``: groups and sections first, and the keys of one of them after its name.

``--help compressor`` lists a group, ``--help compressor=topk`` (or ``compressor=topk --help``) the keys of
one of its members, ``--help train`` a section with its keys. What a key means is in the docstring of the
dataclass that has it, what a member is in the first comment of its file, and what a command does in
`launch.main.COMMANDS`. Hydra has to be composing.

A docstring describes a field by its name and a colon, ``bits``: ..., up to the next field or paragraph.
Fields that share a description stand together: ``beta1``, ``beta2``: ... A description that only names
another place ("as in `Sparsifier`") is replaced by that of a base class.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from hydra.core.default_element import GroupDefault
from omegaconf import OmegaConf

from dgc_repro.checked import ANYTHING, kind_of_field
from dgc_repro.errors import UserError
from dgc_repro.launch import settings
from dgc_repro.launch.cli_args import WIDTH, in_columns
from dgc_repro.launch.overrides import config_of, nearest, nearest_key
from dgc_repro.launch.paths import (
    OF_ALL_KEYS,
    conf_dir,
    conf_dirs,
    config_loader,
    is_group,
    options,
)
from dgc_repro.launch.settings import LOW_RANK
from dgc_repro.model.low_rank import LowRank

ELSEWHERE = re.compile(r"(as in|see|as) (`|above)")
END = re.compile(
    r"\n\s*\n|\bState( of a matrix)?:|\bRaises \w+|\b(Its|The)\s+other\s+settings\b|\bReturns\b"
)
FIRST = """\
dgc_repro: gradient compression, measured.
  python -m dgc_repro compressor=uniform compressor.bits=4     one run
  python -m dgc_repro --multirun compressor=dense,topk         a sweep
  python -m dgc_repro reproduce dynamic/table1                 a paper's table
"""
MORE = """\
More: --help <section, group, group=member or key>, such as --help compressor or
compressor=topk. --cfg job prints a run's config; --hydra-help has more flags."""
NOT_SHOWN = ("hydra", "paper", "policy_scale", "wandb")
"""Groups that nobody chooses from on the command line of a run."""
KEY_WIDTH = 27


class Described(NamedTuple):
    """A setting: what it means, what it allows (empty: anything), and the only words that it may be."""

    text: str
    allowed: str = ""
    choices: tuple[str, ...] = ()


Keys = Mapping[str, tuple[Any, Described]]


def show(words: Sequence[str], commands: Mapping[str, str]) -> None:
    """Print the page of the words beside ``--help``, the first page for none. ``commands``: what each does.
    Raises UserError for a name that is unknown."""
    lines: Iterable[str] = (line for word in words for line in _page(word))
    print("\n".join(lines if words else _first(commands)))


def keys_of(config: Mapping[str, Any]) -> dict[str, tuple[Any, Described]]:
    """Return the value and the description of each key of a run's config, by its dotted name."""
    found: dict[str, tuple[Any, Described]] = {}
    top = described(settings.Top)
    for name, node in config.items():
        if name in top:
            found[name] = node, top[name]
        elif isinstance(node, Mapping):
            found |= _keys_below(node, name, settings.SECTIONS.get(name))
    return found


def _keys_below(
    node: Mapping[str, Any], place: str, cls: type | None = None
) -> dict[str, tuple[Any, Described]]:
    """The same for a part of a config. ``cls``: the dataclass of a part that is no component."""
    if node.get("kind") == settings.SLURM:
        cls = settings.Slurm
    if "_target_" in node:
        cls = settings.imported(str(node["_target_"]), place)
    said = described(cls) if cls is not None else {}
    if (mirror := node.get("mirror")) and "_target_" in mirror:  # it reads keys beside it
        said = described(settings.imported(str(mirror["_target_"]), f"{place}.mirror")) | said
    found: dict[str, tuple[Any, Described]] = {}
    for key, value in node.items():
        if isinstance(value, Mapping) and ("_target_" in value or key == LOW_RANK):
            found |= _keys_below(value, f"{place}.{key}", LowRank if key == LOW_RANK else None)
        elif key != "_target_":
            found[f"{place}.{key}"] = value, said.get(key, Described(""))
    return found


# -- pages ---------------------------------------------------------------------------------------------


def _first(commands: Mapping[str, str]) -> Iterator[str]:
    yield FIRST
    yield "Commands (python -m dgc_repro <command> --help):"
    yield from in_columns(commands.items(), 12)
    yield "\nGroups (group=option; * is the default):"
    usual = _defaults()
    groups = [name for name in config_loader().list_groups("") if name not in NOT_SHOWN]
    yield from in_columns(
        ((name, ", ".join(_members(name, usual.get(name)))) for name in groups), 16
    )
    config = plain_config()
    own = {k: v for k, v in config.items() if k in settings.SECTIONS or not isinstance(v, Mapping)}
    by_section: dict[str, dict[str, tuple[Any, Described]]] = {}
    for key, shown in keys_of(own).items():
        by_section.setdefault(key.partition(".")[0] if "." in key else "", {})[key] = shown
    for section in sorted(by_section):
        title = _title(settings.SECTIONS.get(section, settings.Top))
        yield f"\n{section}: {title}" if section else f"\n{title}"
        for key, (value, said) in by_section[section].items():
            name = key.removeprefix(f"{section}.")
            yield from _one_line(name, value, said)
    yield f"\n{MORE}"


def _one_line(name: str, value: Any, said: Described) -> Iterator[str]:
    """A key in one line: the choices, and the first clause of what it means."""
    text = re.split(r"(?<=[^.])[.;] | \((?!of )", said.text)[0]
    left, room = f"  {name}={_shown(value)}", WIDTH - KEY_WIDTH - 1
    if said.choices:
        whole = f"{'|'.join(said.choices)}: {text}"
        text = whole if len(whole) <= room else whole.partition(": ")[0]
    yield f"{left:<{KEY_WIDTH}} {textwrap.shorten(text, room, placeholder='...')}"


def _page(word: str) -> Iterator[str]:
    """The page of a group, a member (``compressor=topk``, or ``topk``), a section or a key."""
    key, equals, name = word.partition("=")
    key = key.lstrip("+~")
    if equals and is_group(key):
        yield from _member(key, name)
    elif is_group(key):
        yield from _group(key)
    elif key in settings.SECTIONS or "." in key or key in described(settings.Top):
        yield from _section(key, [word] if equals else [])
    else:
        groups = [group for group in config_loader().list_groups("") if group not in NOT_SHOWN]
        found = [group for group in groups if key in options(group)]
        known = {*groups, *settings.SECTIONS, *(name for g in groups for name in options(g))}
        if not found:
            likely = nearest(key, known, ["groups and sections in --help"])
            raise UserError(f"--help: {word} is no group, member, section or key; {likely}")
        for group in found:
            yield from _member(group, key)


def _group(group: str) -> Iterator[str]:
    usual = _defaults().get(group)
    yield f"{group}: one of these, by {group}=<name>" + (f" (default: {usual})" if usual else "")
    yield ""
    names = _members(group)
    titles = {name: _comment(group, name) for name in names}
    yield from in_columns(titles.items(), max(map(len, names), default=0) + 2)
    if group == "wrapper":
        yield "\nWrappers are chosen by wrap=[...], outermost first. Their keys:\n"
        yield from _described(_keys_below(plain_config()[group], group))
    elif group in (*settings.SECTIONS, *settings.NAMES) and group not in OF_ALL_KEYS and usual:
        yield f"\nKeys of {group}={usual} (--help {group}=<name> for another):\n"
        yield from _described(_of_section(plain_config(), group))
    elif group in settings.SECTIONS:
        yield ""
        yield from _described(_of_section(plain_config(), group))
    yield ""


def _member(group: str, name: str) -> Iterator[str]:
    if name not in options(group) and not _folder_of(group, name):
        raise UserError(f"{group}: no {name!r}; {nearest(name, options(group))}")
    title = _comment(group, name)
    yield from textwrap.wrap(f"{group}={name}" + (f": {title}" if title else ""), WIDTH)
    chosen, own = _stated(group, name)
    if group == "wrapper":
        yield ""
        yield from _described(_keys_below(plain_config()[group][name], f"wrapper.{name}"))
    elif group in settings.NAMES and group not in OF_ALL_KEYS:
        yield ""
        yield from _described(_of_section(plain_config(f"{group}={name}"), group))
        own = {} if _is_of_group(own, group) else {k: v for k, v in own.items() if k != group}
    if chosen or own:
        yield "\nIt sets, with what it names:\n" if chosen else "\nIt sets:\n"
        yield from (f"  {one}" for one in chosen)
        yield from (f"  {key}={_shown(value)}" for key, value in _flat(own))
    yield ""


def _section(key: str, overrides: Sequence[str]) -> Iterator[str]:
    """A section, or one key of it."""
    config = plain_config(*overrides)
    found = keys_of(config)
    shown = {name: pair for name, pair in found.items() if f"{name}.".startswith(f"{key}.")}
    if not shown:
        raise UserError(
            f"--help: {key} is no group, member, section or key; {nearest_key(key, found)}"
        )
    if key in settings.SECTIONS:
        yield f"{key}: {_title(settings.SECTIONS[key])}"
        yield ""
    yield from _described(shown)
    yield ""


def _described(keys: Keys) -> Iterator[str]:
    """Each key with its value, its whole description, and what it allows."""
    if not keys:
        yield "  no keys"
    for name, (value, said) in keys.items():
        allowed = f"{said.allowed[:1].upper()}{said.allowed[1:]}" if said.allowed else ""
        yield f"  {name}={_shown(value)}"
        whole = " ".join(f"{part}." for part in (said.text, allowed) if part)
        yield from textwrap.wrap(whole, WIDTH, initial_indent=6 * " ", subsequent_indent=6 * " ")


# -- what the files say --------------------------------------------------------------------------------


def _of_section(config: Mapping[str, Any], name: str) -> dict[str, tuple[Any, Described]]:
    return _keys_below(config[name], name, settings.SECTIONS.get(name))


def plain_config(*overrides: str) -> dict[str, Any]:
    """Return the config of a run with all of its keys, those too that have no effect as they are set."""
    node: Any = OmegaConf.to_container(config_of(overrides), resolve=True)
    return dict(node)


def _title(cls: type) -> str:
    return title_of(cls).partition(" (")[0]


def _defaults() -> dict[str, str]:
    """The members that the defaults list of the main config chooses, by group."""
    node = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    pairs = [
        pair for entry in node["defaults"] if isinstance(entry, dict) for pair in entry.items()
    ]
    return {group: name for group, name in pairs if name and " " not in group and "@" not in group}


def _members(group: str, usual: str | None = None) -> list[str]:
    """The members of a group, and folders of members as ``gravac/``."""
    names = [f"{name}*" if name == usual else name for name in options(group)]
    return [*names, *(f"{folder}/..." for folder in config_loader().list_groups(group))]


def _folder_of(group: str, name: str) -> bool:
    folder, _, last = name.rpartition("/")
    return bool(folder) and last in options(f"{group}/{folder}")


def _comment(group: str, name: str) -> str:
    """The first sentence of the comment at the top of a member's file; empty where there is none."""
    for folder in conf_dirs():
        path = folder / group / f"{name}.yaml"
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            found: list[str] = []
            for line in lines:
                if not line.startswith("#"):
                    break
                if not line.startswith("# @package"):
                    found.append(line.lstrip("# "))
            return re.split(r"(?<=[^.])\. ", " ".join(found) + " ")[0].strip().rstrip(".")
    return ""


def _stated(group: str, name: str) -> tuple[list[str], dict[str, Any]]:
    """The members that a member's own file names, and what it sets."""
    loader: Any = config_loader()
    found = loader.repository.load_config(f"{group}/{name}")
    node: Any = OmegaConf.to_container(found.config, resolve=False)
    named = [one for one in found.defaults_list or () if not one.is_self()]
    chosen = [
        f"{str(one.group).lstrip('/')}={one.value}"
        if isinstance(one, GroupDefault)
        else f"{group}={one.path}"
        for one in named
    ]
    return chosen, {key: value for key, value in node.items() if key != "defaults"}


def _is_of_group(node: Mapping[str, Any], group: str) -> bool:
    """Whether a file has the keys of its own group at its top."""
    return group not in node and not set(node) & {*settings.NAMES}


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif key != "_target_":
            yield f"{prefix}{key}", value


def _shown(value: Any) -> str:
    """A value as it is typed."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping | list):
        return re.sub(r"\s+", "", str(yaml.safe_dump(value, default_flow_style=True, width=10**6)))
    return str(value)


# -- what docstrings say of settings --


def described(cls: type) -> dict[str, Described]:
    """Return what the docstrings of a dataclass and of its bases say of its settings. A setting that none
    describes has an empty text."""
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    texts: dict[str, str] = {}
    for base in cls.__mro__:
        for name, text in _entries(base.__dict__.get("__doc__") or "", names).items():
            if not ELSEWHERE.match(text):
                texts.setdefault(name, text)
    found = {}
    for name in names:
        kind = kind_of_field(cls, name)
        allowed = "" if kind.words == ANYTHING.words else kind.words
        found[name] = Described(texts.get(name, ""), allowed, kind.choices)
    return found


def title_of(cls: type) -> str:
    """Return the first sentence of a docstring; empty where it begins with a setting."""
    text = " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    if next(iter(_starts(text, names)), (1, 0, ()))[0] == 0:
        return ""
    return re.split(r"(?<=[a-z)`])[.:] ", f"{text} ")[0].rstrip(". ")


def _entries(doc: str, names: list[str]) -> dict[str, str]:
    text = inspect.cleandoc(doc)
    starts = _starts(text, names)
    found: dict[str, str] = {}
    ends = [*(start for start, *_ in starts[1:]), len(text)]
    for (_, begin, own), end in zip(starts, ends[: len(starts)], strict=True):
        said = END.split(text[begin:end])[0]
        said = re.sub(r"\bNone\b", "null", said.replace("``", ""))  # as a config has it
        said = " ".join(said.split()).rstrip(" ;.,")
        for name in own:
            found.setdefault(name, said)
    return found


def _starts(text: str, names: list[str]) -> list[tuple[int, int, tuple[str, ...]]]:
    """Of each description in a docstring, where its names and its text begin, and the names."""
    if not names:
        return []
    one = rf"(?:``(?:{'|'.join(names)})``|\b(?:{'|'.join(names)})\b)"
    entry = re.compile(rf"(?:^|(?<=[\n.;)] )|(?<=\n)|(?=``)){one}(?:(?:,| or|, or| and) {one})*:\s")
    return [
        (m.start(), m.end(), tuple(re.findall(r"\w+", re.sub(r"\b(or|and)\b", "", m[0]))))
        for m in entry.finditer(text)
    ]
