"""The overview of all results, README.md, and all claims with their verdicts as one table, for programs.

``status`` says a verdict in the words of public collections of reproductions:

==============  =======================================================================================
`verified`      at the paper's own scale: the whole interval lies inside the claimed range
`falsified`     at the paper's own scale: the whole interval lies outside
`toy`           the same at a reduced scale, of a smaller model or data set: ``verdict`` says which of both
`given`         decided at any scale, given an input that nobody has measured
`inconclusive`  measured, but the interval does not decide, or there are fewer than 3 seeds
`untested`      no run, a premise that does not hold, other data, or nothing that a run could decide
==============  =======================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd

from dgc_repro.paper import findings, pool
from dgc_repro.paper.facts import PAPER_SCALE
from dgc_repro.paper.markdown import markdown_table, plain
from dgc_repro.paper.page import PAGE_FILE
from dgc_repro.paper.verdict_text import tally_text

BENCHMARK, CLAIMS_FILE = "benchmark", "claims"
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
STATED = (
    *("claim", "text", "where", "reading", "verdict"),
    *("margin", "modelled", "assumed", "repeats"),
)
MEASURED = {
    "quantity": "str", "setting": "str", "kind": "str", "rows": "str", "unit": "str", "n": "Int64",
    "printed": "float64", "above": "float64", "below": "float64", "measured": "float64",
    "low": "float64", "high": "float64",
}  # fmt: skip
DECIDED = {"agrees": "verified", "differs": "falsified"}
GIVEN = " (given)"


class Entry(NamedTuple):
    """An artifact: its folder, its place, and its record in verdicts.json of its pool."""

    folder: Path
    paper: str
    scale: str
    artifact: str
    record: Mapping[str, Any]


def entries(root: Path) -> list[Entry]:
    """Every artifact below a root, by paper, scale and name; the benchmark, which is no paper, comes last."""
    scales = ("paper", "air", "fashion", "low", "medium", "small", "quick")
    rank = {scale: place for place, scale in enumerate(scales)}
    found = [
        Entry(path.parent / artifact, path.parts[-3], path.parts[-2], artifact, record)
        for path in root.glob(f"*/*/{pool.VERDICTS_FILE}")
        for artifact, record in pool.records(path.parent).items()
    ]
    return sorted(
        found,
        key=lambda e: (e.paper == BENCHMARK, e.paper, rank.get(e.scale, 7), e.scale, e.artifact),
    )


def write(root: Path) -> None:
    """Write README.md, ``claims.parquet`` and ``claims.jsonl`` into a root of results, and the numbers of the
    pages beside it (findings.py)."""
    if found := entries(root):
        blocks = findings.refresh(root)
        text = _readme(found, root, blocks)
        (root / "README.md").write_text(text, encoding="utf-8", newline="\n")
        table = claims(found)
        table.to_parquet(root / f"{CLAIMS_FILE}.parquet", index=False)
        text = table.to_json(orient="records", lines=True, force_ascii=False, double_precision=15)
        (root / f"{CLAIMS_FILE}.jsonl").write_text(text, encoding="utf-8", newline="\n")


def _readme(found: Sequence[Entry], root: Path, blocks: Mapping[str, str]) -> str:
    groups = groupby(found, key=lambda entry: (entry.paper, entry.scale))
    overview = pd.DataFrame(
        [[*place, *counts] for place, group in groups if any(counts := _counts(group))],
        columns=["paper", "scale", *GROUPS],
    )
    lines = [
        (
            f"[{plain(e.paper)}/{plain(e.artifact)}]"
            f"({quote((e.folder / PAGE_FILE).relative_to(root).as_posix())})",
            plain(e.scale),
            plain(e.record["title"]),
            plain(tally_text(e.record["tally"]) or "no claims"),
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


def _counts(found: Iterable[Entry]) -> list[int]:
    """How many claims each column of the overview has."""
    tallies = [entry.record["tally"] for entry in found]
    return [sum(own.get(word, 0) for own in tallies for word in words) for words in GROUPS.values()]


def status(verdict: str, scale: str) -> str:
    """A verdict in the words of the table above."""
    if word := DECIDED.get(verdict):
        return word if scale == PAPER_SCALE else "toy"
    if verdict.removesuffix(GIVEN) in DECIDED:
        return "given"
    is_measured = verdict.startswith(("inconclusive", "indicative"))
    return "inconclusive" if is_measured else "untested"


def claims(entries: Iterable[Entry]) -> pd.DataFrame:
    """A line for each check of each claim; a claim that was not measured has one line.

    paper, scale, artifact   the page, below ``<root>/<paper>/<scale>/<artifact>``
    claim, text, where       its id there, the sentence, and the place in the paper
    reading                  how the sentence is made a check
    verdict, status          the page's word, and the same in words of public collections
    margin                   whether the tolerance is "printed" or "ours"
    modelled, assumed        whether its numbers are a model's, and the inputs that nobody has measured
    repeats                  the claim of the page that judges the same runs in the same range
    quantity, setting, unit  what is judged, of ``rows``: one, or two separated by a comma, of which the first
                             is claimed to be larger; ``kind``: a value, or a difference or ratio of two rows
    printed                  the paper's number, NaN where it prints none
    above, below             the claimed range, NaN where it is open
    measured, low, high      the mean over ``n`` seeds and its 95 % interval, NaN below three seeds;
                             equal to the mean for counted and modelled numbers
    """
    lines: list[dict[str, Any]] = []
    for entry in entries:
        with pool.damage(entry.folder):
            lines += _lines(entry)
    names = ["paper", "scale", "artifact", *STATED[:5], "status", *STATED[5:], *MEASURED]
    with pool.damage(Path(pool.VERDICTS_FILE)):
        return pd.DataFrame(lines, columns=names).astype(MEASURED)


def _lines(entry: Entry) -> Iterator[dict[str, Any]]:
    place = {"paper": entry.paper, "scale": entry.scale, "artifact": entry.artifact}
    for verdict in entry.record["verdicts"]:
        stated = {name: verdict[name] for name in STATED}
        stated["status"] = status(verdict["verdict"], entry.scale)
        for effect in verdict.get("effects") or [dict.fromkeys(MEASURED) | {"rows": (), "n": 0}]:
            found = {name: "" if kind == "str" else None for name, kind in MEASURED.items()}
            found |= {name: value for name, value in effect.items() if value is not None}
            yield place | stated | found | {"rows": ", ".join(effect["rows"])}
