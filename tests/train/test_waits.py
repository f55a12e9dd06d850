"""How often the host would wait for a GPU in a step of the trainer, counted on fake tensors."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from tiny_run import tiny
from torch import Tensor

from dgc_repro.bench.counting import CUDA, Counting
from dgc_repro.launch.build import build_run
from dgc_repro.train.loop import steps_left
from dgc_repro.train.step import train_step

SIGNALS, SIZES, ENERGIES, END = "event", "_to_copy", "_to_copy", "event"
ALONE = "launch.workers=1"
GRAVAC = ("compressor=topk", "policy=gravac")
WORDS = (
    *("dataset=descriptions", "dataset.train_size=1200", "dataset.validation=100"),
    *("dataset.test_size=101", "dataset.bptt=12", "model=transformer", "model.width=8"),
)


@pytest.mark.parametrize(
    ("overrides", "waits"),
    [
        (("compressor=dense", "wrap=[]"), [SIGNALS]),
        (("compressor=uniform", "dataset.augment=crop_flip"), [SIGNALS]),
        (("compressor=topk", "train.on_nonfinite=skip", "optimizer=adam"), [SIGNALS]),
        (("compressor=powersgd", "train.batch_size=8", "train.accumulate=2"), [SIGNALS]),
        # When the sizes are there, so are the signals.
        (("compressor=dgc", ALONE), [SIZES]),
        (("compressor=topk", *WORDS), [SIGNALS]),
        (("compressor=topk", *WORDS, "dataset.reading=windows"), [SIGNALS]),
        # A policy that measures gets the time of each step, which ends when the device has done it.
        ((*GRAVAC, "policy.decide=last"), [SIGNALS, ENERGIES, END]),
        (GRAVAC, [SIGNALS, ENERGIES, END]),
        # A worker leaves out a local step by itself, and reads each time whether it must.
        (("train.local_steps=2", ALONE), ["_to_copy"]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_the_host_waits_for_the_signals_alone(overrides: tuple[str, ...], waits: list[str]) -> None:
    """Without the waits of backward itself, which cannot run on fake tensors."""
    with Counting() as counting:
        run = build_run(tiny("train.channels_last=false", *overrides), CUDA)

        def backward(_: Tensor) -> None:
            for parameter in run.module.parameters():
                parameter.grad = torch.empty_like(parameter)

        with patch.object(Tensor, "backward", backward):
            for step, batches in zip(range(3), steps_left(run), strict=False):
                counting.clear()
                assert train_step(run, batches)
                if step:  # constants are uploaded in the first
                    is_last = run.settings.local_steps > 1 and run.ends_round(step + 1)
                    assert counting.waits == [*waits, *([SIGNALS] if is_last else [])]
        assert run.progress.tally.skipped_steps == 0
        counting.clear()
        run.world.clock.catch_up()
        assert counting.syncs == (0 if END in waits[1:] else 1)
