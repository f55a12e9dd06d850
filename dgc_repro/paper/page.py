"""One page of results, for every artifact: findings, tables, claims, readings, notes, choices, facts.

An artifact's module makes a `Page` of its runs; this module writes it as markdown with figures, and prints
the part that fits a terminal.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dgc_repro.paper import plot
from dgc_repro.paper.claims import EXPECTED, OURS, Check, Choice, Claim, Note, claim
from dgc_repro.paper.facts import busy, data_text, facts, scale_text, used
from dgc_repro.paper.frame import summary, twins
from dgc_repro.paper.records import Run
from dgc_repro.paper.verdict import Effect, Verdict, by_chance, judge, tally
from dgc_repro.progress import console_of, duration

PAGE_FILE = "table.md"
SILENT, CONTRADICT = "Where the paper is silent", "Printed numbers that contradict each other"
FOUND, LIMITS, HOW = "Found", "The page does not say", "How it was run"
DECIDED = ("agrees", "differs", "agrees (given)", "differs (given)")
OPEN = ("inconclusive", "indicative (+)", "indicative (-)")
ORDER = (*DECIDED, *OPEN, "by construction", "not tested", "not run", "cannot follow")
"""The verdicts as a page orders them."""
UNDECIDED = {
    "open": OPEN,
    "not tested": ("not tested", "not run"),
    "true by construction": ("by construction",),
    "contradicted by the paper's own numbers": ("cannot follow",),
}
"""How the first paragraph calls the other verdicts."""
LEAST = 0.05
"""Claims that are worth a word about chance."""
NAMED = 6
"""How many claims the first paragraph names for each of the decided verdicts."""


@dataclass(frozen=True)
class Section:
    """A ``table`` with its title, and the ``text`` above it: of the template, where none is given here."""

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

    def __call__(self) -> Figure:
        """Draw the figure."""
        return self.draw()


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


def made(
    words: str | Template,
    scale: str,
    runs: Sequence[Run],
    frame: pd.DataFrame,
    sections: Sequence[Section],
    claims: Sequence[Claim] = (),
    *,
    modelled: bool = False,
    labels: Mapping[str, str] | None = None,
    data: str | Mapping[str, str] = "",
    head: Sequence[tuple[str, str]] = (),
    said: Mapping[str, object] | None = None,
    choices: Sequence[Choice] = (),
    **more: Any,
) -> Page:
    """The page of runs, with the claims judged on their numbers: rows of the same training count once.

    words    the template, or the artifact's module file, beside which it lies
    modelled the numbers are a model's, without a spread
    labels   rows in words
    data     the paper's data set, by model where there are several; empty: claims are judged on any data
    head     facts between those on the runs and those on the machine
    said     by name, what ``{name}`` stands for in the template
    choices  of another template, after the page's own
    more     other fields of `Page`, in place of those made here
    """
    if isinstance(words, str):
        words = Template.read(words)
    said = {"scale": scale, **(said or {})}
    said = {name: inert(one) if isinstance(one, str) else one for name, one in said.items()}
    other = other_data(runs, data)
    how: dict[str, Any] = {"labels": labels, "same": twins(runs), "modelled": modelled}
    found = judge(claims, frame, other_data=other, **how)
    filled = [
        replace(one, text=one.text or words.texts.get(one.title, "").format_map(said))
        for one in sections
    ]
    fields = {
        "facts": [(name, inert(value)) for name, value in facts(runs, scale, head)],
        "verdicts": found,
        "other_data": "; ".join(dict.fromkeys(other.values())),
        "warning": busy(runs),
        "found": words.texts.get(FOUND, "").format_map(said),
        "limits": words.texts.get(LIMITS, "").format_map(said),
        "labels": labels or {},
        **more,
    }
    return Page(
        words.title.format_map(said),
        scale,
        runs,
        sections=filled,
        frame=frame,
        choices=(*words.choices, *choices),
        **fields,
    )


def other_data(runs: Sequence[Run], printed: str | Mapping[str, str]) -> dict[str, str]:
    """The rows whose data are not the paper's, and which data they are (see `made`)."""
    found = {}
    for run in runs:
        papers = printed if isinstance(printed, str) else printed.get(run.model, "")
        if papers and run.data not in ("", papers):
            found[run.row] = f"{run.data}, not {papers}"
    return found


def title_text(page: Page) -> str:
    """The title with the scale, and the data where they are not the paper's."""
    data = f"; data: {page.other_data}" if page.other_data else ""
    return f"{page.title} ({scale_text(page.scale)}{data})"


