"""A wrong setting is one line that names it, its range and what was given; no key of the command line,
because own loops build compressors too."""

from __future__ import annotations

import re
from typing import Any

import pytest

import dgc_repro as D

FED = "keeps an error of its own; leave the other one out"
SHARE = "a number above 0 and at most 1"
OF_SPARSIFIERS: list[tuple[dict[str, Any], str]] = [
    ({"density": 1.01}, f"density: {SHARE}, or null, got 1.01; 0.01 sends 1 %"),
    ({"factor": 0.9}, "factor: a number from 1, or null, got 0.9; 100 sends one entry of 100"),
    ({"density": 0.1, "factor": 20}, "density: 0.1 is a factor of 10, and factor is 20; give one"),
]
PASSES = "threshold: a fixed threshold sends whatever passes"

# What annotations say: one value of each field. tests/test_checked.py has the other kinds of values.
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    *((kind, *wrong) for kind in (D.TopK, D.Threshold, D.DGCSampled, D.RedSync, D.SIDCo, D.RandomK)
      for wrong in OF_SPARSIFIERS),
    (D.Threshold, {"threshold": 0.0}, "threshold: a number above 0, or null, got 0.0"),
    (D.Threshold, {"threshold": 0.1, "factor": 100}, PASSES),
    (D.Threshold, {"threshold": 0.1, "density": 0.1}, PASSES),
    (D.Threshold, {"sample": -1}, f"sample: {SHARE}, got -1"),
    (D.DGCSampled, {"sample": 0}, f"sample: {SHARE}, got 0"),
    (D.RedSync, {"search_from": -1}, "search_from: a whole number from 0, got -1"),
    (D.RedSync, {"quantized": 1}, "quantized: true or false, got 1"),
    (D.SIDCo, {"fit": "normal"}, "fit: one of exponential, gamma, pareto, got 'normal'"),
    (D.SIDCo, {"stages": 65}, "stages: a whole number from 1 to 64, or null, got 65"),
    (D.RandomK, {"shared": "yes"}, "shared: true or false, got 'yes'"),
    (D.RandomK, {"unbiased": 1}, "unbiased: true or false, got 1"),
    *((D.Uniform, {"bits": value}, f"bits: a whole number from 2 to 16, got {value}; for one bit use a sign")
      for value in (1, 17)),
    (D.RunningUniform, {"bits": 2}, "bits: a whole number from 3 to 16"),
    (D.Uniform, {"block": 0}, "block: a whole number from 1, or null, got 0"),
    (D.Uniform, {"rounding": "up"}, "rounding: one of nearest, toward_zero, stochastic, got 'up'"),
    (D.BlockFloat, {"format": "fp8"}, "format: one of fp8_e4m3, fp8_e5m2, mxfp8, mxfp8_e5m2, mxfp6, "
     "mxfp6_e3m2, mxfp4, nvfp4, got 'fp8'"),
    (D.BlockFloat, {"rounding": "toward_zero"}, "rounding: one of nearest, stochastic, got 'toward_zero'"),
    (D.DRIVE, {"bits": 4}, "bits: one of 1, got 4"),
    (D.EDEN, {"bits": 5}, "bits: a whole number from 1 to 4, got 5"),
    (D.EDEN, {"block": 16}, "block: a whole number from 32 to 1048576, got 16; a power of two"),
    (D.EDEN, {"block": 96}, "block: a power of two, got 96"),
    (D.EDEN, {"scale": "biased"}, "scale: one of unbiased, least_error, got 'biased'"),
    (D.EDEN, {"rotations": 4}, "rotations: a whole number from 1 to 3, got 4"),
    (D.QSGD, {"levels": 32768}, "levels: a whole number from 1 to 32767, got 32768"),
    (D.QSGD, {"bucket": 0}, "bucket: a whole number from 1, or null, got 0"),
    (D.QSGD, {"norm": "2"}, "norm: one of two, max, got '2'"),
    (D.TernGrad, {"clip": 0}, "clip: a number of standard deviations above 0, or null, got 0"),
    (D.TernGrad, {"shared_scale": "yes"}, "shared_scale: true or false, got 'yes'"),
    (D.SparseLoCo, {"density": None}, f"density: {SHARE}, got None; 0.01 sends 1 %"),
    (D.SparseLoCo, {"chunk": 65537}, "chunk: a whole number from 2 to 65536, got 65537"),
    (D.SparseLoCo, {"bits": 9}, "bits: a whole number from 2 to 8, got 9"),
    (D.DeMo, {"k": 0}, "k: a whole number from 1, got 0"),
    (D.DeMo, {"chunk": 257}, "chunk: a whole number from 1 to 256, got 257"),
    (D.DeMo, {"sign": 1}, "sign: true or false, got 1"),
    (D.Dion, {"rank_fraction": 0}, f"rank_fraction: {SHARE}, got 0"),
    (D.Dion, {"momentum": 1}, "momentum: a number from 0 to below 1, got 1"),
    (D.PowerSGD, {"rank": 0}, "rank: a whole number from 1, got 0"),
    (D.LoCo, {"inner": D.Dense(), "beta": 1}, "beta: a number from 0 to below 1, got 1"),
    (D.LoCo, {"inner": D.Dense(), "reset_steps": 0},
     "reset_steps: a whole number from 1, or null, got 0; null for no reset"),
    *((D.LoCo, {"inner": inner}, f"inner: loco {FED}")
      for inner in (D.ErrorFeedback(D.Uniform()), D.LoCo(D.Uniform()))),
    (D.OneBitAdam, {"inner": D.Dense(), "beta1": 1}, "beta1: a number from 0 to below 1, got 1"),
    (D.OneBitAdam, {"inner": D.Dense(), "warmup_steps": -1}, "warmup_steps: a whole number from 0, got -1"),
    (D.ErrorFeedback, {"inner": D.Dense(), "decay": 0}, f"decay: {SHARE}, got 0; 1 forgets nothing"),
    *((kind, {"inner": D.Dense(), "momentum": 1}, "momentum: a number from 0 to below 1, got 1")
      for kind in (D.MomentumCorrection, D.BlockMomentum)),
    (D.MomentumCorrection, {"inner": D.Dense(), "nesterov": 1}, "nesterov: true or false, got 1"),
    (D.MomentumCorrection, {"inner": D.Dense(), "masking": "no"}, "masking: true or false, got 'no'"),
    (D.ClipLocal, {"inner": D.Dense(), "threshold": 0}, "threshold: a number above 0, got 0"),
    (D.ClipLocal, {"inner": D.Dense(), "threshold": 1, "of": "all"}, "of: one of share, mean, got 'all'"),
    (D.PerLayer, {"inner": D.Uniform(), "dense": "vectors"},
     "dense: a list, each a word, got 'vectors'; `vectors` or patterns, as ['vectors', 'fc.*']"),
    (D.PerLayer, {"inner": D.Uniform(), "smaller_than": -1}, "smaller_than: a number of values from 0"),
    (D.Ladder, {"rungs": (D.Dense(),)}, "values: a ladder needs at least one setting"),
    (D.Sharded, {"method": D.SIDCo(0.01)}, "method: SIDCo keeps a state"),
    (D.Sharded, {"method": D.PowerSGD(1)}, "method: "),
    (D.Sharded, {"method": D.ErrorFeedback(D.Uniform(8))}, "method: an Encoder, or a Sparsifier, got"),
    (D.Sharded, {"method": D.RandomK(0.1)}, "method: RandomK, as it is set, cannot be parted into shards"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings", "message"), WRONG)
def test_a_wrong_setting_is_named(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)) as refused:
        kind(**settings)
    said = str(refused.value).replace("for no compression compressor=dense", "")  # of Uniform's
    assert not re.search(r"\b(compressor|exchange|policy|wrapper|train|wrap)[.=]|\n", said)


def test_density_and_factor_may_agree() -> None:
    assert D.TopK(0.1, 10).num_largest(1000) == D.TopK(0.1).num_largest(1000) == 100
    assert D.TopK().num_largest(1000) == 10  # 1 % where neither is given
