"""The pages that hold findings have the published numbers, and their words say what the numbers show.

dgc_repro/paper/findings.md has the words; every number in it is a field that findings.py fills in, or one of
`NAMES`, or a number of a sentence that a test here checks.
"""

from __future__ import annotations

import functools
import math
import re
import shutil
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

import pandas as pd
import pytest
from published_results import REPOSITORY, RESULTS

from dgc_repro.errors import UserError
from dgc_repro.paper import findings, pool
from dgc_repro.paper.benchmark import paired
from dgc_repro.paper.benchmark.classes import Shown, Word
from dgc_repro.paper.benchmark.workloads import Workload
from dgc_repro.paper.findings import Effect, Setting

TEMPLATE = Path(findings.__file__).with_suffix(".md").read_text(encoding="utf-8")


@functools.cache
def blocks() -> dict[str, str]:
    return findings.filled(RESULTS)


@functools.cache
def workloads() -> dict[str, findings.Settings]:
    return findings.benchmark(RESULTS / findings.BENCHMARK)


def stale(name: str) -> Iterator[str]:
    """The lines of a page that have other numbers than the pools, and what they should be."""
    page = (REPOSITORY / name).read_text(encoding="utf-8")
    old = page.splitlines()
    new = findings.refreshed(page, blocks(), Path(name).parent).splitlines()
    for what, start, end, first, last in SequenceMatcher(None, old, new, False).get_opcodes():
        if what != "equal":
            lines, should = "\n".join(old[start:end]), "\n".join(new[first:last])
            yield f"{name}, from line {start + 1}: {lines!r} is stale; `make publish` writes {should!r}"


@pytest.mark.parametrize("name", findings.PAGES)
def test_the_pages_have_the_published_numbers(name: str) -> None:
    assert findings.BLOCK.search((REPOSITORY / name).read_text(encoding="utf-8"))
    assert list(stale(name)) == []


def test_a_stale_line_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(readme.replace("| 389 |", "| 388 |"), encoding="utf-8")
    monkeypatch.setattr("test_findings.REPOSITORY", tmp_path)
    (said,) = stale("README.md")
    assert re.match(
        r"README\.md, from line \d+: .*388.* is stale; `make publish` writes .*389", said
    )


def test_links_lead_from_every_folder_to_the_same_page() -> None:
    text = "[a](x.md#y) [b](../results/z.md) [c](https://w)"
    assert findings.linked(text, Path("docs")) == text
    root = "[a](docs/x.md#y) [b](results/z.md) [c](https://w)"
    assert findings.linked(text, Path()) == root
    results = "[a](../docs/x.md#y) [b](z.md) [c](https://w)"
    assert findings.linked(text, Path("results")) == results


def test_results_without_a_page_of_the_findings_are_refused_in_one_line(tmp_path: Path) -> None:
    """The overview had ended in a traceback, after the page of a queue was written."""
    assert findings.filled(tmp_path) == {}  # results of somebody else
    root = tmp_path / "results"
    for place in (findings.BENCHMARK, Path("dynamic/small")):
        shutil.copytree(RESULTS / place, root / place)
    (tmp_path / "docs").mkdir()
    with pytest.raises(UserError, match=r"results: lacks a page .*dynamic/(air|medium)") as error:
        findings.refresh(root)
    assert "\n" not in str(error.value)


# What an interval says


def setting(low: float, high: float, *, percent: bool = False, n: int = 3) -> Setting:
    mean = (low + high) / 2
    workload = Workload("", "loss" if percent else "accuracy_percent", 0.5)
    word: Word = "undecided"
    if low < high:
        is_small = max(-low, high) < 0.5
        word = "equivalent" if is_small else "costs" if low > 0 else "better" if high < 0 else word
    shown = Shown(word, n, mean, low, high, diverged=int(math.isinf(low)))
    return Setting(workload, shown, {}, "-", {})


