"""The docs name the settings whose steps have another rate than dense training's, as the runs recorded it."""

from __future__ import annotations

import functools
import re
from collections import defaultdict

import pytest
from published_results import BENCHMARK, REPOSITORY, runs_in_pool

from dgc_repro.paper.benchmark.equivalent import is_shortened
from dgc_repro.paper.benchmark.tuning import recorded
from dgc_repro.paper.benchmark.workloads import DENSE, TUNES
from dgc_repro.paper.records import Run

DOCS = REPOSITORY / "docs"
RECIPES = ("low", "air", "gpt", "char_lstm")
"""The first edition's workloads have rates of their own by family, which the page lists."""
NAMES = {
    "signsgd": "signSGD", "demo_32": "DeMo", "muon": "Muon", "muloco_10": "MuLoCo", "dion_0.25": "Dion",
    "diloco_10": "DiLoCo", "streaming_10": "Streaming DiLoCo",
}  # fmt: skip
SENTENCE = re.compile(
    r"very setting trains at dense training's rate, but (.*?), which have one of their own, and (.*?), whose "
    r"local steps have a quarter of it\."
)


@functools.cache
def published() -> dict[str, dict[str, list[Run]]]:
    """The runs of each workload by setting."""
    found: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs_in_pool(BENCHMARK):
        is_whole = TUNES not in run.method and not is_shortened(run)
        if run.model in RECIPES and run.method and is_whole:
            found[run.model][run.method].append(run)
    return found


def others() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """By workload, in words: the settings with a rate of their own, and those whose steps have a quarter of
    dense training's."""
    set_apart, quarter = defaultdict(set), defaultdict(set)
    for workload, settings in published().items():
        usual = float(recorded(settings[DENSE]))
        configured = settings[DENSE][0].setting("optimizer.lr")
        for setting, runs in settings.items():
            if recorded(runs) == recorded(settings[DENSE]):
                continue
            if runs[0].setting("optimizer.lr") != configured:
                set_apart[workload].add(NAMES[setting])
            else:
                assert float(recorded(runs)) == pytest.approx(usual / 4, rel=0.01), setting
                quarter[workload].add(NAMES[setting])
    return set_apart, quarter


def in_words(text: str) -> set[str]:
    return set(re.split(r", | and ", text.removesuffix(" on images")))


@pytest.mark.parametrize("name", ["methods.md", "benchmark.md"])
def test_the_docs_name_the_settings_with_another_rate(name: str) -> None:
    set_apart, quarter = others()
    (told,) = SENTENCE.findall(" ".join((DOCS / name).read_text(encoding="utf-8").split()))
    assert in_words(told[0]) == set().union(*set_apart.values())
    assert told[1].endswith(" on images")
    assert dict(quarter) == {"low": in_words(told[1])}


def test_the_rates_that_the_docs_print_are_recorded() -> None:
    low = published()["low"]
    rates = {setting: recorded(low[setting]) for setting in (DENSE, "diloco_10", "streaming_10")}
    assert rates == {DENSE: "0.334", "diloco_10": "0.0836", "streaming_10": "0.0836"}
    for name in ("methods.md", "benchmark.md"):
        text = (DOCS / name).read_text(encoding="utf-8")
        assert "0.0836" in text
        assert "0.334" in text


def test_streaming_sends_fewer_bytes_where_a_round_does_not_fill_an_epoch() -> None:
    """docs/methods.md: 3 % on images, where an epoch has 175 steps; none on the GPT, where it has 500."""
    workloads = published()

    def sent(workload: str, setting: str) -> float:
        return float(workloads[workload][setting][0].summary["comm/payload_bytes"])

    less = 1 - sent("low", "streaming_10") / sent("low", "diloco_10")
    assert round(100 * less) == 3
    assert sent("gpt", "streaming_10") == sent("gpt", "muloco_10")  # DiLoCo's rounds
    text = " ".join((DOCS / "methods.md").read_text(encoding="utf-8").split())
    assert "On images (175 steps an epoch, H = 10) that is 3 % less" in text
