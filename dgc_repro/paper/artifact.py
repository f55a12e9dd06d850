"""An artifact (a table or figure of a paper) as data: rows, quantities, tables, claims, figures.

    page = Artifact(
        __file__,                                   # its words lie beside it, in <artifact>.md
        rows={"dense": "no compression", "topk": "top-k 1 %"},
        quantities={"test accuracy": ACCURACY},
        printed=TABLE_2,                            # columns are quantities
        tables={"Accuracy": [seeds("test accuracy"), "test accuracy", "payload"]},
        claims=CLAIMS,
        figures={"fig": drawing("Table 2", lambda shown: [
            panel("loss", shown.curves("train/loss"), x="step", y="training loss (nats)", log="y"),
        ])},
    )

Papers of this project and papers from outside (docs/adding-a-paper.md) are written alike. A page whose rows
or sections depend on its runs is a function ``page(runs, scale)``, which makes an `Artifact` and calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Choice, Claim, Note, Printed
from dgc_repro.paper.frame import SENT, Column, Known, Quantity, Relative, amount
from dgc_repro.paper.markdown import inert
from dgc_repro.paper.page import FOUND, LIMITS, Drawing, Page, Section, Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike
from dgc_repro.paper.verdict import judge

ACCURACY = Quantity("%", lambda run: run.last("test/accuracy_percent"))
PERPLEXITY = Quantity("", lambda run: run.last("test/perplexity"))
LESS = "payload: times less than the first row"
BANDS = "Lines are means over the seeds; bands are one standard deviation."
BARS = "Points are means over the seeds; bars are one standard deviation."
GENERIC = "Mean ± sample standard deviation over n seeds; payload of one worker, whole run."
CURVES = {
    "test/perplexity": ("test perplexity", "y"),
    "test/accuracy_percent": ("test accuracy (%)", ""),
}


@dataclass(frozen=True)
class Shown:
    """What the tables, facts and figures of a page are made from."""

    runs: Sequence[Run]
    scale: str
    frame: pd.DataFrame
    looks: Mapping[str, Look]

    def curves(self, metric: str, x: str = "step", **how: Any) -> panels.Draw:
        """`panels.curves` of all rows."""
        return panels.curves(self.runs, metric, self.looks, x=x, **how)


@dataclass(frozen=True)
class Rows:
    """A table with rows of its own: labels by row, and the heading of their column."""

    rows: Mapping[str, str]
    columns: Sequence[Column | str]
    first: str = "method"


Made = Callable[[Shown], Any]


def drawing(title: str, parts: Made, note: str = "", **layout: Any) -> Callable[[Shown], Drawing]:
    """Describe a figure: ``parts`` makes its panels; ``note`` explains it, in sentences of the caption on the
    page; ``layout`` are options of `plot.figure` (columns, size, legend)."""

    def made(shown: Shown) -> Drawing:
        return described(title, note, shown.runs, shown.scale, lambda: parts(shown), **layout)

    return made


def described(
    title: str, note: str, runs: Sequence[Run], scale: str, parts: Callable[[], plot.Panels],
    *, finish: Callable[[Figure], object] = lambda drawn: None, **layout: Any,
) -> Drawing:  # fmt: skip
    """Return the figure of ``parts`` with what its heading and its caption say of the runs. ``finish``: draws
    on it when its layout is final."""

    def draw() -> Figure:
        drawn = plot.figure(title, facts.line(runs, scale), parts(), **layout)
        finish(drawn)
        return drawn

    return Drawing(title, f"{note} {facts.caption(runs, scale)}".strip(), draw)


def built(shown: Shown) -> list[tuple[str, str]]:
    """The scale, in place of the facts of trained runs: the models have the paper's sizes at every scale."""
    scale = f"{facts.scale_text(shown.scale)}; models at the paper's sizes"
    return [("scale", scale), ("workers", ""), ("seconds", ""), ("seeds", "")]


def looks_of(rows: Mapping[str, str | Look]) -> dict[str, Look]:
    """The look of each row: its own, or the next colour and marker with its label."""
    return {
        row: label
        if isinstance(label, Look)
        else Look(label, plot.CYCLE[place % 7], plot.MARKERS[place % 7])
        for place, (row, label) in enumerate(rows.items())
    }