@pytest.mark.parametrize(
    ("own", "words", "change"),
    [
        (setting(-0.29, 0.49), "Equivalent: no cost seen, at most 0.5 points.", "-0.1 (-0.49 to +0.29)"),
        (setting(-0.4, 0.4), "Equivalent: no cost seen, at most 0.4 points.", "0.0 (-0.40 to +0.40)"),
        (setting(-0.42, 0.59), "Not decided: no cost, or up to 0.6 points.", "-0.1 (-0.59 to +0.42)"),
        (setting(0.05, 0.92), "Costs about half a point.", "-0.5 (-0.92 to -0.05)"),
        (setting(0.73, 1.45), "Costs about 1 point.", "-1.1 (-1.45 to -0.73)"),
        (setting(3.2, 4.05), "Costs about 3.5 points.", "-3.6 (-4.05 to -3.20)"),
        (setting(0.01, 0.2), "Equivalent; costs 0 to 0.2 points.", "-0.1 (-0.20 to -0.01)"),
        (setting(-0.3, -0.1), "Equivalent; slightly better.", "+0.2 (+0.10 to +0.30)"),
        (setting(-1.0, -0.2), "Better than training without compression.", "+0.6 (+0.20 to +1.00)"),
        (setting(0.8, 0.8, n=1), "Too few seeds.", "-0.8 (one seed)"),
        (setting(0.0, 0.0), "Not decided: all seeds have one value.", "0.0"),
        (setting(40.43, 43.3, percent=True), "Costs about 42 %.", "+41.9 (+40.43 to +43.30)"),
        (setting(float("inf"), float("inf")), "Training diverged.", "diverged"),
    ],
)  # fmt: skip
def test_the_sentence_of_a_setting_comes_from_its_interval(
    own: Setting, words: str, change: str
) -> None:
    assert (own.words, own.change) == (words, change)


def test_a_cell_is_bold_where_it_is_worse_and_marked_where_it_is_inside_the_margin() -> None:
    assert setting(0.05, 0.92).cell == "**-0.5 (-0.92 to -0.05)**"
    assert setting(-0.29, 0.49).cell.endswith(" =")
    assert setting(-0.42, 0.59).cell == setting(-0.42, 0.59).change


@pytest.mark.parametrize(
    ("effect", "spec", "text"),
    [
        (Effect("ratio", "ms", 1.1845, 1.1687, 1.2006, 1.83), "", "1.18x (1.17 to 1.20)"),
        (Effect("difference", "%", -10.68, -17.86, -3.509, 0), "", "-10.7 points (-17.9 to -3.51)"),
        (Effect("value", "x", 592.3, 592.3, 592.3, 462), "", "592x"),
        (Effect("ratio", "floats", 0.0638, 0.06, 0.07, 1), "1/.0f", "16"),
    ],
)
def test_an_effect_has_its_unit_and_its_interval(effect: Effect, spec: str, text: str) -> None:
    assert f"{effect:{spec}}" == text


def test_a_setting_of_other_workloads_has_no_runs_and_an_unknown_one_is_refused() -> None:
    assert workloads()["air"]["onebit"].change == findings.NO_RUNS
    with pytest.raises(KeyError, match="topk_9"):
        workloads()["air"]["topk_9"]


# No number without a source

NAMES = (
    *(r"\b\d bits?\b", r"\b8-bit\b", r"\b1-bit SGD\b", r"\btop-k,? [\d.]+ %", r"\brandom-k \d %"),
    *(r"PowerSGD, rank \d", r"rank 4\b", r"\b10+x\b", r"\b4 to 16 bits", r"CIFAR-10", r"ResNet\d+"),
    *(r"VGG16", r"95 % interval", r"(below|above|than|excludes|contains)\s+0\b", r"H100", r"LSTM"),
    *(r"^## \d\.", r"findings 1, 2, 4 and 5", r"\b\d+ workers", r"\b8 or more", r"70 epochs"),
    *(r"(a|the)\s+plateau\s+of\s+80\s+to\s+86\s+%", r"the worse side of 0"),
    *(r"\b\d+ [GM]bit/s", r"V100", r"At 85 %"),
    *(r"\| 100 \|", r"\| 1x \|", r"within 2 points", r"threshold (of )?0\.7"),
    *(r"82 %", r"Below 1\b", r"\*< 0\*", r"(at least|more than) 30 times", r"a factor of 10\b"),
    r"2, 8, 32 and 64 workers",
)  # fmt: skip
"""Numbers that name a setting, a model or a number of workers, and those that tests below check."""


