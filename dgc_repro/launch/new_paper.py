"""``new-paper <name>``: the five files of a paper of your own, in a folder here (docs/adding-a-paper.md)."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
from collections.abc import Sequence
from pathlib import Path

import dgc_repro.paper
from dgc_repro.errors import UserError
from dgc_repro.paper.publish import package_of

TEMPLATE = Path(dgc_repro.paper.__file__).parent / "template"
NAME = "PAPER"


def new_paper(arguments: Sequence[str]) -> None:
    """Write the folder. Raises UserError where the name is taken or is no Python name."""
    parser = argparse.ArgumentParser(prog="python -m dgc_repro new-paper", description=__doc__)
    parser.add_argument("name", help="a Python name, such as mypaper")
    name = parser.parse_args(arguments).name
    folder = Path(name)
    if not name.isidentifier() or not name.islower() or keyword.iskeyword(name):
        raise UserError(f"new-paper: a Python name in lower case, got {name!r}")
    is_ours = importlib.util.find_spec(f"dgc_repro.paper.{name}") is not None
    if folder.exists() or is_ours or package_of(name) == name:
        raise UserError(f"new-paper: {name} exists already; give another name")
    for source in sorted(path for path in TEMPLATE.rglob("*") if path.suffix in (".py", ".yaml")):
        target = folder / str(source.relative_to(TEMPLATE)).replace(NAME, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8").replace(NAME, name)
        target.write_text(text, encoding="utf-8")
        print(target)
    print(f"now: python -m dgc_repro reproduce {name}/table1")