def write(page: Page, folder: Path) -> None:
    """Write the page and its figures into a folder."""
    (folder / PAGE_FILE).write_text(markdown(page), encoding="utf-8", newline="\n")
    for name, draw in page.figures.items():
        plot.save(draw(), folder, name)


def numbers(page: Page) -> pd.DataFrame:
    """The numbers of a page: a row of numbers.csv each."""
    return summary(page.frame, page.printed).assign(scale=page.scale)


def markdown(page: Page) -> str:
    """The whole page: what was found and what was run, the first table, the figures, what the page does not
    say, the claims, the other tables, the choices, and how it was run."""
    first, *others = page.sections or [Section("")]
    parts = [
        f"# {plain(title_text(page))}",
        found_text(page),
        run_text(page.facts),
        page.warning,
        *_section(first),
        *(
            f"![{plain(one.title)}]({name}.png)\n\n*{plain(one.caption)}*"
            for name, one in page.figures.items()
        ),
        f"**{LIMITS}** {page.limits}" if page.limits else "",
        *_claims(page),
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


def found_text(page: Page) -> str:
    """The first paragraph: what the runs show, how many claims have each verdict, and the decided ones in
    words. Repeated claims are not counted."""
    own = [verdict for verdict in page.verdicts if not verdict.repeats]
    counts, words = tally(own), [page.found]
    if own:
        count = f"{len(own)} claims" if len(own) > 1 else "one claim"
        agree, differ = (_number(counts, DECIDED[side::2]) for side in (0, 1))
        rest = {
            name: sum(counts.get(word, 0) for word in group) for name, group in UNDECIDED.items()
        }
        others = [f"{n} {'is' if n == 1 else 'are'} {name}" for name, n in rest.items() if n]
        words.append(
            f"Of {count} {agree[0]} {'agrees' if agree[1] else 'agree'} with these runs and {differ[0]} "
            f"{'differs' if differ[1] else 'differ'}{''.join(f'; {part}' for part in others)}."
        )
        expected = sum(verdict.claim.where == EXPECTED for verdict in own)
        if expected == len(own):
            words.append("All are this project's own expectations.")
        elif expected:
            words.append(
                f"{expected} of them {'is' if expected == 1 else 'are'} this project's own."
            )
    text = " ".join(word for word in words if word)
    lines = []
    for title, side in (("Agrees", 0), ("Differs", 1)):
        texts = [v.claim.text.rstrip(".") for v in own if v.word in DECIDED[side::2]]
        if texts:
            more = f"; and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
            lines.append(f"- *{title}*: {'; '.join(texts[:NAMED])}{more}.")
    return "\n\n".join([f"**Found.** {text}", "\n".join(lines)]).strip() if text else ""


def _number(counts: Mapping[str, int], words: Sequence[str]) -> tuple[str, bool]:
    """How many verdicts of these words, and whether the verb is singular."""
    count = sum(counts.get(word, 0) for word in words)
    return str(count or "none"), count < 2


def run_text(facts: Sequence[tuple[str, str]]) -> str:
    """The conditions of the whole page in one paragraph."""
    known = dict(facts)
    names = ("model", "data", "workers", "seeds")
    if "seeds" in known:
        known["seeds"] = known["seeds"].partition(";")[0]
    parts = [known.get("scale", ""), *(f"{n}: {known[n]}" for n in names if n in known)]
    told = [f"{part[:1].upper()}{part[1:]}." for part in parts if part]
    return f"**Run.** {' '.join(told)}" if told else ""


def _claims(page: Page) -> list[str]:
    """The claims, a check a row, with what keeps them open as lettered notes, and how each is read."""
    if not page.verdicts:
        return []
    ordered = sorted(page.verdicts, key=lambda verdict: ORDER.index(verdict.word))
    letters: dict[str, str] = {}
    rows = []
    for verdict in ordered:
        claim = verdict.claim
        note = letters.setdefault(verdict.why, _letter(len(letters))) if verdict.why else ""
        word = f"**{verdict.text}**" if verdict.word in DECIDED else verdict.text
        head = (f"{claim.id}. {claim.text} ({claim.where})", f"{word} ({note})" if note else word)
        effects = [(f"{e.what}: {e.measured}", _range(verdict, e), e.n) for e in verdict.effects]
        for place, effect in enumerate(effects or [("no runs", "", 0)]):
            again = (f"{claim.id}, check {place + 1}", "")
            rows.append((*(again if place else head), *effect))
    columns = ["claim", "verdict", "measured (95 % interval)", "agrees if", "n"]
    parts = ["## Claims", markdown_table(pd.DataFrame(rows, columns=columns))]
    parts.append(
        "\n".join(f"- ({letter}) {inert(_sentence(why))}" for why, letter in letters.items())
    )
    parts += [count_text(page), prior_text(page.verdicts)]
    readings: dict[str, list[str]] = {}
    for verdict in page.verdicts:
        readings.setdefault(verdict.claim.reading, []).append(verdict.claim.id)
    lines = [f"- {', '.join(ids)}: {text}" for text, ids in readings.items() if text]
    return [*parts, "How the claims are read:\n\n" + "\n".join(lines) if lines else ""]


def _range(verdict: Verdict, effect: Effect) -> str:
    """The claimed range, with the printed number, and whether this project chose the range. A claim that
    cannot follow has none."""
    ours = "our range" if verdict.claim.margin == OURS else ""
    printed = f"printed: {effect.printed}" if effect.printed else ""
    if verdict.word == "cannot follow":
        return printed
    more = ", ".join(part for part in (printed, ours) if part)
    claimed = effect.claimed.replace("e +0", "e 0")  # above 0
    return f"{claimed} ({more})" if more else claimed


def _letter(place: int) -> str:
    """a to z, then aa, ab, ..."""
    more, last = divmod(place, 26)
    return (_letter(more - 1) if more else "") + chr(ord("a") + last)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def plain(text: str) -> str:
    """Markdown that shows this text as it is: a title or a name, in one line."""
    one_line = " ".join(str(text).split())
    return re.sub(r"[\\`*\[\]<>|]", lambda found: f"&#{ord(found[0])};", one_line)


def inert(text: object) -> str:
    """Markdown of this text without HTML and links: records may be somebody else's."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", str(text)).replace("](", "]&#40;")


def markdown_table(table: pd.DataFrame, *, links: bool = False) -> str:
    """A table of text in markdown; a bar inside a cell is escaped. ``links``: cells may hold links."""

    def line(cells: Sequence[object]) -> str:
        texts = (str(cell) if links else inert(cell) for cell in cells)
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    rows = table.itertuples(index=False, name=None)
    return "\n".join([line(list(table.columns)), "|" + "---|" * table.shape[1], *map(line, rows)])


def tally_text(counts: Mapping[str, int]) -> str:
    """How many claims have each verdict, in a fixed order: "2 agree, 1 differs, 3 inconclusive"."""
    verbs = {"agrees": "agree", "differs": "differ"}
    parts = []
    for word in (word for word in ORDER if counts.get(word)):
        verb, *given = word.partition(" (")
        said = verbs.get(verb, verb) if counts[word] > 1 else verb
        parts.append(f"{counts[word]} {said}{''.join(given)}")
    return ", ".join(parts)


def count_text(page: Page) -> str:
    """How many verdicts of each word, and how many agreements and differences chance would give."""
    counts = tally(page.verdicts)
    repeated = sum(bool(v.repeats) for v in page.verdicts)
    more = f" {repeated} more compare the same trainings again." if repeated else ""
    judged, excluding, agreements, differences = by_chance(page.verdicts)
    if excluding:
        more += (
            f" Of the {judged} judged claims {excluding} have a range without 'no effect'. If no row "
            f"differed from another, at most {agreements:.1f} of these {excluding} would agree by chance."
        )
    if differences >= LEAST:
        more += f" If all claims were true, at most {differences:.1f} of the {judged} would differ by chance."
    count = sum(counts.values())
    return f"Of {count} claim{'s' * (count != 1)}: {tally_text(counts)}.{more}"


def prior_text(verdicts: Sequence[Verdict]) -> str:
    """Where intervals are moderated, and the degrees of freedom of each prior; empty where none is."""
    found = {}
    for effect in (effect for verdict in verdicts for effect in verdict.effects):
        if (prior := effect.prior) is not None:
            quantity, setting, kind, model = effect.check.group
            what = ", ".join(part for part in (quantity, setting, f"{kind}s", model) if part)
            df = "infinitely many" if math.isinf(prior.df) else f"{prior.df:.2g}"
            found[what] = f"{what}: {df} from {prior.rows} comparisons"
    if not found:
        return ""
    return (
        "Intervals of these comparisons are moderated (statistics.py); degrees of freedom of the prior of "
        f"their variances: {'; '.join(found.values())}. All others are Student's."
    )


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
    """A check with its numbers; None for one that is open, not printed or not defined."""
    check = effect.check
    numbers = {
        "printed": check.printed,
        "above": check.above,
        "below": check.below,
        "measured": effect.mean,
        "low": effect.low,
        "high": effect.high,
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


@dataclass(frozen=True)
class OtherScale:
    """A scale at which an artifact is published: the claims that it tests, by id, and the seconds of training
    that its runs have recorded."""

    scale: str
    claims: frozenset[str]
    seconds: float


def show(
    page: Page, console: Console, place: Path | None = None, others: Sequence[OtherScale] = ()
) -> None:
    """One screen: the first table, each claim that the runs say something of with its first effect, what the
    other claims need, and where the rest lies (``place``). ``others``: scales that may test them.

    On other data than the paper's the table has no printed numbers: they are of another problem."""
    console.print(f"[bold]{escape(title_text(page))}[/bold]")
    if page.warning:
        console.print(f"[bold]{escape(page.warning)}[/bold]")
    data = data_text(page.runs)
    tables = [(s.title, s.table) for s in page.sections if s.table is not None]
    for title, table in tables[:1]:
        title = f"{title} (data: {data})" if data != "-" else title
        if page.other_data:
            table = table[[name for name in table.columns if not name.endswith(": printed")]]
            table.columns = [name.removesuffix(": ours") for name in table.columns]
        fitting = _fitting(table, console.width)
        headings = ["\n".join(_heading(name)) for name in fitting.columns]
        console.print(grid(title, headings, fitting.itertuples(index=False, name=None)))
    for verdict in page.verdicts:
        if verdict.needs:
            continue
        effect = verdict.effects[0].directed if verdict.effects else ""
        line = f"  {verdict.word:<14} {verdict.claim.text}"
        between = " " if len(line) + len(effect) < console.width else "\n" + " " * 17
        console.print(escape(f"{line}{between}{effect}".rstrip()), soft_wrap=True)
    for line in _untested(page.verdicts, others):
        console.print(escape(line), soft_wrap=True)
    if page.verdicts:
        console.print(escape(count_text(page)))
    if place is not None:
        console.print(f"page: {escape(str(place / PAGE_FILE))}", soft_wrap=True)
        for name in page.figures:
            console.print(f"figure: {escape(str(place / name))}.png", soft_wrap=True)


def _untested(verdicts: Sequence[Verdict], others: Sequence[OtherScale]) -> list[str]:
    """A line for each thing that claims need to be tested, with the published scales that test some of them:
    each scale that tests more of them than the shorter ones."""
    by_need: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.needs:
            by_need.setdefault(verdict.needs, []).append(verdict.claim.id)
    lines = []
    for need, ids in by_need.items():
        several = f"{len(ids)} claims need" if len(ids) > 1 else "1 claim needs"
        scales, most = [], 0
        for other in others:
            if (tested := len(other.claims.intersection(ids))) > most:
                most = tested
                scales.append(
                    f"scale={other.scale} tests {tested} (about {duration(other.seconds)})"
                )
        lines.append(f"{several} {need}" + (f": {', '.join(scales)}" if scales else ""))
    return lines


def _fitting(table: pd.DataFrame, width: int) -> pd.DataFrame:
    """The leading columns that fit a terminal."""
    cells = [[*_heading(name), *map(str, table.iloc[:, n])] for n, name in enumerate(table)]
    ends = np.cumsum([2 + max(map(len, column)) for column in cells])
    return table.iloc[:, : max(1, int((ends <= width).sum()))]


def _heading(name: object) -> list[str]:
    """The lines of a column's heading."""
    return re.sub(r"([,:]) ", r"\1\n", str(name)).split("\n")


def grid(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], *, wraps: bool = False
) -> Table:
    """A table for the terminal: its first column is at the left, the others at the right. ``wraps``: where
    the others are too wide together, their cells have several lines."""
    made = Table(
        title=escape(title),
        title_justify="left",
        box=box.SIMPLE,
        pad_edge=False,
        collapse_padding=True,
    )
    for place, heading in enumerate(headings):
        made.add_column(
            escape(heading), justify="right" if place else "left", no_wrap=not (place and wraps)
        )
    for row in rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    return made


def console_of_width() -> Console:
    """A console that wraps at 100 columns whatever the terminal says."""
    return console_of(sys.stdout, width=100)
