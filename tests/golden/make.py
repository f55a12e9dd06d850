"""Golden loss curves: ``python tests/golden/make.py`` writes them anew, a test compares.

A refactoring shows the same curves. They are the training losses of single steps, over two
simulated workers on one thread.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
from tiny_run import STEPWISE, UNIFORM4_EF, built, play  # noqa: E402

NUM_STEPS = 6
STEADY = ("dataset.augment=crop", "model.width=8", "optimizer.lr=0.01")
"""At this rate other kernels for the same convolutions change a loss by up to 6e-4, at 0.1 by 5e-3."""
# 128 images make 4 steps an epoch, so that 6 steps see a change of rung and a second epoch.
RUNS = {
    "dense": ("compressor=dense", "wrap=[]"),
    "uniform4_error_feedback": UNIFORM4_EF,
    "dynamic": (*STEPWISE, "policy.accuracy_thresholds=[0]", "wrap=[]"),
}


def curve(overrides: tuple[str, ...]) -> list[tuple[int, float]]:
    """(rung, mean training loss of the epoch so far) of each step; no rung is -1."""
    run = built(*overrides, *STEADY)
    rungs: list[int] = []
    begin = run.junction.begin

    def watched(plan: object) -> None:
        rungs.append(run.policy.plan(run.progress.policy, run.progress.step).rung or 0)
        begin(plan)

    run.junction.begin = watched
    losses = play(run, until=NUM_STEPS).losses
    return list(zip(rungs, losses, strict=True))


def as_text(points: list[tuple[int, float]]) -> str:
    """One line a step: rung and loss."""
    return "".join(f"{rung} {loss:.7f}\n" for rung, loss in points)


def main() -> None:
    torch.set_num_threads(1)
    for name, overrides in RUNS.items():
        (HERE / f"{name}.txt").write_text(as_text(curve(overrides)), encoding="utf-8")
        print(HERE / f"{name}.txt")


if __name__ == "__main__":
    main()
