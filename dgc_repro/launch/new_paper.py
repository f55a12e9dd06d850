"""``new-paper <paper> [<artifact>]``: the three files of a paper of your own, in a folder here
(docs/adding-a-paper.md)."""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Sequence
from pathlib import Path

import dgc_repro.paper
from dgc_repro.errors import Parser, UserError
from dgc_repro.paper.publish import package_of

TEMPLATE = Path(dgc_repro.paper.__file__).parent / "template"
KINDS = {"table": "Table", "fig": "Figure", "figure": "Figure"}


def files(paper: str, artifact: str) -> dict[str, str]:
    """The template's files by name, for a paper and one of its tables or figures."""
    kind, number = re.fullmatch(r"(.*?)_?(\d\w*)?", artifact, re.S).groups()  # type: ignore[union-attr]
    label = f"{KINDS[kind]} {number}" if kind in KINDS and number else artifact
    names = {"PAPER": paper, "ARTIFACT": artifact, "LABEL": label}

    def filled(text: str) -> str:
        return re.sub("|".join(names), lambda found: names[found[0]], text)

    sources = sorted(path for path in TEMPLATE.rglob("*") if path.suffix in (".py", ".yaml"))
    return {
        filled(str(path.relative_to(TEMPLATE))): filled(path.read_text(encoding="utf-8"))
        for path in sources
    }


def new_paper(arguments: Sequence[str]) -> None:
    """Write the folder. Raises UserError where the name is taken or is no Python name."""
    parser = Parser(prog="python -m dgc_repro new-paper")
    parser.add_argument("paper", help="a Python name, such as mypaper")
    parser.add_argument(
        "artifact", nargs="?", default="table1", help="its table or figure, such as table2 or fig3"
    )
    given = parser.parse_args(arguments)
    paper, artifact = given.paper, given.artifact
    for name in (paper, artifact):
        if not name.isidentifier() or not name.islower() or keyword.iskeyword(name):
            raise UserError(f"new-paper: a Python name in lower case, got {name!r}")
    folder = Path(paper)
    is_ours = importlib.util.find_spec(f"dgc_repro.paper.{paper}") is not None
    if folder.exists() or is_ours:
        raise UserError(f"new-paper: {paper} exists already; give another name")
    if package_of(paper) == paper:
        raise UserError(f"new-paper: {paper} is an installed package; give another name")
    print(f"paper {paper}, with its table or figure {artifact}:")
    for place, text in files(paper, artifact).items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        print(target)
    print(f"now: python -m dgc_repro reproduce {paper}/{artifact}")
