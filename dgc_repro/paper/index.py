"""The overview of all results, README.md, and the table of all claims."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from dgc_repro.paper import claim_table, pool
from dgc_repro.paper.claim_table import Entry
from dgc_repro.paper.page import PAGE_FILE, markdown_table, plain
from dgc_repro.paper.verdict import WORDS

BENCHMARK = "benchmark"
FINDINGS = Path(__file__).resolve().parents[2] / "docs" / "findings.md"
LEGEND = """\
*agrees*, *differs*: the 95 % interval over at least 3 seeds (Table III: repeats of a timing on one machine)
lies wholly inside or outside the claimed range. What is counted or modelled has no spread, so one run
decides it (MLS-Bench, GraVAC's figures 1a and 3, the lecture's allreduce). *agrees (given)* and *differs
(given)*: the same, given an input that nobody has measured, such as a compute time. *inconclusive*:
neither. *indicative*: fewer than 3 seeds; + where the mean lies inside the range. *not tested*: a premise
does not hold of these runs, or the data set is not the paper's. *by construction*: two formulas agree,
which is no finding. *cannot follow*: the paper's own numbers contradict each other. *not run*: a
row has no finished run."""


def entries(root: Path) -> list[Entry]:
    """Every artifact below a root, by paper, scale and name; the benchmark, which is no paper, comes last."""
    ranks = ("paper", "air", "fashion", "low", "medium", "small", "quick")
    scales = {scale: rank for rank, scale in enumerate(ranks)}
    found = [
        Entry(path.parent / artifact, path.parts[-3], path.parts[-2], artifact, record)
        for path in root.glob(f"*/*/{pool.VERDICTS_FILE}")
        for artifact, record in pool.records(path.parent).items()
    ]
    return sorted(
        found,
        key=lambda e: (
            e.paper == BENCHMARK,
            e.paper,
            scales.get(e.scale, len(scales)),
            e.scale,
            e.artifact,
        ),
    )


def findings() -> list[str]:
    """The sentences of docs/findings.md that one may cite; none where the package is installed without
    docs/."""
    if not FINDINGS.is_file():
        return []
    section = FINDINGS.read_text(encoding="utf-8").partition("## Ten sentences to cite")[2]
    return [
        " ".join(one.split()) for one in re.split(r"\n\d+\. ", section.partition("\n## ")[0])[1:]
    ]


def _findings(root: Path) -> list[str]:
    """The same for the results that they are about, with links as they are there; none for other results."""
    if root.resolve() != FINDINGS.parents[1] / "results":
        return []
    beside = [re.sub(r"\]\((?!\.\./)", "](../docs/", one) for one in findings()]
    return [one.replace("](../results/", "](") for one in beside]


def write(root: Path) -> None:
    """Write README.md and the table of all claims into a root of results."""
    if found := entries(root):
        (root / "README.md").write_text(_readme(found, root), encoding="utf-8", newline="\n")
        claim_table.write(found, root)


def _counts(found: Sequence[Entry]) -> dict[str, int]:
    return {word: sum(entry.record["tally"].get(word, 0) for entry in found) for word in WORDS}


def _tally(entry: Entry) -> str:
    return ", ".join(f"{n} {word}" for word, n in entry.record["tally"].items()) or "no claims"


def _readme(found: Sequence[Entry], root: Path) -> str:
    groups = groupby(found, key=lambda entry: (entry.paper, entry.scale))
    overview = pd.DataFrame(
        [[*place, *_counts(list(group)).values()] for place, group in groups],
        columns=["paper", "scale", *WORDS],
    )
    lines = [
        (
            f"[{plain(e.paper)}/{plain(e.artifact)}]"
            f"({quote((e.folder / PAGE_FILE).relative_to(root).as_posix())})",
            plain(e.scale),
            plain(e.record["title"]),
            plain(_tally(e)),
        )
        for e in found
    ]
    pages = pd.DataFrame(lines, columns=["artifact", "scale", "page", "verdicts"])
    sentences = "".join(f"{place}. {one}\n" for place, one in enumerate(_findings(root), start=1))
    sentences += "\n" if sentences else ""
    return (
        "# Results\n\nWritten by `make publish`.\n\n"
        f"{sentences}{LEGEND}\n\n## What reproduced, and what did not\n\n{markdown_table(overview)}\n\n"
        f"## Pages\n\n{markdown_table(pages, links=True)}\n"
    )
