"""One page of results, for every artifact: findings, tables, claims, readings, notes, choices, facts.

An `Artifact` makes a `Page` of its runs; this module writes it as markdown with figures, and its verdicts and
numbers for programs. screen.py prints the part that fits a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dgc_repro.paper import plot
from dgc_repro.paper.claims import Check, Choice, Claim, Note, claim
from dgc_repro.paper.effect import Effect
from dgc_repro.paper.facts import scale_text, used
from dgc_repro.paper.frame import summary
from dgc_repro.paper.markdown import markdown_table, plain
from dgc_repro.paper.records import Run
from dgc_repro.paper.verdict import MIN_SEEDS, Verdict, tally
from dgc_repro.paper.verdict_text import claims_text, found_text

PAGE_FILE = "table.md"
SILENT, CONTRADICT = "Where the paper is silent", "Printed numbers that contradict each other"
FOUND, LIMITS, HOW = "Found", "The page does not say", "How it was run"


@dataclass(frozen=True)
class Section:
    """A ``table`` with its title, and the ``text`` above it."""

    title: str
    table: pd.DataFrame | None = None
    text: str = ""


@dataclass(frozen=True)
class Template:
    """The words of a page: its title, the texts of its sections by title, the claims by name (where the paper
    says it, the sentence, how it is read), notes on printed numbers, and what the paper leaves open.

    It is a Markdown file beside the artifact's module. ``{name}`` stands for something that the runs say, or,
    in a claim, for something that the module says.
    """

    title: str
    texts: Mapping[str, str] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    claims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    @classmethod
    def read(cls, path: Path | str) -> Template:
        """Read the file of a module, or a file. Claims, notes and choices are tables under their headings."""
        head, *parts = Path(path).with_suffix(".md").read_text("utf-8").split("\n## ")
        texts = dict(part.split("\n", 1) for part in parts)

        def rows(heading: str) -> list[list[str]]:
            found = [line for line in texts.pop(heading, "").splitlines() if line.startswith("| ")]
            return [
                [cell.strip() for cell in line[2:].rstrip("|").split(" | ")] for line in found[1:]
            ]

        choices = tuple(Choice(*row) for row in rows(SILENT))
        claims = {name: tuple(words) for name, *words in rows("Claims")}
        notes = tuple(Note(*row) for row in rows(CONTRADICT))
        stripped = {title: text.strip() for title, text in texts.items()}
        return cls(head.removeprefix("# ").strip(), stripped, choices, claims, notes)

    def claim(self, name: str, *checks: Check, of: Any = "", **how: Any) -> Claim:
        """A claim in the file's words. ``of``: whose it is, the beginning of its id; ``how``: other fields of
        `Claim`, ``ours`` (this project chose the range), and what the words are filled in with."""
        ours = how.pop("ours", False)
        names = ("premises", "cannot_follow", "assumed", "by_construction", "counted")
        fields = {field: how.pop(field) for field in names if field in how}
        id_ = how.pop("id", f"{of}.{name}" if of else name)
        where, text, *reading = (words.format_map(how) for words in self.claims[name])
        return claim(id_, text, *checks, where=where, reading="".join(reading), ours=ours, **fields)


@dataclass(frozen=True)
class Drawing:
    """A figure of a page: its ``title``, which is also the image's text; the ``caption`` under it, in
    sentences; and ``draw``, which makes it."""

    title: str
    caption: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Page:
    """Everything that is written of one artifact at one scale.

    frame      the long table of numbers (frame.py)
    printed    printed numbers by row and quantity, for numbers.csv
    sections   tables in order; the terminal shows the first one
    choices    what the paper leaves open, with what these runs used
    found      what the runs show, before the claims are counted
    limits     what the runs do not show, in sentences that continue "The page does not say"
    other_data the data set, where it is not the paper's: "digits, not CIFAR-10"
    figures    by file name
    labels     rows in words
    """

    title: str
    scale: str
    runs: Sequence[Run]
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    verdicts: Sequence[Verdict]
    frame: pd.DataFrame
    printed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    choices: Sequence[Choice] = ()
    warning: str = ""
    found: str = ""
    limits: str = ""
    other_data: str = ""
    figures: Mapping[str, Drawing] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def title_text(page: Page) -> str:
    """The title with the scale, and the data where they are not the paper's."""
    data = f"; data: {page.other_data}" if page.other_data else ""
    return f"{page.title} ({scale_text(page.scale)}{data})"


