"""A page from data alone: rows, quantities, printed numbers, claims, one curve (docs/adding-a-paper.md).

An artifact's module needs no code of its own::

    page = generic_page("Table 2 of ...", rows=ROWS, quantities=QUANTITIES, printed=TABLE_2, claims=CLAIMS)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Choice, Claim, Note, Printed
from dgc_repro.paper.frame import SENT, Column, Quantity, amount, printed_numbers
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike

ACCURACY = Quantity("%", lambda run: run.last("test/accuracy_percent"))
PERPLEXITY = Quantity("", lambda run: run.last("test/perplexity"))
LESS = "payload: times less than the first row"
CURVES = {
    "test accuracy": ("test/accuracy_percent", "test accuracy (%)"),
    "test perplexity": ("test/perplexity", "test perplexity"),
}


@dataclass(frozen=True)
class GenericPage:
    """An artifact's ``page`` function, with its ``rows``: `reproduce` checks them before it trains."""

    rows: Mapping[str, str]
    make: Callable[[Sequence[Run], str], Page]

    def __call__(self, runs: Sequence[Run], scale: str) -> Page:
        return self.make(runs, scale)

    def require_rows(self, trained: Iterable[str]) -> None:
        """Raise UserError for a row of the YAML files that the page does not show."""
        _require("experiment.row", "row in ROWS", trained, self.rows)


def generic_page(
    title: str,
    *,
    rows: Mapping[str, str],
    quantities: Mapping[str, Quantity],
    claims: Sequence[Claim],
    printed: Printed | None = None,
    data: str = "",
    notes: Sequence[Note] = (),
    choices: Sequence[Choice] = (),
) -> GenericPage:
    """The ``page`` function of an artifact. Raises UserError for a name that is not a row or a quantity.

    rows        label by row id (``experiment.row``), in order; the first row is the uncompressed one
    quantities  by name; the columns of ``printed`` are some of these names and stand beside the measured
                ones. What is sent (``floats sent``, ``payload``, ``wire``, `LESS`) is added
    data        the paper's data set, such as "CIFAR-10": accuracy on another one tests no claim
    """
    for claim in claims:
        for check in (*claim.premises, *claim.checks):
            _require(f"claim {claim.id}", "quantity", [check.quantity], [*quantities, *SENT, LESS])
            _require(f"claim {claim.id}", "row", check.rows, rows)
    if printed is not None:
        _require(printed.where, "quantity", printed.columns, quantities)
        _require(printed.where, "row in ROWS", printed.rows, rows)
    order = enumerate(rows.items())
    looks = {row: Look(label, plot.CYCLE[i % 7], plot.MARKERS[i % 7]) for i, (row, label) in order}
    first = next(iter(rows))

    def page(runs: Sequence[Run], scale: str) -> Page:
        require_alike(runs, facts.ALIKE)
        own = of_rows(runs, rows)
        found = frames.measure(own, {**quantities, **SENT})
        less = frames.relative(found, "payload", first, inverse=True, name=LESS)
        frame = frames.join(found, less)
        both = list(printed.columns) if printed else []
        known = printed_numbers(printed, dict(zip(both, both, strict=True))) if printed else {}
        columns = [
            Column(f"{name} {of.unit}".rstrip(), name, printed=known if name in both else None)
            for name, of in quantities.items()
        ]
        columns += [Column("payload", "payload", amount), Column("times less", LESS)]
        said = facts.caption(own, scale)
        text = "Mean ± sample standard deviation over n seeds; payload of one worker, whole run."
        return made(
            Template(title, {"Rows": text}, tuple(choices)),
            scale,
            own,
            frame,
            [Section("Rows", frames.pivot(frame, rows, columns))],
            claims,
            labels=rows,
            data=data,
            head=facts.departures(own, scale),
            printed=known,
            notes=notes,
            figures={
                "curve": lambda: plot.figure(
                    title, said, _curve(own, looks), size=(6.4, 3.8), legend=3
                )
            },
        )

    return GenericPage(rows, page)


def _require(place: str, kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise UserError for a name that is not among the known ones."""
    for name in names:
        if name not in (known := list(known)):
            raise UserError(f"{place}: no {kind} {name!r}; there are: {', '.join(known)}")


def _curve(runs: Sequence[Run], looks: Mapping[str, Look]) -> list[panels.Panel]:
    """Test quality by epoch."""
    has_words = any("test/perplexity" in run.epochs for run in runs)
    metric, label = CURVES["test perplexity" if has_words else "test accuracy"]
    drawn = panels.curves(runs, metric, looks, x="epoch")
    return [panels.panel("", drawn, x="epoch", y=label, log="y" if has_words else "")]
