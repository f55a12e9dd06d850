"""The lecture's pages: DGC's row on PTB from made-up runs, and the studies from small real ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic import words

from dgc_repro.errors import UserError
from dgc_repro.network.profile import Network
from dgc_repro.paper import page as pages
from dgc_repro.paper.lecture import allreduce, density, dgc, lowrank, onebit, ptb, waiting
from dgc_repro.paper.page import Page, markdown
from dgc_repro.paper.records import Run
from dgc_repro.paper.verdict import values
from dgc_repro.study.allreduce import Allreduce
from dgc_repro.study.density import RandomSupports, RealSupports
from dgc_repro.study.given import Gradients, History
from dgc_repro.study.lowrank import LowRank
from dgc_repro.study.payloads import Payloads
from dgc_repro.study.waiting import Waiting

# papers.md, Table C-DGC, written out once more: a slip in the package's copy shows here.
PRINTED = """
| ResNet-50, ImageNet | top-1 / top-5 % | 75.96 / 92.91 | 76.15 / 92.97 | 277x |
| 5-layer GRU, LibriSpeech | WER % | 9.45, 27.07 | 9.06, 27.04 | 608x |
| 2-layer LSTM, PTB | perplexity | 72.30 | 72.24 | 462x |
"""
ENVIRONMENT = {"hardware": "a CPU", "commit": "0" * 40, "torch": "0.0", "data": "synthetic"}


def run_of(artifact: str, row: str, seed: int, **more: Any) -> Run:
    """A finished run in memory. ``more``: config keys; ``epochs`` and ``lines``: the numbers."""
    numbers = {key: pd.DataFrame(more.pop(key)) for key in ("epochs", "lines") if key in more}
    place = {"paper": "lecture", "artifact": artifact, "row": row}
    config = {"experiment": place, "scale": {"name": "quick"}, "seed": seed, **more}
    summary = {"status": "finished", "parameters": 106_535, "tensors": 3, "steps": 8}
    return Run(f"{artifact}-{row}-{seed}", config, ENVIRONMENT, summary, **numbers)


# -- DGC's table


def trained(row: str, seed: int, perplexity: float, payload: float, **more: Any) -> Run:
    """Three epochs of 10 steps; the first two, of warm-up, send half of what dense training sends."""
    sent = np.cumsum([5e5, 5e5, payload] if row == ptb.DGC else [1e6] * 3)
    epochs = {
        "epoch": [1, 2, 3], "step": [10, 20, 30], "train/loss": [5.0, 4.5, 4.0 + perplexity / 1e3],
        "test/loss": [5.0, 4.5, 4.0], "test/perplexity": [200.0, 100.0, perplexity],
        "validation/perplexity": [220.0, 110.0, perplexity + 5], "test/accuracy_percent": [10, 20, 25],
        "comm/floats": sent / 8, "comm/payload_bytes": sent, "comm/wire_bytes": 2 * sent,
    }  # fmt: skip
    model = {"_target_": "dgc_repro.model.lstm.LSTM", "width": 64, "layers": 2, "tied": True}
    settings = {"model": model, "launch": {"workers": 2, "kind": "local"}, **more}
    return run_of("ptb", row, seed, epochs=epochs, **settings)


def ptb_page(dgc: float, *, seeds: int = 3, payload: float = 2000.0) -> Page:
    clip = {"optimizer": {"lr": 20.0, "clip_norm": 0.25}}
    dense = [trained(ptb.DENSE, seed, 70.0 + seed, 1e6, **clip) for seed in range(seeds)]
    own = {"optimizer": {"lr": 20.0, "clip_norm": None}}
    rows = [
        trained(ptb.DGC, s, dgc + 1.001 * s, payload * (1 + s / 100), **own) for s in range(seeds)
    ]
    return ptb.page([*dense, *rows], "quick")


def test_the_printed_numbers_are_those_of_the_lecture() -> None:
    written = []
    for line in PRINTED.strip().splitlines():
        *_, baseline, ours, ratio = line.strip("| ").split(" | ")
        pairs = zip(re.findall(r"[\d.]+", baseline), re.findall(r"[\d.]+", ours), strict=True)
        written += [(float(b), float(d), float(ratio.rstrip("x"))) for b, d in pairs]
    assert list(dgc.TABLE_DGC.rows.values()) == written


def test_the_notes_are_computed_from_the_printed_numbers() -> None:
    counted, speech, resnet = (note.arithmetic for note in dgc.NOTES)
    # 1000 of 4 bytes; 4 / (0.001 x 8) = 500; 4 / (0.001 x 462) = 8.66
    for number in ("1000x", "500x", "462x", "8.66 bytes"):
        assert number in counted
    for number in ("488 MB / 0.74 MB = 659x", "printed 608x", "6.07 bytes"):
        assert number in speech
    for number in ("97 MB / 0.35 MB = 277x", "14.43 bytes"):
        assert number in resnet


@pytest.mark.parametrize(
    ("dgc", "payload", "seeds", "perplexity", "ratio"),
    [
        (70.5, 2000.0, 3, "agrees", "agrees"),  # 500x after warm-up; 3x over the whole run
        (84.0, 2000.0, 3, "differs", "agrees"),
        (70.5, 100_000.0, 3, "agrees", "differs"),
        (84.0, 2000.0, 1, "indicative (-)", "indicative (+)"),
    ],
)
def test_dgc_is_judged_by_perplexity_and_by_the_payload_after_warm_up(
    dgc: float, payload: float, seeds: int, perplexity: str, ratio: str
) -> None:
    page = ptb_page(dgc, payload=payload, seeds=seeds)
    found = words(page)
    assert (found["1"], found["2"]) == (perplexity, ratio)


def test_a_missing_row_is_not_run_and_other_epochs_are_no_table() -> None:
    page = ptb.page([trained(ptb.DENSE, 0, 70.0, 1e6)], "quick")
    assert words(page)["1"] == words(page)["2"] == "not run"
    assert "| DGC | 0 |" in markdown(page)
    unlike = trained(ptb.DGC, 0, 70.0, 2e3, train={"epochs": 9})
    with pytest.raises(UserError, match=r"^train\.epochs: "):
        ptb.page([trained(ptb.DENSE, 0, 70.0, 1e6), unlike], "quick")


# -- the studies


@cache
def waiting_runs() -> tuple[Run, ...]:
    settings = {
        "workers": [1, 4, 16, 64, 256],
        "trials": 20_000,
        "mean_ms": 100,
        "deviation_ms": 10,
    }
    made = Waiting(**settings)  # type: ignore[arg-type]
    return tuple(
        run_of("waiting", "waiting", s, study=settings, lines=made.run(s)) for s in range(3)
    )


@cache
def allreduce_runs() -> tuple[Run, ...]:
    rates = {"100mbit": 100, "1gbit": 50, "10gbit": 25, "25gbit": 15, "100gbit": 5}
    described: dict[str, dict[str, Any]] = {
        f"ethernet_{rate}": {"rate": rate, "latency": f"{us}us"} for rate, us in rates.items()
    }
    shared = {"workers_per_node": 4, "node_rate": "1200gbit", "node_latency": "5us"}
    described[allreduce.TWO_LEVELS] = {"rate": "10gbit", "latency": "50us", **shared}
    workers = [4, *(allreduce.FEW, allreduce.ODD), 32, 64, allreduce.MANY]
    sizes = [allreduce.SMALL, allreduce.MIDDLE, allreduce.LARGE]
    made = Allreduce({n: Network(**d) for n, d in described.items()}, workers, sizes)
    study = {"networks": {name: {**d, "source": "assumed"} for name, d in described.items()}}
    return (run_of("allreduce", "allreduce", 0, study=study, lines=made.run(0)),)


@cache
def density_runs(common: float = 0.6) -> tuple[Run, ...]:
    """Gradients whose workers share a part; ``common``: the larger, the more supports overlap."""
    sizes = (3000, 1000)
    random = RandomSupports(4096, [2, 256], [10, 100, 1000])
    real = RealSupports([2, 16], [10, 100, 1000], [4, 8], 8)
    found = []
    for seed in range(3):
        generator = np.random.default_rng(seed)
        drawn = {"study": {"values": 4096}, "lines": random.run(seed)}
        found.append(run_of("density", "random", seed, **drawn))
        for row, fed in (("gradient", False), ("fed_10", True)):
            noise = generator.normal(size=(16, sum(sizes)))
            shared = (common + 0.1 * fed) * generator.normal(size=sum(sizes))
            gradients = Gradients(sizes, (noise + shared).astype(np.float32), fed)
            more = {
                "model": {"_target_": "dgc_repro.model.resnet18.ResNet18", "width": 8},
                "launch": {"workers": 16, "kind": "simulated"}, "train": {"batch_size": 8},
            }  # fmt: skip
            lines = real.run(seed, gradients)
            found.append(run_of("density", row, seed, study={"steps": 8}, lines=lines, **more))
    return tuple(found)


@cache
def payload_runs() -> tuple[Run, ...]:
    study = {"density": 0.001, "gru_inputs": 161, "gru_hidden": 1274}
    return (run_of("dgc", "payloads", 0, study=study, lines=Payloads(**study).run(0)),)  # type: ignore[arg-type]


def history(common: float, generator: np.random.Generator) -> History:
    """20 steps of a matrix that repeats (of rank 1) and of noise."""
    repeats = np.outer(generator.normal(size=30), generator.normal(size=40))
    for step in range(1, 21):
        noise = generator.normal(size=repeats.shape)
        yield (
            step,
            {"w": (common * repeats + noise).astype(np.float32), "b": np.ones(3, np.float32)},
        )


@cache
def lowrank_runs(common: float = 2.0) -> tuple[Run, ...]:
    made, found = LowRank([1, 2, 4], 20, [1, 20], 16), []
    for seed in range(3):
        for row in lowrank.LABELS:
            lines = made.run(seed, history(common, np.random.default_rng(seed)))
            model = {"_target_": "dgc_repro.model.resnet18.ResNet18", "width": 8}
            more = {"study": {"steps": 20}, "launch": {"workers": 4, "kind": "simulated"}}
            found.append(run_of("lowrank", row, seed, lines=lines, model=model, **more))
    return tuple(found)


@cache
def onebit_runs(fed: float = 70.0) -> tuple[Run, ...]:
    """Two epochs. ``fed``: the last accuracy with the error accumulated; dense has 70, without it 40."""
    accuracies = {onebit.DENSE: 70.0, onebit.FED: fed, onebit.PLAIN: 40.0}
    found = []
    for row, last in accuracies.items():
        for seed in range(3):
            epochs = {
                "epoch": [1, 2], "step": [10, 20], "train/loss": [2.0, 2.0 - last / 100 - seed / 1e3],
                "test/loss": [2.0, 1.0], "test/accuracy_percent": [30.0, last + 0.1 * seed],
                "comm/floats": [1e6, 2e6], "comm/payload_bytes": [4e6, 8e6], "comm/wire_bytes": [4e6, 8e6],
            }  # fmt: skip
            more = {"model": {"_target_": "dgc_repro.model.cnn.CNN", "width": 8}}
            found.append(run_of("onebit", row, seed, epochs=epochs, **more))
    return tuple(found)


STUDIES: dict[Any, Callable[[], tuple[Run, ...]]] = {
    waiting: waiting_runs, allreduce: allreduce_runs, density: density_runs,
    ptb: lambda: tuple(ptb_page(70.5).runs), dgc: payload_runs, lowrank: lowrank_runs,
    onebit: onebit_runs,
}  # fmt: skip


@pytest.mark.parametrize("module", STUDIES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_page_has_its_checks_in_the_frame_and_draws_its_figure(
    module: Any, tmp_path: Path
) -> None:
    page = module.page(STUDIES[module](), "quick")
    for claim in module.CLAIMS:
        for check in (*claim.checks, *claim.premises):
            for row in check.rows:
                assert len(values(page.frame, check.quantity, row, check.setting)) > 0, check
    pages.write(page, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1 + 2 * len(page.figures)
    text = (tmp_path / "table.md").read_text()
    assert not {"nan", "inf"} & set(re.findall(r"\w+", text.partition("## Verdicts")[0]))


def test_waiting_grows_as_theory_says() -> None:
    found = words(waiting.page(waiting_runs(), "quick"))
    assert found == {"gaussian": "agrees", "exponential": "agrees"}


def test_costs_that_are_two_formulas_agree_with_nobody() -> None:
    page = allreduce.page(allreduce_runs(), "quick")
    formulas = dict.fromkeys(("bytes", "steps", "tree", "odd"), "by construction")
    assert words(page) == {"nodes": "differs", **formulas}
    assert all(verdict.modelled for verdict in page.verdicts)
    assert "| ethernet_1gbit: halving-doubling | never |" in markdown(page)
    sizes = [allreduce.crossing([v]) for v in (0, 12, 4782, 1.5e6, math.inf)]
    assert sizes == ["always", "12 B", "4.78 kB", "1.5 MB", "never"]
    assert [allreduce.seconds([v]) for v in (2.5, 0.0312, 4e-5)] == ["2.5 s", "31.2 ms", "40 µs"]


@pytest.mark.parametrize(("common", "dense"), [(0.6, "agrees"), (3.0, "differs")])
def test_sums_of_real_supports_are_judged_and_arithmetic_is_called_so(
    common: float, dense: str
) -> None:
    found = words(density.page(density_runs(common), "quick"))
    assert {found["dense.gradient"], found["dense.error-fed"]} == {dense}
    assert found["gradient.10"] == found["error-fed.10"] == "agrees"
    assert found["dense.random"] == found["codes.4"] == found["codes.8"] == "by construction"


def test_counted_payloads_are_arithmetic_and_277x_and_608x_cannot_follow() -> None:
    page = dgc.page(payload_runs(), "quick")
    found = words(page)
    assert {name for name, word in found.items() if word == "cannot follow"} == {
        "size.resnet50",
        "ratio.resnet50",
        "ratio.deepspeech",
    }
    assert {found["range"], found["size.deepspeech"]} == {"by construction"}
    assert [round(v, 3) for v in values(page.frame, dgc.PAYLOAD, dgc.DEEPSPEECH, "auto")] == [0.736]


@pytest.mark.parametrize(("common", "near"), [(2.0, "agrees"), (0.0, "differs")])
def test_a_gradient_that_repeats_has_low_rank_and_a_warm_start_finds_it(
    common: float, near: str
) -> None:
    found = words(lowrank.page(lowrank_runs(common), "quick"))
    assert found["gradient.low"] == near
    assert found["gradient.near"] == near


@pytest.mark.parametrize(("fed", "converges"), [(69.5, "agrees"), (60.0, "differs")])
def test_one_bit_is_judged_by_its_distance_from_dense(fed: float, converges: str) -> None:
    found = words(onebit.page(onebit_runs(fed), "quick"))
    assert found == {"accumulated": converges, "dropped": "agrees", "loss": "agrees"}
