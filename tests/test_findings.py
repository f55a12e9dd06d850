"""The sentences of docs/findings.md to cite, which open the overview, have published numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from dgc_repro.paper import pool
from dgc_repro.paper.index import findings

RESULTS = Path(__file__).resolve().parent.parent / "results"
NETWORKS = RESULTS.parent / "docs" / "networks.md"


def numbers(place: str, artifact: str, quantity: str, value: str = "mean") -> pd.Series[float]:
    """A quantity of an artifact by row."""
    table = pd.read_csv(RESULTS / place / "numbers.csv")
    own = table[(table["artifact"] == artifact) & (table["quantity"] == quantity)]
    return own.set_index("row")[value]


PAGE = RESULTS / "benchmark" / "small" / "methods" / "table.md"


def settings(title: str) -> dict[str, dict[str, str]]:
    """The table of a workload by setting: cells by column."""
    part = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    head, _, *rest = [[cell.strip() for cell in row] for row in rows]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rest}


def loss_of(setting: str) -> str:
    """The loss of a setting on images and its interval, as a sentence has them."""
    own = settings("images at 81 %")[setting]
    return f"{own['loss, points'].partition(' ±')[0]} points, {own['95 % interval']}"


def times(setting: str) -> str:
    own = numbers("benchmark/small", "methods", "payload: times less than dense")
    return f"{own[f'low.{setting}']:.3g}"


def test_sentence_1_counts_the_classes_on_images() -> None:
    line = r"images at 81 %, n = (.*?): of (\d+) settings (\d+) are .*?, (\d+) better, (\d+) worse; (\d+) are"
    ((n, of, equivalent, better, worse, undecided),) = re.findall(
        line, PAGE.read_text(encoding="utf-8")
    )
    assert better == "0"
    assert f"{equivalent} of {of} compressed settings are shown to be equivalent" in findings()[0]
    assert (
        f"{worse} are shown to be worse, and {undecided} are undecided (n = {n};" in findings()[0]
    )
    accuracy = numbers("benchmark/small", "methods", "test quality")["low.dense"]
    assert f"at {accuracy:.0f} % accuracy" in findings()[0]


def test_sentences_2_to_4_have_losses_on_images() -> None:
    for place, setting in (
        (1, "uniform_4"), (1, "onebit"), (2, "topk_0.01"), (3, "powersgd_4"), (3, "powersgd_1"),
    ):  # fmt: skip
        said = findings()[place].replace("95 % interval ", "")
        assert f"{times(setting)} times fewer" in said
        assert f"(loss {loss_of(setting)})" in said
    assert f"loses {loss_of('randomk_0.01').replace(', ', ' (')})" in findings()[2]


def test_sentence_5_has_bytes_among_32_workers() -> None:
    wire = numbers("benchmark/small", "methods", "wire a step, N = 32")
    gathered = wire["low.uniform_8"] / wire["low.dense"]
    shards = wire["low.dense"] / wire["low.uniform_4_sharded"]
    assert f"moves {gathered:.1f} times the bytes" in findings()[4]
    assert f"move {shards:.1f} times fewer" in findings()[4]


def test_sentence_6_has_the_loss_without_error_feedback() -> None:
    own = settings("transformer, words (first edition)")
    plain, fed = (own[name]["95 % interval"] for name in ("uniform_4_plain", "uniform_4"))
    loss = numbers("benchmark/small", "methods", "loss against dense")
    said = findings()[5]
    for row, interval in (("uniform_4_plain", plain), ("uniform_4", fed)):
        low, high = (f"{float(end):.1f}" for end in interval.split(" to "))
        assert f"{loss[f'transformer.{row}']:.1f} %" in said
        assert f"{low} to {high}" in said


def test_sentence_7_is_that_of_the_page_on_dgc() -> None:
    text = (RESULTS.parent / "docs" / "benchmark.md").read_text("utf-8")
    for masking in ("yes", "no"):
        (cell,) = re.findall(rf"^\| LSTM, 2 \| {masking} \| ([\d.]+) \(", text, re.MULTILINE)
        assert f"{float(cell):.0f} %" in findings()[6] or f"{cell} %" in findings()[6]


def test_sentence_8_has_gravacs_gains() -> None:
    verdicts = {
        v["claim"]: v["effects"][0]
        for v in pool.records(RESULTS / "gravac" / "low")["gains"]["verdicts"]
    }
    energy = verdicts["energy.dense"]
    said = [f"{energy[key]:.3f}" for key in ("measured", "low", "high")]
    assert f"{said[0]} ({said[1]} to {said[2]})" in findings()[7]
    for claim in ("norm.refused", "norm.confirms"):
        assert f"{verdicts[claim]['measured']:.2f}" in findings()[7]


def test_sentence_9_has_the_gap_on_fashion_mnist() -> None:
    (one,) = (
        v
        for v in pool.records(RESULTS / "dynamic" / "fashion")["table1"]["verdicts"]
        if v["claim"] == "1b"
    )
    effect = one["effects"][0]
    assert (
        f"{effect['measured']:.2f} points ({effect['low']:.2f} to {effect['high']:.2f}; n = {one['n']}"
        in (findings()[8])
    )


def test_gravacs_savings_are_those_of_table_2() -> None:
    what = "floats sent, times less than dense"
    ours, printed = (
        numbers("gravac/small", "table2", what, value) for value in ("mean", "printed")
    )
    rows = [f"{model}.gravac07" for model in ("resnet101", "vgg16", "lstm")]
    text = " ".join((RESULTS.parent / "docs" / "findings.md").read_text("utf-8").split())
    measured = [f"{ours[row]:.3g}" for row in rows]
    stated = [f"{printed[row]:.0f}" for row in rows]
    assert "sends {}, {} and {} times fewer floats".format(*measured) in text
    assert "the paper prints {}, {} and {}".format(*stated) in text


def test_every_sentence_that_one_may_cite_links_to_its_page() -> None:
    assert len(findings()) == 10
    linked = [bool(re.search(r"\]\(", sentence)) for sentence in findings()]
    # 2 to 5 go on with the page of the first.
    assert [place for place, is_linked in enumerate(linked, start=1) if not is_linked] == [
        2,
        3,
        4,
        5,
    ]


def test_what_did_not_reproduce_differs_on_its_page() -> None:
    text = (RESULTS.parent / "docs" / "findings.md").read_text("utf-8")
    section = text.partition("## What did not reproduce")[2].partition("\n## ")[0]
    pages = re.findall(r"\(\.\./(results/\S+)/table\.md\)", section)
    assert len(pages) == section.count("\n- ") == 7
    for page in pages:
        folder = RESULTS.parent / page
        words = [v["verdict"] for v in pool.records(folder.parent)[folder.name]["verdicts"]]
        assert "differs" in words, page


def test_sentence_10_has_the_speedups_on_links() -> None:
    (cells,) = re.findall(r"^\| top-k 1 % \| (.*) \|$", NETWORKS.read_text("utf-8"), re.MULTILINE)
    measured = [float(cell) for cell in cells.split(" | ")]
    table = pd.read_csv(RESULTS / "benchmark" / "small" / "numbers.csv")
    of_target = table["quantity"] == "modelled speedup to the target, slim model on a CPU"
    fast = table[of_target & table["setting"].isin(["10 Gbit/s", "100 Gbit/s"])]
    own = fast[~fast["row"].str.contains("adam|dense")]["mean"].max()
    assert f"{min(measured):.0f} to {max(measured):.0f} times" in findings()[9]
    assert f"more than {own:.1f} times" in findings()[9]