def write(page: Page, folder: Path) -> None:
    """Write the page and its figures into a folder."""
    (folder / PAGE_FILE).write_text(markdown(page), encoding="utf-8", newline="\n")
    for name, one in page.figures.items():
        plot.save(one.draw(), folder, name)


def numbers(page: Page) -> pd.DataFrame:
    """The numbers of a page: a row of numbers.csv each."""
    return summary(page.frame, page.printed).assign(scale=page.scale)


def markdown(page: Page) -> str:
    """The whole page: what was found and what was run, the first table, the figures, what the page does not
    say, the claims, the other tables, the choices, and how it was run."""
    first, *others = page.sections or [Section("")]
    parts = [
        f"# {plain(title_text(page))}",
        found_text(page.found, page.verdicts),
        run_text(page.facts),
        page.warning,
        *_section(first),
        *(
            f"![{plain(one.title)}]({name}.png)\n\n*{plain(one.caption)}*"
            for name, one in page.figures.items()
        ),
        f"**{LIMITS}** {page.limits}" if page.limits else "",
        *claims_text(page.verdicts),
        *(part for section in others for part in _section(section)),
    ]
    if page.notes:
        lines = [f"- {note.text} {note.arithmetic}".rstrip() for note in page.notes]
        parts += [f"## {CONTRADICT}", "\n".join(lines)]
    if page.choices:
        table = pd.DataFrame(
            [
                (c.silent, c.chosen, f"`{c.key}`", used(page.runs, c.key, page.labels))
                for c in page.choices
            ],
            columns=["silent", "chosen", "config key", "used in these runs"],
        )
        parts += [f"## {SILENT}", markdown_table(table)]
    if page.facts:
        parts += [f"## {HOW}", "\n".join(f"- {name}: {value}" for name, value in page.facts)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(section: Section) -> list[str]:
    table = [] if section.table is None else [markdown_table(section.table)]
    return [f"## {section.title}" if section.title else "", section.text, *table]


def run_text(facts: Sequence[tuple[str, str]]) -> str:
    """The conditions of the whole page in one paragraph."""
    known = dict(facts)
    names = ("model", "data", "workers", "seeds")
    if "seeds" in known:
        known["seeds"] = known["seeds"].partition(";")[0]
    parts = [known.get("scale", ""), *(f"{n}: {known[n]}" for n in names if n in known)]
    told = [f"{part[:1].upper()}{part[1:]}." for part in parts if part]
    return f"**Run.** {' '.join(told)}" if told else ""


def record(page: Page) -> dict[str, Any]:
    """The verdicts for programs, and the ids of the runs."""
    found = [
        {
            "claim": v.claim.id,
            "text": v.claim.text,
            "where": v.claim.where,
            "reading": v.claim.reading,
            "verdict": v.word,
            "shown": v.text,
            "margin": v.claim.margin,
            "modelled": v.modelled,
            "assumed": v.claim.assumed,
            "repeats": v.repeats,
            "n": v.n,
            "detail": v.detail,
            "effects": [_effect(effect) for effect in v.effects],
        }
        for v in page.verdicts
    ]
    return {
        "title": page.title,
        "scale": page.scale,
        "tally": tally(page.verdicts),
        "verdicts": found,
        "runs": [run.id for run in page.runs],
    }


def _effect(effect: Effect) -> dict[str, Any]:
    """A check with its numbers; None for one that is open, not printed or not defined, and for the ends of an
    interval where too few seeds give none."""
    check, has_interval = effect.check, effect.n >= MIN_SEEDS
    numbers = {
        "printed": check.printed,
        "above": check.above,
        "below": check.below,
        "measured": effect.mean,
        "low": effect.low if has_interval else math.nan,
        "high": effect.high if has_interval else math.nan,
    }
    return {
        "quantity": check.quantity,
        "setting": check.setting,
        "kind": check.kind,
        "rows": list(check.rows),
        "unit": effect.unit,
        "n": effect.n,
        **{k: float(f"{x:.10g}") if math.isfinite(x) else None for k, x in numbers.items()},
    }
