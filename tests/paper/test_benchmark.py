"""The benchmark's page: losses, bytes among N workers, the front, and what was tuned."""

from __future__ import annotations

import pandas as pd
import pytest

from dgc_repro.errors import UserError
from dgc_repro.paper import frame
from dgc_repro.paper.benchmark import methods
from dgc_repro.paper.page import markdown
from dgc_repro.paper.records import Run


def _run(
    method: str, seed: int = 0, *, quality: float, calls: dict[str, int], workload: str = "resnet"
) -> Run:
    """Ten steps; ``calls``: payload bytes of the whole run by collective."""
    name = "test/accuracy_percent" if workload == "resnet" else "test/perplexity"
    epochs = pd.DataFrame(
        {
            "epoch": [1], "step": [10], name: [quality], "train/skipped_steps": [2],
            name.replace("test", "validation"): [quality],
            "comm/payload_bytes": [float(sum(calls.values()))],
        }
    )  # fmt: skip
    config = {
        "experiment": {"paper": "benchmark", "artifact": "methods", "row": f"{workload}.{method}"},
        "seed": seed, "scale": {"name": "quick"}, "launch": {"workers": 4, "kind": "simulated"},
        "model": {"_target_": "dgc_repro.model.resnet18.ResNet18", "width": 8, "stem": "imagenet"},
        "dataset": {"_target_": "dgc_repro.dataset.digits.Digits"},
        "train": {"epochs": 1, "batch_size": 4, "on_nonfinite": "skip"},
        "optimizer": {"lr": 0.1 if "_lr" not in method else float(method.partition("_lr")[2])},
    }  # fmt: skip
    summary = {
        "steps": 10, "parameters": 1000,
        "collectives": {key: {"calls": 10, "payload_bytes": size} for key, size in calls.items()},
    }  # fmt: skip
    environment = {"hardware": "none", "torch": "0", "data": "made up", "commit": "0" * 40}
    return Run(f"{workload}-{method}-{seed}", config, environment, summary, epochs)


DENSE = _run("dense", quality=80.0, calls={"allreduce": 40_000})
TOPK = _run("topk_0.01", quality=79.0, calls={"allgather": 800})


def test_a_loss_is_against_dense_of_the_same_seed() -> None:
    later = [
        _run(r.method, 1, quality=q, calls={"allreduce": 40_000})
        for r, q in ((DENSE, 70.0), (TOPK, 71.0))
    ]
    found = methods.numbers([DENSE, TOPK, *later])
    assert frame.of(found, methods.LOSS, "resnet.topk_0.01") == [1.0, -1.0]
    text = [
        _run(name, quality=value, calls={"allreduce": 40}, workload="lstm")
        for name, value in (("dense", 100.0), ("topk", 110.0))
    ]
    assert frame.of(methods.numbers(text), methods.LOSS, "lstm.topk") == pytest.approx([10.0])


def test_wire_bytes_follow_the_collective() -> None:
    # ring allreduce: 2 (N-1) / N of 4000 bytes a step; allgather: N-1 times 80
    assert methods.wire_a_step(DENSE, 2) == pytest.approx(4_000)
    assert methods.wire_a_step(DENSE, 128) == pytest.approx(4_000 * 2 * 127 / 128)
    assert methods.wire_a_step(TOPK, 2) == pytest.approx(80)
    assert methods.wire_a_step(TOPK, 128) == pytest.approx(80 * 127)


def test_the_front_has_what_nothing_undercuts() -> None:
    points = {"dense": (0.0, 100.0), "good": (0.0, 10.0), "small": (5.0, 1.0), "bad": (6.0, 20.0)}
    points["diverged"] = (float("nan"), 0.5)
    assert methods.front(points) == ["small", "good"]
    assert methods.front({**points, "better": (-1.0, 200.0)}) == ["small", "good", "better"]


def test_the_page_has_a_table_a_workload_and_what_was_tuned() -> None:
    tuning = _run("topk_0.01_lr0.2", quality=50.0, calls={"allgather": 800})
    page = methods.page([DENSE, TOPK, tuning], "quick")
    text = markdown(page)
    assert "| topk_0.01 | yes | 1 | 79.0 | 1.0 | 80 B | 50.0x |" in text
    assert "topk_0.01_lr0.2" not in text
    assert "| slim ResNet18, images | topk_0.01 | 0.2 |  | 50.0 | 50.0 |" in text
    page.figures["methods"]()
    with pytest.raises(UserError, match="dense training"):
        methods.page([TOPK], "quick")
