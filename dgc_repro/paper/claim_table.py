"""All claims of all papers with their verdicts as one table, for programs.

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

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from dgc_repro.paper import pool
from dgc_repro.paper.facts import PAPER_SCALE

FILE = "claims"
STATED = (
    "claim",
    "text",
    "where",
    "reading",
    "verdict",
    "margin",
    "modelled",
    "assumed",
    "repeats",
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
    measured, low, high      the mean over ``n`` seeds and its 95 % interval; without one all three are equal
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


def write(entries: Iterable[Entry], root: Path) -> None:
    """Write ``claims.parquet`` and ``claims.jsonl`` into a root of results."""
    found = claims(entries)
    found.to_parquet(root / f"{FILE}.parquet", index=False)
    text = found.to_json(orient="records", lines=True, force_ascii=False, double_precision=15)
    (root / f"{FILE}.jsonl").write_text(text, encoding="utf-8", newline="\n")