def test_every_other_number_is_filled_in() -> None:
    words = re.sub(r"\{[^}]*\}", "", TEMPLATE)
    words += findings.BLOCK.sub("", (REPOSITORY / "docs" / "findings.md").read_text("utf-8"))
    words = re.sub(r"\]\([^)]*\)|<!--.*?-->|`[^`]*`", "", words)
    left = re.sub("|".join(NAMES), "", words, flags=re.MULTILINE | re.IGNORECASE)
    assert [line for line in left.splitlines() if re.search(r"\d", line)] == []


# What the words say


def test_four_bits_are_the_setting_to_try_first() -> None:
    assert workloads()["low"]["uniform_4"].shown.word == "equivalent"
    several = [one["uniform_4"] for one in workloads().values()]
    assert len(several) == 6
    for own in several:
        assert own.shown.has_interval
        assert own.shown.word in ("equivalent", "undecided")
        assert 7 < own.bytes[paired.LESS] < 8
    above_0 = {name for name, one in workloads().items() if one["uniform_4"].shown.low > 0}
    assert above_0 == {"gpt"}
    assert workloads()["gpt"]["uniform_4"].shown.word == "equivalent"
    plain = {name: one["uniform_4_plain"] for name, one in workloads().items()}
    trained = {name: own for name, own in plain.items() if own.change != "no runs"}
    assert len(trained) == 4
    assert {name for name, own in trained.items() if own.shown.word == "costs"} == {"transformer"}


def test_shards_remove_the_growth_of_the_traffic() -> None:
    own = {name: workloads()["low"][name] for name in ("dense", "uniform_4_sharded", "uniform_8")}
    for quantity in paired.WIRE.values():
        shards = own["dense"].bytes[quantity] / own["uniform_4_sharded"].bytes[quantity]
        assert shards == pytest.approx(own["uniform_4_sharded"].bytes[paired.LESS], rel=0.01)
    among_32 = paired.WIRE[32]
    assert own["uniform_8"].bytes[among_32] > own["dense"].bytes[among_32]


def test_compression_pays_up_to_10_gbit_and_not_at_100() -> None:
    low = workloads()["low"]
    section = TEMPLATE.partition("\n## 3. ")[2].partition("\n## 4. ")[0]
    settings = set(re.findall(r"low\[(\S+)\]\.net", section))
    assert len(settings) == 5
    for name in settings:
        net = {title: float(text) for title, text in low[name].net.items()}
        assert min(net["100 Mbit/s"], net["1 Gbit/s"], net["10 Gbit/s"]) > 1.5
        assert net["100 Gbit/s"] < 1.1


def test_settings_that_send_30_times_fewer_bytes_cost_accuracy() -> None:
    low, air = workloads()["low"], workloads()["air"]
    assert f"{float(low['dense'].quality):.0f}" == "82"
    strong = [low[name] for name in low.names if low[name].bytes[paired.LESS] >= 30]
    assert len(strong) > 10
    assert all(own.shown.word == "costs" for own in strong if own.shown.n >= 3)
    gpt = workloads()["gpt"]
    stronger = [gpt[name] for name in gpt.names if gpt[name].bytes[paired.LESS] >= 30]
    assert all(own.shown.word == "costs" for own in stronger if own.shown.n >= 3)
    section = TEMPLATE.partition("\n## 4. ")[2].partition("\n## 5. ")[0]
    for name in re.findall(r"air\[(\S+)\]\.change", section):
        assert low[name].bytes[paired.LESS] >= 30
        if name in air.names:
            assert air[name].shown.mean < low[name].shown.mean


def test_the_cost_is_much_larger_on_the_gpt() -> None:
    assert round(workloads()["low"]["topk_0.01"].shown.mean) == 1
    assert 40 < workloads()["gpt"]["topk_0.01"].shown.mean < 45  # more than two fifths
    for name in ("lstm", "transformer"):
        assert workloads()[name]["topk_0.01"].shown.word != "costs"