@dataclass(frozen=True)
class Artifact:
    """An artifact's ``page``. Raises UserError where a claim or a printed number names no row or quantity.

    words       the module's ``__file__``, whose Markdown file has title, texts and claims; or a title
    rows        label or look by row id (``experiment.row``), in order; the first row is the uncompressed one
    quantities  numbers of a run by name, and numbers `Relative` to a row. What is sent (``floats sent``,
                ``payload``, ``wire``, `LESS`) is added for trained runs
    tables      columns by title of the section; a column may be the name of a quantity alone. `Rows`: a table
                with other rows. A function of `Shown` makes the table, or none; a frame is the table. No
                columns: the section has a text alone. Default: n and all quantities
    printed     a printed table whose columns are quantities, or numbers by row and quantity, which stand
                beside the measured ones
    figures     by file name, made with `drawing` or `described`. Default, where ``numbers`` is not given: the
                test quality by epoch
    data        the paper's data set, such as "CIFAR-10", or by model: accuracy on another one tests no claim
    numbers     makes the frame in place of ``quantities``, with rows that need not be those of the runs
    head, said  functions of `Shown`: more facts, and values of ``{name}`` in the words
    alike       config keys that must be equal in all runs
    first       heading of the column of rows
    modelled    the numbers are a model's, without a spread, and are judged as they are
    """

    words: str
    rows: Mapping[str, str | Look]
    quantities: Mapping[str, Quantity | Relative] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Column | str] | Rows | Made | pd.DataFrame] = field(
        default_factory=dict
    )
    claims: Sequence[Claim] = ()
    printed: Printed | Known | None = None
    figures: Mapping[str, Callable[[Shown], Drawing] | Drawing] = field(default_factory=dict)
    data: str | Mapping[str, str] = ""
    notes: Sequence[Note] = ()
    choices: Sequence[Choice] = ()
    numbers: Callable[[Sequence[Run]], pd.DataFrame] | None = None
    head: Made | None = None
    said: Made | None = None
    alike: Sequence[str] = facts.ALIKE
    first: str = "method"
    modelled: bool = False

    def __post_init__(self) -> None:
        if self.numbers is not None:
            return
        known = [*self.quantities, *SENT, LESS]
        require_names(self.claims, known, self.rows)
        for name, one in self.quantities.items():
            if isinstance(one, Relative):
                _require(f"quantity {name!r}", "quantity", [one.quantity], known)
                _require(f"quantity {name!r}", "row", [one.to], self.rows)
        for title, table in self.tables.items():
            if callable(table) or isinstance(table, pd.DataFrame):
                continue
            columns = table.columns if isinstance(table, Rows) else table
            asked = [one if isinstance(one, str) else one.quantity for one in columns]
            _require(f"table {title!r}", "quantity", asked, known)
        if isinstance(self.printed, Printed):
            _require(self.printed.where, "quantity", self.printed.columns, known)
            for name, unit in self.printed.columns.items():
                if name in SENT and unit != SENT[name].unit:
                    raise UserError(
                        f"{self.printed.where}: {name} is measured in {SENT[name].unit}, got [{unit}]; name "
                        f"the column otherwise, with a quantity of its own: Relative({name!r}, <row>, ...)"
                    )
            _require(self.printed.where, "row in ROWS", self.printed.rows, self.rows)

    def require_rows(self, trained: Iterable[str]) -> None:
        """Raise UserError for a row of the YAML files that the page does not show."""
        if self.numbers is None:
            _require("experiment.row", "row in ROWS", trained, self.rows)

    def __call__(self, runs: Sequence[Run], scale: str) -> Page:
        """The page of finished runs of one scale. Raises UserError if they are not one experiment."""
        own = of_rows(runs, self.rows) if self.numbers is None else list(runs)
        require_alike(own, self.alike)
        looks = looks_of(self.rows)
        labels = {row: look.label for row, look in looks.items()}
        is_trained = any(not run.epochs.empty for run in own)
        if self.numbers is not None:
            frame = self.numbers(own)
        else:
            quantities = dict(self.quantities)
            if is_trained:
                less = Relative("payload", next(iter(self.rows)), inverse=True)
                quantities |= {**SENT, LESS: less}
            frame = frames.measure(own, quantities)
        shown = Shown(own, scale, frame, looks)
        is_title = not self.words.endswith(".py")
        words = Template(self.words, {"Rows": GENERIC}) if is_title else Template.read(self.words)
        known = self.printed or {}
        if isinstance(known, Printed):
            known = known.numbers
        sent = (Column("payload", "payload", amount), Column("times less", LESS))
        count = frames.seeds(next(iter(self.quantities), "payload"))
        tables = self.tables or {"Rows": (count, *self.quantities, *sent)}
        made = {title: one(shown) if callable(one) else one for title, one in tables.items()}
        head = self.head or (lambda shown: facts.departures(shown.runs, scale) if is_title else [])
        figures = self.figures
        if not figures and is_trained and self.numbers is None:
            figures = {"curve": drawing(words.title, _curve, BANDS, size=(6.4, 3.8), legend=3)}
        said = {"scale": scale, **(self.said(shown) if self.said else {})}
        said = {name: inert(one) if isinstance(one, str) else one for name, one in said.items()}

        def text(title: str) -> str:
            return words.texts.get(title, "").format_map(said)

        others = other_data(own, self.data)
        return Page(
            title=words.title.format_map(said),
            scale=scale,
            runs=own,
            facts=[(n, inert(value)) for n, value in facts.facts(own, scale, head(shown))],
            sections=[
                Section(title, self._table(title, one, shown, labels, known), text(title))
                for title, one in made.items()
                if one is not None
            ],
            verdicts=judge(
                self.claims,
                frame,
                labels=labels,
                same=frames.twins(own),
                modelled=self.modelled,
                other_data=others,
                guesses={run.row for run in own} - {run.row for run in own if not run.guesses},
            ),
            frame=frame,
            printed=known,
            notes=self.notes,
            choices=(*words.choices, *self.choices),
            warning=facts.busy(own),
            found=text(FOUND),
            limits=text(LIMITS),
            other_data="; ".join(dict.fromkeys(others.values())),
            figures={n: one(shown) if callable(one) else one for n, one in figures.items()},
            labels=labels,
        )

    def _table(
        self, title: str, table: Any, shown: Shown, labels: Mapping[str, str], known: Known
    ) -> pd.DataFrame | None:
        if isinstance(table, Section):
            raise UserError(
                f"tables[{title!r}]: its function returns the table alone, got a Section"
            )
        if isinstance(table, pd.DataFrame):
            return table
        if not table:
            return None
        if not isinstance(table, Rows):
            # A row that the paper prints is shown without runs too.
            there = {*shown.frame["row"], *(row for row, _ in known)}
            own = {row: label for row, label in labels.items() if row in there}
            table = Rows(own, table, self.first)
        columns = [self._column(one, known) for one in table.columns]
        return frames.pivot(shown.frame, table.rows, columns, table.first)

    def _column(self, column: Column | str, known: Known) -> Column:
        """A column with the printed numbers beside it; a name alone becomes a heading with its unit."""
        if isinstance(column, str):
            unit = self.quantities[column].unit if column in self.quantities else ""
            form = amount if column in ("payload", "wire") else None
            column = Column(f"{column} {unit}".rstrip(), column, form)
        is_printed = any(name == column.quantity for _, name in known)
        return replace(column, printed=known) if is_printed and column.printed is None else column


