"""What tab completion offers after a command: its own names and keys, read from its source.

Importing the command would take seconds, because most commands import torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dgc_repro.launch.paths import artifacts

if TYPE_CHECKING:
    from dgc_repro.launch.main import Command

TAKE_FOLDERS = ("compare", "wandb")


def of_command(name: str, command: Command, words: Sequence[str]) -> list[str]:
    """Return what may stand in the place of the last of ``words``, those after the command's name."""
    *before, begun = words
    named = [word for word in before if word and "=" not in word and not word.startswith("-")]
    found: list[str] = []
    is_list = any(word.startswith("list=") for word in before)
    if name == "reproduce" and not (named or is_list):
        found += [*artifacts(), "list="]
    if name == "netlab" and not named:
        found.append("clean")
    if name in TAKE_FOLDERS:
        found += [f"{path}/" for path in _folders(begun)]
    if name != "reproduce" or named or is_list:
        given = {word.partition("=")[0] for word in before}
        keys = ["plan=", "publish="] if is_list else own_keys(command)
        keys = [key for key in keys if key != "list=" or not named]
        found += [key for key in keys if key.rstrip("=") not in given]
    return [one for one in found if one.startswith(begun)]


def own_keys(command: Command) -> list[str]:
    """Return the keys of a command (``workers=``) and its flags (``--by``)."""
    modules = [place.partition(":")[0] for place in (command.help, command.target) if place]
    return list(dict.fromkeys(key for module in modules for key in _keys_in(module)))


def _keys_in(module: str) -> Iterator[str]:
    """The keys of the table ``KEYS`` of a module, and the flags that it adds to a parser."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        match node:
            case (
                ast.AnnAssign(target=ast.Name(id="KEYS"), value=ast.Dict(keys=keys))
                | ast.Assign(targets=[ast.Name(id="KEYS")], value=ast.Dict(keys=keys))
            ):
                yield from (f"{key.value!s}=" for key in keys if isinstance(key, ast.Constant))
            case ast.Call(
                func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(flag)), *_]
            ) if flag.startswith("--"):
                yield flag


def _folders(begun: str) -> list[Path]:
    """The folders whose path begins like this."""
    parent = Path(begun if begun.endswith("/") else Path(begun).parent)
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir() and path.name[0] != ".")
    except OSError:
        return []
