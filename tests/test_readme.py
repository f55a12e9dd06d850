"""The numbers of README.md are those of the published table."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from dgc_repro.paper.benchmark.tradeoff import stated

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
ROWS = {
    "no compression": "none",
    "static 8-bit": "static8",
    "dynamic 4-16-bit": "dynamic",
    "static 8-bit + error feedback, stochastic rounding": "static8_ef",
    "dynamic 4-16-bit + error feedback, stochastic rounding": "dynamic_ef",
}
HEADING = ("accuracy %, paper", "accuracy %, here", "payload, % of uncompressed")


def numbers_of(paper: str, scale: str, artifact: str) -> pd.DataFrame:
    """The published numbers of an artifact."""
    table = pd.read_csv(REPOSITORY / "results" / paper / scale / "numbers.csv")
    return table[table["artifact"] == artifact]


def lines_of_the_readme() -> dict[str, list[str]]:
    """The cells of the README's table by method."""
    text = README.read_text(encoding="utf-8")
    table = text.partition(f"| method | {' | '.join(HEADING)} |\n")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {method: own for method, *own in cells[1:]}


def lines_of(table: pd.DataFrame) -> dict[str, list[str]]:
    """The same lines, written from numbers.csv."""
    found = table.set_index(["row", "quantity"])

    def line(row: str) -> list[str]:
        accuracy, payload = found.loc[(row, "test accuracy")], found.loc[(row, "payload of none's")]
        printed = "-" if pd.isna(accuracy["printed"]) else f"{accuracy['printed']:.2f}"
        ours = f"{accuracy['mean']:.2f} ± {accuracy['sd']:.2f}"
        return [printed, ours, f"{payload['mean']:.1f}"]

    return {label: line(row) for label, row in ROWS.items()}


def test_the_numbers_of_the_readme_are_the_published_ones() -> None:
    table = numbers_of("dynamic", "small", "table1")
    assert lines_of_the_readme() == lines_of(table)
    text = README.read_text(encoding="utf-8")
    (seeds,) = re.findall(r"standard deviation of (\d+) seeds", text)
    assert set(table["n"]) == {int(seeds)}


def test_the_accuracies_at_medium_are_the_published_ones() -> None:
    table = numbers_of("dynamic", "medium", "table1")
    own = table[table["quantity"] == "test accuracy"].set_index("row")
    (said,) = re.findall(r"At scale `medium` (.*?)\n\n", README.read_text("utf-8"), re.DOTALL)
    assert re.findall(r"(\d+\.\d+) %", said) == [
        f"{own.loc[row, 'mean']:.1f}" for row in ("none", "static8", "dynamic")
    ]
    (seeds,) = re.findall(r"(\d+) seed", said)
    assert set(own["n"]) == {int(seeds)}


def test_the_numbers_beside_the_picture_are_the_published_ones() -> None:
    """Times fewer bytes and losses that the sentence on the picture says, in its order."""
    page = REPOSITORY / "results" / "benchmark" / "small" / "methods"
    text = README.read_text("utf-8")
    assert f"]({(page / 'headline.png').relative_to(REPOSITORY).as_posix()})" in text
    (said,) = re.findall(r"The picture shows (.*?)\n\n", text, re.DOTALL)
    said = " ".join(said.split())
    table = numbers_of("benchmark", "small", "methods").set_index(["row", "quantity"])

    def numbers(method: str) -> tuple[str, str]:
        own = [
            table.loc[(f"low.{method}", quantity), "mean"]
            for quantity in ("payload: times less than dense", "loss against dense")
        ]
        return f"{own[0]:.3g}", f"{round(own[1], 1) + 0.0:.1f}"

    found = re.findall(r"([\d.]+) times fewer bytes \(loss (-?[\d.]+) points;", said)
    assert found == [
        numbers(method) for method in ("uniform_4", "topk_0.01", "topk_0.001", "powersgd_2")
    ]
    (seeds,) = re.findall(r"with ([\d to]+) seeds", said)
    drawn = {f"low.{method}" for method in stated_names()}
    counts = {int(table.loc[(row, "loss against dense"), "n"]) for row in drawn}
    assert seeds == " to ".join(map(str, sorted({min(counts), max(counts)})))
    (accuracy,) = re.findall(r"dense training ends at ([\d.]+) %", said)
    assert accuracy == f"{table.loc[('low.dense', 'test quality'), 'mean']:.1f}"
    (shown,) = re.findall(
        r"images, recipe low, n.*?: of (\d+) settings (\d+) are .*?, 0 better, (\d+) worse; (\d+) are und",
        (page / "table.md").read_text("utf-8"),
    )
    classes = (
        r"Of the (\d+) settings (\d+) are .*? (\d+) are shown to lose, and (\d+) are undecided"
    )
    assert re.findall(classes, said) == [shown]


def stated_names() -> list[str]:
    """The settings of the picture."""
    own = stated(["low"])
    assert own is not None
    return list(own.names)
