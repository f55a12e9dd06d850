"""Recorded decisions of GraVAC, made again by a policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.interface import StepReport


def replayed(policy: GraVAC, decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The branches that ``policy`` takes on the energies and times of recorded decisions (decisions.jsonl of
    a run from its first step on): those of the record, where nothing has changed."""
    state, branches, told = policy.init(), [], -1
    for decision in decisions:
        step, report = int(decision["decision"]) - 1, _report(decision)
        is_new = report is not None and report.step > told
        if report is not None and is_new and report.step < step - 1:
            state = policy.after_step(state, report)  # told in a step between, which was skipped
        energies = torch.tensor(decision["decision/energies"], dtype=torch.float64)
        _, state = policy.choose(state, energies)
        branches.append(state["last"]["branch"])
        if report is not None and is_new and report.step == step - 1:
            state = policy.after_step(state, report)
        told = told if report is None else report.step
    return branches


def _report(decision: Mapping[str, Any]) -> StepReport | None:
    """What the policy had been told last, when this decision was recorded."""
    if "decision/timed_step" not in decision:
        return None
    told = [decision[f"decision/timed_{name}"] for name in ("step", "seconds", "samples")]
    step, seconds, samples = (math.nan if value is None else float(value) for value in told)
    return StepReport(int(step), seconds, samples)
