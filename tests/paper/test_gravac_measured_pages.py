"""GraVAC's Tables I and III, figures 1a and 3: pages of made-up runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic import words

from dgc_repro.errors import UserError
from dgc_repro.paper import page, pool
from dgc_repro.paper.frame import of
from dgc_repro.paper.gravac import COMPRESSORS, MODELS, PARAMETERS, fig1a, fig3, table1, table3
from dgc_repro.paper.interfaces import counted_line
from dgc_repro.paper.records import Run, in_order

# papers.md, Table B3, written out once more: a slip in the package's copy shows here.
PRINTED = """
| ResNet101 | 606 / 332 (1.83x) | 90 / 59 (1.52x) | 33 / 29.8 (1.1x) | 23 / 14 (1.64x) |
| VGG16 | 181 / 121 (1.49x) | 122 / 95.5 (1.27x) | 101.4 / 87.7 (1.16x) | 41.6 / 31 (1.34x) |
| LSTM | 200 / 126 (1.59x) | 88 / 63 (1.4x) | 69.4 / 46.4 (1.5x) | 56.4 / 37.4 (1.5x) |
"""


def made(row: str, lines: list[dict[str, Any]], config: dict[str, Any], seed: int = 0) -> Run:
    """A computed or measured run."""
    fixed = {
        "seed": seed, "scale": {"name": "quick"}, "experiment": {"paper": "gravac", "row": row},
        "model": {"_target_": f"dgc_repro.model.x.{MODELS.get(row, 'Other')}", "width": 64},
    }  # fmt: skip
    environment = {"hardware": "made-up CPU", "data": "made-up", "threads_per_worker": 2}
    summary = {
        "parameters": PARAMETERS.get(row, 1000),
        "tensors": 3,
        "steps": 4,
        "gradient_norm": 1.5,
    }
    return Run(f"{row}-{seed}", fixed | config, environment, summary, lines=pd.DataFrame(lines))


def models(sizes: dict[str, tuple[int, float]]) -> list[Run]:
    return [
        made(row, [{"layers": n, "tensors": 3, "parameters": 1000, "mib": mib}], {})
        for row, (n, mib) in sizes.items()
    ]


def measured(model: str, ms: float = 20, apart: int = 0, wobble: float = 0.01, n: int = 5) -> Run:
    """Direct takes 30 ms and multi-level ``ms``, with Random-k 60; ``wobble``: of every second repeat."""
    rows: list[dict[str, Any]] = []
    chosen: list[dict[str, Any]] = []
    for block in table3.BLOCKS:
        for method in COMPRESSORS:
            multilevel = 60.0 if method == "randomk" else ms
            rows += [
                {
                    "block": block, "method": method, "repeat": r, "copy_ms": 2 + r, "weak_ms": 18.0,
                    "direct_ms": 30.0 + 0.1 * r, "multilevel_ms": multilevel * (1 + wobble * (r % 2)),
                    "single_pass_ms": 16.0 if method == "topk" else math.nan,
                }
                for r in range(n)
            ]  # fmt: skip
            counts = {"strong_asked": 9, "direct_kept": 9, "multilevel_apart": apart}
            chosen.append({"block": block, "method": method, **counts, "single_pass_kept": None})
    run = made(model, rows, {"measure": {"factors": [10, 1000], "repeats": n, "steps": 4}})
    run.summary["chosen"] = chosen
    return run


def scaling(model: str, compute: float, syncs: tuple[float, float]) -> Run:
    """``syncs``: ms of one allreduce a step, and of one per tensor, of 32 workers."""
    rows = [
        {
            "series": series, "latency_us": us, "workers": n, "messages": 1, "compute_ms": compute,
            "sync_ms": sync * (n > 1), "efficiency": compute / (compute + sync * (n > 1)),
        }
        for series, sync in zip(("per step", "per tensor"), syncs, strict=True)
        for us, counts in ((50.0, (1, 32)), (100.0, (32,)))
        for n in counts
    ]  # fmt: skip
    study = {"compute_ms": compute, "networks": {"made_up": {"source": "made up"}}}
    return made(model, rows, {"study": study})


def saturating(model: str, at: int) -> Run:
    """Throughput and communication grow with the factor up to ``at``."""
    rest = set(fig3.COLUMNS) - {"throughput", "communication"}
    rows = [
        {
            "compress": series, "latency_us": us, "factor": c, **dict.fromkeys(rest, 5.0),
            "throughput": min(c, at) / 10, "communication": min(c, at) / 10,
        }
        for series, us in (("none", 50.0), ("stated", 50.0), ("measured", 50.0), ("stated", 0.0))
        for c in (10, 100, 200, 500, 1000, 2000, 5000)
    ]  # fmt: skip
    study = {"compute_ms": 16, "networks": {"made_up": {"source": "made up"}}, "workers": 32}
    return made(model, rows, {"study": study})


SIZES = {"resnet101": (101, 169.9), "vgg16": (16, 527.8), "lstm": (2, 251.9)}
SYNCS = {"resnet101": (16, (290, 1262)), "vgg16": (13, (900, 1077)), "lstm": (27, (429, 462))}
RUNS: dict[Any, Callable[[], list[Run]]] = {
    table1: lambda: models(SIZES),
    table3: lambda: [measured(model) for model in MODELS],
    fig1a: lambda: [scaling(model, ms, syncs) for model, (ms, syncs) in SYNCS.items()],
    fig3: lambda: [saturating(model, at) for model, at in fig3.PRINTED.items()],
}


@pytest.mark.parametrize("module", RUNS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_pool_makes_the_same_page_and_no_claim_lacks_numbers(module: Any, tmp_path: Path) -> None:
    runs = in_order(RUNS[module]())
    drawn = module.page(runs, "quick")
    assert not [v.claim.id for v in drawn.verdicts if v.word in ("not run", "not tested")]
    assert len(drawn.verdicts) == len(set(words(drawn))) == len(module.CLAIMS)
    page.write(drawn, tmp_path)
    pool.write(runs, tmp_path / "pool")
    again = module.page(pool.read(tmp_path / "pool"), "quick")
    assert page.markdown(again) == (tmp_path / "table.md").read_text(encoding="utf-8")
    alone = module.page(runs[:1], "quick")
    assert "not run" in words(alone).values()
    [draw() for draw in alone.figures.values()]


def test_table_3_is_the_printed_one() -> None:
    found = re.findall(r"([\d.]+) / ([\d.]+) \(([\d.]+)x\)", PRINTED)
    assert list(table3.TABLE_3.rows.values()) == [tuple(map(float, cell)) for cell in found]
    assert fig3.PRINTED == {"resnet101": 500, "vgg16": 500, "lstm": 1000}


def test_a_model_that_is_built_otherwise_differs() -> None:
    other = models({"vgg16": (16, 60.0), "lstm": (3, 251.9)})
    found = words(table1.page(other, "quick"))
    assert found == {"resnet101": "not run", "vgg16": "differs", "lstm": "differs"}


def test_repeats_are_judged_by_the_geometric_mean_of_their_quotients() -> None:
    made = table3.page([measured("vgg16", apart=2)], "quick")
    found = words(made)
    assert found["vgg16.dgc.faster"] == found["vgg16.topk.latency"] == "agrees"
    assert found["vgg16.randomk.faster"] == found["vgg16.topk.equal"] == "differs"
    # 1.5 for each: within half of the gain of 1.49, not of 1.16
    assert found["vgg16.topk.magnitude"] == "agrees"
    assert found["vgg16.redsync.magnitude"] == "differs"
    assert found["lstm.dgc.faster"] == "not run"
    (effect,) = next(v for v in made.verdicts if v.claim.id == "vgg16.dgc.faster").effects
    quotients = [(30 + 0.1 * r) / (20 * (1 + 0.01 * (r % 2))) for r in range(5)]
    assert effect.mean == pytest.approx(math.exp(np.mean(np.log(quotients))))
    assert of(made.frame, "direct, median ms", "vgg16.dgc") == [30.2]
    noisy = table3.page([measured("vgg16", ms=25.0, wobble=1.0)], "quick")
    assert words(noisy)["vgg16.dgc.faster"] == "inconclusive"


def test_a_reduced_model_does_not_carry_the_full_ones_name_and_a_busy_machine_is_said() -> None:
    run = measured("vgg16")
    reduced = replace(run, summary=run.summary | {"parameters": 2_613_424})
    busy = replace(reduced, environment=run.environment | {"busy_cores": 3.0})
    text = page.markdown(table3.page([busy], "quick"))
    assert "| 16-layer VGG, 2.61 M, DGC | 1.27x | 1.5" in text
    assert "WARNING: other work used up to 3.00 cores" in text
    assert "| VGG16, DGC | 1.27x | 1.5" in page.markdown(table3.page([run], "quick"))


def test_runs_that_are_not_alike_make_no_page() -> None:
    with pytest.raises(UserError, match=r"^measure\.repeats: "):
        table3.page([measured("lstm", n=5), measured("vgg16", n=7)], "quick")


@pytest.mark.parametrize(("resnet_ms", "word"), [(17, "agrees"), (19, "differs")])
def test_the_order_flips_where_the_verdict_says(resnet_ms: float, word: str) -> None:
    runs = [scaling("resnet101", resnet_ms, (290, 1262)), scaling("lstm", 27, (429, 462))]
    made = fig1a.page(runs, "quick")
    assert words(made)["lstm"] == f"{word} (given)"
    assert "flips at 18 ms of compute of ResNet101" in made.verdicts[0].detail


@pytest.mark.parametrize(
    ("at", "word"), [(100, "differs"), (200, "agrees"), (1000, "agrees"), (2000, "differs")]
)
def test_a_factor_of_saturation_may_be_one_step_off(at: int, word: str) -> None:
    found = words(fig3.page([saturating("vgg16", at), saturating("lstm", at)], "quick"))
    assert found["vgg16.saturates"] == found["vgg16.communication"] == f"{word} (given)"
    assert found["lstm.after.vgg16"] == "differs (given)"
    assert fig3.saturation({1000: 2.0, 10: 1.0, 100: 1.89}) == 1000
    assert fig3.saturation({1000: 2.0, 10: 1.0, 100: 1.9}) == 100


def test_the_line_of_a_run_has_interface_and_ledger(tmp_path: Path) -> None:
    assert counted_line(tmp_path) is None
    sent = {
        "net/tx_bytes": 1.01e6, "net/expected_tx_bytes": 1e6, "comm/total_wire_bytes": 9e5,
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(sent))
    line = "network: 1.01 MB sent a worker by its interface, 1 MB by the ledger with headers"
    assert counted_line(tmp_path) == f"{line} (+1.00 %; 900 kB without)"
