"""The five sentences of docs/findings.md, which open the overview: their numbers are the published ones."""

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


def test_sentence_1_counts_the_classes_of_the_benchmark() -> None:
    page = (RESULTS / "benchmark" / "small" / "methods" / "table.md").read_text(encoding="utf-8")
    line = r"n = 3: of (\d+) settings (\d+) are .*?, (\d+) better, (\d+) worse; (\d+) are undecided"
    counts = [list(map(int, found)) for found in re.findall(line, page)]
    settings, equivalent, better, worse, undecided = map(sum, zip(*counts, strict=True))
    assert (equivalent, better) == (1, 1)
    found = re.findall(r"\d+", findings()[0])
    assert found == [*map(str, (settings, counts[0][0] + 1, 3, worse, undecided))]


def test_the_images_at_82_percent_are_those_of_their_page() -> None:
    page = (RESULTS / "benchmark" / "small" / "images" / "table.md").read_text(encoding="utf-8")
    text = (RESULTS.parent / "docs" / "findings.md").read_text(encoding="utf-8")
    said = " ".join(text.partition("- **Images at 82 %**")[2].partition("\n- ")[0].split())
    line = r"n = (.*?): of (\d+) settings (\d+) are .*?, (\d+) better, (\d+) worse; (\d+) are undecided"
    ((n, settings, equivalent, better, worse, undecided),) = re.findall(line, page)
    assert (equivalent, better) == ("0", "0")
    assert f"n = {n}," in said
    assert f"of {settings} settings {worse} are shown to be worse" in said
    assert f"and {undecided} are undecided" in said
    cell = r" *([^|]*?) *\|"
    for setting in ("topk_0.01", "powersgd_4", "uniform_4"):
        found = re.findall(rf"^\| {re.escape(setting)} \|{7 * cell}", page, re.MULTILINE)
        _, _, _, loss, interval, word, _ = found[0]
        times = numbers("benchmark/small", "images", "payload: times less than dense")
        assert f"{times[f'low.{setting}']:.2g} times fewer bytes" in said
        low, high = interval.split(" to ")
        assert f"{abs(float(loss.partition(' ±')[0])):.1f} points" in said
        assert f"{float(low):.2f} to {float(high):.2f}" in said
        assert word == ("undecided" if setting == "uniform_4" else "worse")
    accuracy = numbers("benchmark/small", "images", "test quality")["low.dense"]
    assert round(accuracy) == 82


def test_sentence_2_has_the_losses_without_error_feedback() -> None:
    chance = numbers("lecture/small", "onebit", "test accuracy")["plain"]
    loss = numbers("benchmark/small", "methods", "loss against dense")
    less = numbers("benchmark/small", "methods", "payload: times less than dense")
    own = f"{loss['transformer.uniform_4_plain']:.1f}", f"{less['transformer.uniform_4']:.0f}"
    found = re.findall(r"[\d.]+", findings()[1].rstrip("."))
    assert found == ["1", f"{chance:.0f}", "4", own[0], "4", own[1]]


def test_sentence_3_has_gravacs_savings() -> None:
    what = "floats sent, times less than dense"
    ours, printed = (
        numbers("gravac/small", "table2", what, value) for value in ("mean", "printed")
    )
    own, norm = ours["resnet101.gravac07"], ours["resnet101.gravac07_norm"]
    wanted = (f"{printed['resnet101.gravac07']:.0f}", f"{own:.2f}", f"{norm:.0f}")
    for said in (
        f"{wanted[0]} times",
        f"{wanted[1]} times fewer",
        f"gives {wanted[2]} times fewer",
    ):
        assert said in findings()[2]


def test_sentence_4_has_the_verdicts_on_the_plateau() -> None:
    small, medium = (pool.records(RESULTS / "dynamic" / scale) for scale in ("small", "medium"))
    words = {v["claim"]: v["verdict"] for v in small["table1"]["verdicts"]}
    assert {words["1"], words["1b"], words["6"]} == {"not tested"}
    seeds = {max(v["n"] for v in medium[name]["verdicts"]) for name in ("table1", "sensitivity")}
    assert seeds == {1, 2}
    assert "not tested* at scale `small`" in findings()[3]
    assert "1 or 2 seeds at scale `medium`" in findings()[3]


def test_sentence_5_has_the_speedups_on_links() -> None:
    (cells,) = re.findall(r"^\| top-k 1 % \| (.*) \|$", NETWORKS.read_text("utf-8"), re.MULTILINE)
    measured = [float(cell) for cell in cells.split(" | ")]
    table = pd.read_csv(RESULTS / "benchmark" / "small" / "numbers.csv")
    of_target = table["quantity"] == "modelled speedup to the target, slim model on a CPU"
    fast = table[of_target & table["setting"].isin(["10 Gbit/s", "100 Gbit/s"])]
    own = fast[~fast["row"].str.contains("adam|dense")]["mean"].max()
    assert f"{min(measured):.0f} to {max(measured):.0f} times" in findings()[4]
    assert f"more than {own:.1f} times" in findings()[4]
