"""The overview of all results, README.md, and the table of all claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from dgc_repro.paper import claim_table, findings, pool
from dgc_repro.paper.claim_table import Entry
from dgc_repro.paper.page import PAGE_FILE, markdown_table, plain, tally_text
from dgc_repro.paper.verdict import WORDS

BENCHMARK = "benchmark"
SHOWN = ("answer", "findings", "papers")
"""The blocks of findings.md that README.md begins with."""

LEGEND = """\
- *agrees*, *differs*: the 95 % interval over at least 3 seeds lies wholly inside or outside the claimed
  range. Counted and modelled numbers have no spread, so one run decides them. *(given)*: the same, given an
  input that nobody has measured.
- *undecided*: the interval does neither (*inconclusive*), or there are fewer than 3 seeds (*indicative*, +
  where the mean lies inside the range).
- *not tested*: a premise does not hold in these runs, the data set is not the paper's, or a row has no
  finished run (*not run*).
- *no finding*: two formulas agree *by construction*, or the paper's own numbers contradict each other
  (*cannot follow*)."""
GROUPS = {
    "agrees": ("agrees", "agrees (given)"),
    "differs": ("differs", "differs (given)"),
    "undecided": ("inconclusive", "indicative (+)", "indicative (-)"),
    "not tested": ("not tested", "not run"),
    "no finding": ("by construction", "cannot follow"),
}
"""The verdicts of a column of the overview."""
COMPARED = (
    "[Do these methods do what published code does?](conformance/README.md) The same gradients went "
    "through both."
)


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


def write(root: Path) -> None:
    """Write README.md and the table of all claims into a root of results, and the numbers of the
    pages beside it (findings.py)."""
    if found := entries(root):
        blocks = findings.refresh(root)
        text = _readme(found, root, blocks)
        (root / "README.md").write_text(text, encoding="utf-8", newline="\n")
        claim_table.write(found, root)


def _counts(found: Sequence[Entry]) -> dict[str, int]:
    return {word: sum(entry.record["tally"].get(word, 0) for entry in found) for word in WORDS}


def _tally(entry: Entry) -> str:
    return tally_text(entry.record["tally"]) or "no claims"


def _readme(found: Sequence[Entry], root: Path, blocks: Mapping[str, str]) -> str:
    groups = groupby(found, key=lambda entry: (entry.paper, entry.scale))
    overview = pd.DataFrame(
        [
            [*place, *counts]
            for place, group in groups
            if any(counts := _grouped(_counts(list(group))))
        ],
        columns=["paper", "scale", *GROUPS],
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
    texts = [findings.linked(blocks[name], Path("results")) for name in SHOWN if name in blocks]
    compared = root / "conformance" / "README.md"
    parts = [
        "# Results",
        *(text.strip() for text in texts),
        *([COMPARED] if compared.is_file() else []),
        f"## Verdicts\n\n{LEGEND}",
        markdown_table(overview),
        f"## Pages\n\n{markdown_table(pages, links=True)}",
    ]
    return "\n\n".join(parts) + "\n"


def _grouped(counts: Mapping[str, int]) -> list[int]:
    """How many claims each column of the overview has."""
    return [sum(counts[word] for word in words) for words in GROUPS.values()]
