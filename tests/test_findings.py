"""The sentences of docs/findings.md to cite, which open the overview, have published numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from dgc_repro.paper import pool
from dgc_repro.paper.benchmark.names import name_of
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
    """The table of a workload by setting, whose name the page writes in words: cells by column."""
    part = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    head, _, *rest = [[cell.strip() for cell in row] for row in rows]
    by_name = {row[0]: dict(zip(head, row, strict=True)) for row in rest}
    rows = pd.read_csv(RESULTS / "benchmark" / "small" / "numbers.csv")["row"].unique()
    own = {str(row).partition(".")[2] for row in rows}
    return {setting: by_name[name_of(setting)] for setting in own if name_of(setting) in by_name}


def loss_of(setting: str) -> str:
    """The loss of a setting on images and its interval, as a sentence has them."""
    own = settings("images, recipe low")[setting]
    return f"{own['loss, points'].partition(' ±')[0]} points, {own['95 % interval']}"


def times(setting: str) -> str:
    own = numbers("benchmark/small", "methods", "payload: times less than dense")
    return f"{own[f'low.{setting}']:.3g}"


def test_sentence_1_counts_the_classes_on_images() -> None:
    line = r"recipe low, n = (.*?): of (\d+) settings (\d+) are .*?, (\d+) better, (\d+) worse; (\d+) are"
    ((n, of, equivalent, better, worse, undecided),) = re.findall(
        line, PAGE.read_text(encoding="utf-8")
    )
    assert better == "0"
    assert f"{equivalent} of {of} compressed settings are shown to be equivalent" in findings()[0]
    assert (
        f"{worse} are shown to be worse, and {undecided} are undecided (n = {n};" in findings()[0]
    )
    accuracy = numbers("benchmark/small", "methods", "test quality")["low.dense"]
    assert f"ends at {accuracy:.1f} %" in findings()[0]
    own = settings("GPT, characters")["uniform_8"]
    assert own["class"] == "equivalent"
    loss = own["loss, %"].partition(" ±")[0]
    assert f"({loss} %, 95 % interval {own['95 % interval']}; n = {own['n']})" in findings()[0]
    for sentence in findings()[1:4]:
        assert f"On CIFAR-10 at {accuracy:.0f} %" in sentence


def seeds(*named: str) -> str:
    """The number of seeds of settings on images."""
    found = sorted({int(settings("images, recipe low")[setting]["n"]) for setting in named})
    return f"n = {found[0]}" + (f" to {found[-1]}" if len(found) > 1 else "")


def test_sentences_2_to_4_have_losses_on_images() -> None:
    for place, *named in (
        (1, "uniform_4", "onebit"), (2, "topk_0.01"), (3, "powersgd_4", "powersgd_1"),
    ):  # fmt: skip
        said = findings()[place].replace("95 % interval ", "")
        for setting in named:
            assert f"{times(setting)} times fewer" in said
            assert f"(loss {loss_of(setting)}" in said
        assert f"{seeds(*named)}," in said
    assert f"loses {loss_of('randomk_0.01').replace(', ', ' (')}" in findings()[2]
    assert seeds("randomk_0.01") == seeds("topk_0.01")


def test_sentence_5_has_bytes_among_32_workers() -> None:
    wire = numbers("benchmark/small", "methods", "wire a step, N = 32")
    gathered = wire["low.uniform_8"] / wire["low.dense"]
    shards = wire["low.dense"] / wire["low.uniform_4_sharded"]
    assert f"moves {gathered:.1f} times the bytes" in findings()[4]
    assert f"move {shards:.1f} times fewer" in findings()[4]
    assert f"{seeds('dense', 'uniform_8', 'uniform_4_sharded')};" in findings()[4]


def test_sentence_6_has_the_loss_without_error_feedback() -> None:
    own = settings("transformer, words (first edition)")
    plain, fed = (own[name]["95 % interval"] for name in ("uniform_4_plain", "uniform_4"))
    loss = numbers("benchmark/small", "methods", "loss against dense")
    said = findings()[5]
    for row, interval in (("uniform_4_plain", plain), ("uniform_4", fed)):
        low, high = (f"{float(end):.1f}" for end in interval.split(" to "))
        assert f"{loss[f'transformer.{row}']:.1f} %" in said
        assert f"{low} to {high}" in said


def test_sentence_7_compares_two_texts() -> None:
    for title, unit in (("GPT, characters", "GPT"), ("LSTM, characters", "LSTM")):
        own = settings(title)["topk_0.01"]
        assert own["class"] == "worse"
        loss = own["loss, %"].partition(" ±")[0]
        assert f"{loss} % " in findings()[6]
        assert f"{own['95 % interval']})" in findings()[6]
        assert f"n = {own['n']}," in findings()[6]
        assert unit in findings()[6]


def test_the_effect_of_masking_is_that_of_the_page_on_dgc() -> None:
    folder = RESULTS.parent / "docs"
    text = (folder / "benchmark.md").read_text("utf-8")
    said = (folder / "findings.md").read_text("utf-8")
    for masking in ("yes", "no"):
        (cell,) = re.findall(rf"^\| LSTM, 2 \| {masking} \| ([\d.]+) \(", text, re.MULTILINE)
        assert f"{float(cell):.0f} %" in said or f"{cell} %" in said


def test_sentence_8_has_gravacs_gains() -> None:
    verdicts = {
        v["claim"]: v["effects"][0]
        for v in pool.records(RESULTS / "gravac" / "low")["gains"]["verdicts"]
    }
    energy = verdicts["energy.dense"]
    said = [f"{energy[key]:.3f}" for key in ("measured", "low", "high")]
    assert f"{said[0]} (95 % interval {said[1]} to {said[2]})" in findings()[7]
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
        f"{effect['measured']:.2f} points (95 % interval {effect['low']:.2f} to {effect['high']:.2f}; "
        f"n = {one['n']}" in (findings()[8])
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
    for sentence in findings():
        assert re.search(r"\]\(", sentence), sentence
        assert re.search(r"n = \d|medians of 3", sentence), sentence


def test_what_did_not_reproduce_is_all_that_differs() -> None:
    text = (RESULTS.parent / "docs" / "findings.md").read_text("utf-8")
    section = text.partition("## What did not reproduce")[2].partition("\n## ")[0]
    stated = re.findall(r"\((\d+) claims?;\s+\[[^]]*\]\(\.\./results/(\S+)/table\.md\)", section)
    differ = {
        f"{folder.relative_to(RESULTS)}/{artifact}": sum(
            v["verdict"] == "differs" for v in verdicts
        )
        for folder in (file.parent for file in RESULTS.glob("*/*/verdicts.json"))
        if folder.name != "quick"
        for artifact, own in pool.records(folder).items()
        if (verdicts := own["verdicts"])
    }
    assert {page: int(count) for count, page in stated} == {k: n for k, n in differ.items() if n}


def test_sentence_10_has_the_speedups_on_links() -> None:
    (cells,) = re.findall(r"^\| top-k 1 % \| (.*) \|$", NETWORKS.read_text("utf-8"), re.MULTILINE)
    measured = [float(cell) for cell in cells.split(" | ")]
    assert f"{min(measured):.0f} to {max(measured):.0f} times" in findings()[9]


def test_the_largest_modelled_speedup_is_that_of_the_page() -> None:
    table = pd.read_csv(RESULTS / "benchmark" / "small" / "numbers.csv")
    of_target = table["quantity"] == "modelled speedup to the target, slim model on a CPU"
    fast = table[of_target & table["setting"].isin(["10 Gbit/s", "100 Gbit/s"])]
    own = fast[~fast["row"].str.contains("adam|dense")]["mean"].max()
    for name in ("findings.md", "benchmark.md"):
        text = " ".join((RESULTS.parent / "docs" / name).read_text("utf-8").split())
        assert re.search(rf"largest modelled speedup to (a|the) target .*? is {own:.1f} ", text)
