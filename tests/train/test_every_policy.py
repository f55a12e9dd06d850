"""Any policy over any ladder, three steps each: the nests that compressors bring, in the simulated world.

Where a compressor has no setting to make a ladder of, or a payload would have to be answered before its
energy is known, the refusal is one line.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from tiny_run import FINISHED, PLAIN, build, tiny

from dgc_repro import UserError, conf_dir
from dgc_repro.launch.rules import validate
from dgc_repro.train.loop import decision, steps_left
from dgc_repro.train.step import train_step

FACTORS = ("factor", 2, 8)
LADDERS: dict[str, tuple[str, Any, Any] | None] = {
    # compressor: its setting, a weak value and a strong one; None: it has no setting
    **dict.fromkeys(("dense", "bf16", "fp16", "natural", "onebit", "signsgd", "ef_signsgd"), None),
    "onebit_adam": None,
    **dict.fromkeys(("topk", "dgc_sampled", "threshold", "redsync", "sidco", "randomk"), FACTORS),
    "magnitude": FACTORS,
    "dgc": FACTORS,
    "powersgd": ("rank", 4, 1),
    "dion": ("rank_fraction", 0.5, 0.25),
    "qsgd": ("levels", 127, 7),
    "loco": ("bits", 8, 4),
    "demo": ("k", 8, 2),
    "sparseloco": ("density", 0.5, 0.1),
    "blockfloat": ("format", "mxfp8", "mxfp4"),
    "eden": ("bits", 4, 1),
    "drive": ("bits", 2, 1),
    "terngrad": ("clip", 3.5, 2.5),
    "uniform": ("bits", 8, 4),
    "running_uniform": ("bits", 8, 4),
}
OF_ITS_OWN: dict[str, tuple[str, ...]] = {"dgc": ("compressor.density=null",)}
STEPS = 3


def settings(field: str, weak: Any, strong: Any) -> dict[str, dict[str, Any]]:
    """What each policy is told of a ladder."""
    ladder = {"field": field, "values": [weak, strong]}
    measured = {"field": field, "ladder": [weak, strong], "window": 1, "workers": 2}
    return {
        "fixed": {**ladder, "rung": 2},
        "scheduled": {**ladder, "by": "step", "rungs": [[0, 0], [1, 1], [2, 2]]},
        "stepwise": {**ladder, "accuracy_thresholds": [50.0]},
        "warmup": ladder,
        "accordion": ladder,
        "adaqs": {**ladder, "least_steps": 1},
        "gravac": measured,
        "gravac later": {**measured, "decide": "last"},
        "probed": {"field": field, "value": strong, "spread": True},
        "scadles": {**ladder, "values": [strong]},
        "oracle": {**ladder, "runs": [str(FINISHED), None]},
    }


POLICIES = list(settings(*FACTORS))
MEASURING = ("gravac", "gravac later", "probed", "scadles")


def config_of(compressor: str, policy: str) -> dict[str, Any]:
    timed = ("network=ethernet_1gbit", "train.step_time=modelled", "train.compute_ms=5")
    config = tiny(f"compressor={compressor}", *OF_ITS_OWN.get(compressor, ()), *PLAIN, *timed)
    path = conf_dir() / "policy" / f"{policy.partition(' ')[0]}.yaml"
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["policy"] = written | settings(*(LADDERS[compressor] or FACTORS))[policy]
    return config


def refusal(compressor: str, policy: str) -> str | None:
    """How the line begins that says why these two do not go together; None: they do."""
    if LADDERS[compressor] is None:
        return "policy.field: the compressor has no setting 'factor' (it has none)"
    if compressor in ("powersgd", "dion", "running_uniform") and policy in MEASURING:
        return "policy: it must measure each rung before it chooses"
    if compressor == "dion":
        return "policy.field: rung 0 would answer with gradients"
    if compressor == "magnitude" and policy == "accordion":
        return "exchange.unit: model joins all tensors into one, and this policy judges each"
    return None


def test_the_table_has_every_compressor_and_every_policy() -> None:
    assert set(LADDERS) == {path.stem for path in (conf_dir() / "compressor").glob("*.yaml")}
    names = {path.stem for path in (conf_dir() / "policy").glob("*.yaml")}
    assert {name.partition(" ")[0] for name in POLICIES} == names


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("compressor", LADDERS)
def test_any_policy_goes_over_any_ladder_or_says_why_not(compressor: str, policy: str) -> None:
    config = config_of(compressor, policy)
    line = refusal(compressor, policy)
    if line is not None:
        with pytest.raises(UserError) as error:
            validate(config)
        assert str(error.value).startswith(line)
        assert "\n" not in str(error.value)
        return
    run = build(config)
    gains = []
    for _, batches in zip(range(STEPS), steps_left(run), strict=False):
        train_step(run, batches)
        gains.append(decision(run.progress.policy).get("decision/gain"))
    assert run.progress.step == STEPS
    assert math.isfinite(run.progress.tally.mean_loss)
    assert all(bool(p.isfinite().all()) for p in run.module.parameters())
    if policy in MEASURING:
        assert all(gain is not None and gain <= 1 + 1e-6 for gain in gains)