def numbers(place: str, artifact: str, quantity: str) -> pd.Series[float]:
    """A quantity of an artifact by row."""
    table = pd.read_csv(RESULTS / place / "numbers.csv")
    own = table[(table["artifact"] == artifact) & (table["quantity"] == quantity)]
    return own.set_index("row")["mean"]


def test_no_plateau_appeared() -> None:
    for scale in ("small", "air", "medium", "fashion"):
        own = numbers(f"dynamic/{scale}", "table1", "test accuracy")
        assert own["static8"] > own["none"] - 0.15  # the paper has 7 points
        if scale in ("air", "medium"):  # inside the range of the paper's plateau, and level
            assert 80 < own["none"] < 87
    readings = numbers("dynamic/medium", "sensitivity", "test accuracy").drop("dense")
    assert len(readings) == 6
    dense = numbers("dynamic/medium", "table1", "test accuracy")["none"]
    assert set(readings[readings < dense - 1].index) == {"weights8"}
    assert readings["weights8"] < 80  # the paper's plateau is 80 to 86 %
    behind = numbers("dynamic/air", "sensitivity", "points under dense").drop("dense")
    readings = {"weights8", "bits8_nearest_blockNone", "bits8_toward_zero_blockNone"}
    readings |= {"bits8_model", "bits8_running", "bits8_again"}
    assert readings <= set(behind.index)
    assert set(behind[behind > 2].index) == {"weights8"}


def test_gravacs_gains_stay_below_and_pass_the_threshold() -> None:
    (energy,) = (
        own["effects"][0]
        for own in pool.records(RESULTS / "gravac" / "low")["gains"]["verdicts"]
        if own["claim"] == "energy.dense"
    )
    assert energy["below"] == 0.7
    for factor in ("10x", "1000x"):
        own = numbers("gravac/low", "gains", f"energy gain at {factor}")
        assert max(own[["resnet101.topk10_gains", "resnet101.topk1000_gains"]]) < 0.7
    own = numbers("gravac/low", "gains", "norm gain at 1000x")
    assert own["resnet101.topk10_gains"] < 0.7 < own["resnet101.topk1000_gains"]


def test_each_claim_stands_in_the_table_of_its_verdict() -> None:
    rows = TEMPLATE.partition("## What reproduced")[2].splitlines()
    differ = "\n".join(row for row in rows if row.endswith("| no |"))
    agree = "\n".join(row for row in rows if row.endswith("| yes |"))
    for section, word in ((agree, "agrees"), (differ, "differs")):
        found = re.findall(r"\{claims\[(\S+)/(\S+) (\S+?)(?: \d)?\]", section)
        assert len(found) >= 5
        for place, artifact, claim in found:
            (own,) = (
                own["verdict"]
                for own in pool.records(RESULTS / place)[artifact]["verdicts"]
                if own["claim"] == claim
            )
            assert own == word, (place, artifact, claim)
    named = set(re.findall(r"\]\(\.\./results/(\S+)/table\.md\)", differ))
    assert named == set(findings.differing(RESULTS))


def test_where_random_k_trains_differs_from_the_paper() -> None:
    table2 = pool.records(RESULTS / "gravac" / "small")["table2"]["verdicts"]
    verdicts = {own["claim"]: own["verdict"] for own in table2}
    assert verdicts["resnet101.randomk10.fails"] == verdicts["lstm.randomk10.misses"] == "differs"


def test_the_workers_that_have_few_seeds_are_those_of_the_page() -> None:
    table = pd.read_csv(RESULTS / "benchmark" / "small" / "numbers.csv")
    own = table[(table["artifact"] == "workers") & (table["quantity"] == paired.COST)]
    few = own[own["row"].str.startswith("low_")]
    assert {row.partition(".")[0] for row in few["row"]} == {f"low_{n}" for n in (2, 8, 32, 64)}
    assert set(few["n"]) == {1, 2}