def other_data(runs: Sequence[Run], printed: str | Mapping[str, str]) -> dict[str, str]:
    """The rows whose data are not the paper's (`Artifact.data`), and which data they are."""
    found = {}
    for run in runs:
        papers = printed if isinstance(printed, str) else printed.get(run.model, "")
        if papers and run.data not in ("", papers):
            found[run.row] = f"{run.data}, not {papers}"
    return found


def _curve(shown: Shown) -> list[panels.Panel]:
    """Test quality by epoch."""
    metric = next((m for m in CURVES if any(m in run.epochs for run in shown.runs)), "")
    label, log = CURVES.get(metric, ("", ""))
    return [panels.panel("", shown.curves(metric, "epoch"), x="epoch", y=label, log=log)]


def require_names(claims: Iterable[Claim], quantities: Iterable[str], rows: Iterable[str]) -> None:
    """Raise UserError for a claim on a quantity or a row that there is not, or with another one's id."""
    seen = set[str]()
    for claim in claims:
        if claim.id in seen:
            raise UserError(f"claim {claim.id}: two claims have this id; give each its own")
        seen.add(claim.id)
        for check in (*claim.premises, *claim.checks):
            _require(f"claim {claim.id}", "quantity", [check.quantity], quantities)
            _require(f"claim {claim.id}", "row", check.rows, rows)


def _require(place: str, kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise UserError for a name that is not among the known ones."""
    for name in names:
        if name not in (known := list(known)):
            raise UserError(f"{place}: no {kind} {name!r}; there are: {', '.join(known)}")
