"""The overview of all results: README.md, and index.html, one file that works from a disk or a phone."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd

from dgc_repro.paper.page import PAGE_FILE, VERDICTS_FILE, markdown_table

WORDS = (
    *("agrees", "differs", "inconclusive", "indicative (+)", "indicative (-)", "not tested"),
    *("by construction", "cannot follow", "not run"),
)
COLOURS = {"agrees": "#00734f", "differs": "#b34700", "inconclusive": "#8a6d00"}
LEGEND = """\
*agrees*, *differs*: the 95 % interval over at least 3 seeds (Table III: repeats of a timing on one machine)
lies wholly inside or outside the claimed range. *inconclusive*: neither. *indicative*: fewer than 3 seeds, or
an assumed input; + where the mean lies inside the range. *not tested*: a premise does not hold of these runs.
*by construction*: two formulas agree, which is no finding. *cannot follow*: the paper's own numbers
contradict each other. *not run*: a row has no finished run."""


@dataclass(frozen=True)
class Entry:
    """An artifact's folder: its place, and its verdicts."""

    folder: Path
    paper: str
    scale: str
    artifact: str
    record: Mapping[str, Any]

    @property
    def tally(self) -> Mapping[str, int]:
        """Verdicts by word."""
        found: Mapping[str, int] = self.record["tally"]
        return found

    @property
    def figures(self) -> list[Path]:
        """Its figures, by name."""
        return sorted(self.folder.glob("*.png"))


def entries(root: Path) -> list[Entry]:
    """Every artifact below a root, by paper, scale and name."""

    def order(entry: Entry) -> tuple[str, int, str]:
        scales = ("paper", "small", "quick")
        place = scales.index(entry.scale) if entry.scale in scales else len(scales)
        return entry.paper, place, entry.artifact

    return sorted(_entries(root), key=order)


def _entries(root: Path) -> Iterator[Entry]:
    for path in root.glob(f"*/*/[!.]*/{VERDICTS_FILE}"):
        record = json.loads(path.read_text(encoding="utf-8"))
        paper, scale, artifact = path.parent.parts[-3:]
        yield Entry(path.parent, paper, scale, artifact, record)


def write(root: Path) -> None:
    """Write README.md and index.html into a root of results."""
    found = entries(root)
    if not found:
        return
    (root / "README.md").write_text(_readme(found, root), encoding="utf-8", newline="\n")
    (root / "index.html").write_text(_page(found), encoding="utf-8", newline="\n")


def _counts(found: Sequence[Entry]) -> dict[str, int]:
    return {word: sum(entry.tally.get(word, 0) for entry in found) for word in WORDS}


def _readme(found: Sequence[Entry], root: Path) -> str:
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in found:
        groups.setdefault((entry.paper, entry.scale), []).append(entry)
    overview = pd.DataFrame(
        [[paper, scale, *_counts(group).values()] for (paper, scale), group in groups.items()],
        columns=["paper", "scale", *WORDS],
    )
    lines = [
        [
            f"[{e.paper}/{e.artifact}]({(e.folder / PAGE_FILE).relative_to(root).as_posix()})",
            e.scale,
            e.record["title"],
            ", ".join(f"{n} {word}" for word, n in e.tally.items()) or "no claims",
        ]
        for e in found
    ]
    pages = pd.DataFrame(lines, columns=["artifact", "scale", "page", "verdicts"])
    return (
        "# Results\n\nWritten by `make publish`; `index.html` shows the same with figures.\n\n"
        f"{LEGEND}\n\n## What reproduced, and what did not\n\n{markdown_table(overview)}\n\n"
        f"## Pages\n\n{markdown_table(pages)}\n"
    )


def _page(found: Sequence[Entry]) -> str:
    counts = _counts(found)
    papers = list(dict.fromkeys(entry.paper for entry in found))
    scales = list(dict.fromkeys(entry.scale for entry in found))
    cards = "\n".join(map(_card, found))
    boxes = "".join(f"<span class='count'><b>{n}</b> {word}</span>" for word, n in counts.items())
    filters = "".join(
        _select(name, values)
        for name, values in (("paper", papers), ("scale", scales), ("verdict", WORDS))
    )
    template = Path(__file__).with_name("index.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        boxes=boxes, filters=filters, cards=cards, legend=html.escape(LEGEND.replace("*", ""))
    )


def _select(name: str, values: Sequence[str]) -> str:
    options = "".join(f"<option>{html.escape(value)}</option>" for value in values)
    return (
        f"<label>{name} <select id='{name}'><option value=''>all</option>{options}</select></label>"
    )


def _card(entry: Entry) -> str:
    verdicts = entry.record["verdicts"]
    rows = "".join(
        f"<tr data-verdict='{html.escape(v['verdict'])}'><td style='color:"
        f"{COLOURS.get(v['verdict'], '#444')}'>{html.escape(v['shown'])}</td>"
        f"<td>{html.escape(v['text'])}<br><small>{html.escape(v['detail'])}</small></td></tr>"
        for v in verdicts
    )
    words = " ".join(sorted({v["verdict"] for v in verdicts}))
    tally = ", ".join(f"{n} {word}" for word, n in entry.tally.items()) or "no claims"
    figures = "".join(
        f"<img loading='lazy' alt='{html.escape(path.stem)}' src='data:image/png;base64,"
        f"{base64.b64encode(path.read_bytes()).decode()}'>"
        for path in entry.figures
    )
    table = f"<details><summary>{len(verdicts)} claims</summary><table>{rows}</table></details>"
    return (
        f"<section data-paper='{html.escape(entry.paper)}' data-scale='{html.escape(entry.scale)}' "
        f"data-verdict='{html.escape(words)}'><h2>{html.escape(entry.record['title'])}</h2>"
        f"<p>{html.escape(entry.paper)}/{html.escape(entry.artifact)}, scale {html.escape(entry.scale)}: "
        f"{html.escape(tally)}</p>{figures}{table if verdicts else ''}</section>"
    )
