"""A wrong setting is one line that names it, its range and what was given; no key of the command line,
because own loops build compressors too."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from dgc_repro import (
    EDEN,
    QSGD,
    BlockFloat,
    BlockMomentum,
    ClipLocal,
    DeMo,
    Dense,
    DGCSampled,
    Dion,
    ErrorFeedback,
    Ladder,
    LoCo,
    MomentumCorrection,
    OneBitAdam,
    PerLayer,
    PowerSGD,
    RandomK,
    RedSync,
    SIDCo,
    SparseLoCo,
    TernGrad,
    Threshold,
    TopK,
    Uniform,
)
from dgc_repro.compressor.onebit import OneBit
from dgc_repro.compressor.sharded import Sharded

INF, NAN = math.inf, math.nan
NO_SHARDS = "method: {}, as it is set, cannot be parted into shards; use it without"
SHARE = "a number above 0 and at most 1"
OF_SPARSIFIERS: list[tuple[dict[str, Any], str]] = [
    *(
        ({"density": value}, f"density: {SHARE}, or null, got {value!r}; 0.01 sends 1 %")
        for value in (0, -0.1, 1.01, NAN, "1%", True)
    ),
    *(
        (
            {"factor": value},
            f"factor: a number from 1, or null, got {value}; 100 sends one entry of 100",
        )
        for value in (0.9, INF)
    ),
    ({"density": 0.1, "factor": 20}, "density: 0.1 is a factor of 10, and factor is 20; give one"),
]
SPARSIFIERS = (TopK, Threshold, DGCSampled, RedSync, SIDCo, RandomK)
PASSES = "threshold: a fixed threshold sends whatever passes"
DEVIATIONS = "clip: a number of standard deviations above 0, or null"
NAMES = "`vectors` or patterns, as ['vectors', 'fc.*']"

WRONG: list[tuple[Any, dict[str, Any], str]] = [
    *((kind, *wrong) for kind in SPARSIFIERS for wrong in OF_SPARSIFIERS),
    *((Threshold, {"threshold": value}, f"threshold: a number above 0, or null, got {value!r}")
      for value in (0.0, INF, "small")),
    (Threshold, {"threshold": 0.1, "factor": 100}, PASSES),
    (Threshold, {"threshold": 0.1, "density": 0.1}, PASSES),
    (Threshold, {"sample": -1}, f"sample: {SHARE}, got -1"),
    *((DGCSampled, {"sample": value}, f"sample: {SHARE}, got {value}") for value in (0, 1.5, True)),
    *((RedSync, {"search_from": value}, f"search_from: a whole number from 0, got {value}")
      for value in (-1, 0.5, True)),
    (RedSync, {"quantized": 1}, "quantized: true or false, got 1"),
    (SIDCo, {"fit": "normal"}, "fit: one of exponential, gamma, pareto, got 'normal'"),
    *((SIDCo, {"stages": value}, f"stages: a whole number from 1 to 64, or null, got {value}")
      for value in (0, 1.0, True)),
    (RandomK, {"shared": "yes"}, "shared: true or false, got 'yes'"),
    (RandomK, {"unbiased": 1}, "unbiased: true or false, got 1"),
    *((Uniform, {"bits": value}, f"bits: a whole number from 2 to 16, got {value!r}; for one bit use a sign")
      for value in (1, 17, "eight", True, 4.0)),
    *((Uniform, {"block": value}, f"block: a whole number from 1, or null, got {value!r}")
      for value in (0, -4, True, "512")),
    (Uniform, {"rounding": "nearst"}, "rounding: one of nearest, toward_zero, stochastic, got 'nearst'"),
    (BlockFloat, {"format": "fp8"}, "format: one of fp8_e4m3, fp8_e5m2, mxfp8, mxfp8_e5m2, mxfp6, "
     "mxfp6_e3m2, mxfp4, nvfp4, got 'fp8'"),
    (BlockFloat, {"rounding": "toward_zero"}, "rounding: one of nearest, stochastic, got 'toward_zero'"),
    *((EDEN, {"bits": value}, f"bits: a whole number from 1 to 4, got {value}") for value in (0, 5, 2.0)),
    *((EDEN, {"block": value}, f"block: a whole number from 32 to 1048576, got {value}; a power of two")
      for value in (16, 2**21, None)),
    (EDEN, {"block": 96}, "block: a power of two, got 96"),
    (EDEN, {"scale": "biased"}, "scale: one of unbiased, least_error, got 'biased'"),
    *((EDEN, {"rotations": value}, f"rotations: a whole number from 1 to 3, got {value}")
      for value in (0, 4)),
    *((QSGD, {"levels": value}, f"levels: a whole number from 1 to 32767, got {value}")
      for value in (0, 32768, 7.0, True)),
    *((QSGD, {"bucket": value}, f"bucket: a whole number from 1, or null, got {value!r}")
      for value in (0, "512")),
    (QSGD, {"norm": "2"}, "norm: one of two, max, got '2'"),
    *((TernGrad, {"clip": value}, f"{DEVIATIONS}, got {value!r}")
      for value in (0, -2.5, INF, "2.5", True)),
    (TernGrad, {"shared_scale": "yes"}, "shared_scale: true or false, got 'yes'"),
    *((SparseLoCo, {"density": value}, f"density: {SHARE}, got {value!r}; 0.01 sends 1 %")
      for value in (0, 1.01, None)),
    *((SparseLoCo, {"chunk": value}, f"chunk: a whole number from 2 to 65536, got {value}")
      for value in (1, 65537, 64.0)),
    *((SparseLoCo, {"bits": value}, f"bits: a whole number from 2 to 8, got {value}")
      for value in (1, 9)),
    *((DeMo, {"k": value}, f"k: a whole number from 1, got {value}") for value in (0, 2.5, True)),
    *((DeMo, {"chunk": value}, f"chunk: a whole number from 1 to 256, got {value}")
      for value in (0, 257)),
    *((Dion, {"rank_fraction": value}, f"rank_fraction: {SHARE}, got {value!r}")
      for value in (0, 1.01, "all")),
    (Dion, {"momentum": 1}, "momentum: a number from 0 to below 1, got 1"),
    (DeMo, {"sign": 1}, "sign: true or false, got 1"),
    *((LoCo, {"inner": Dense(), "beta": value}, f"beta: a number from 0 to below 1, got {value}")
      for value in (1, -0.1)),
    *((LoCo, {"inner": Dense(), "reset_steps": value},
       f"reset_steps: a whole number from 1, or null, got {value}; null for no reset")
      for value in (0, 1.5)),
    *((LoCo, {"inner": inner}, "inner: loco keeps an error of its own; leave the other one out")
      for inner in (ErrorFeedback(Uniform()), LoCo(Uniform()))),
    (OneBitAdam, {"inner": Dense(), "beta1": 1}, "beta1: a number from 0 to below 1, got 1"),
    (OneBitAdam, {"inner": Dense(), "warmup_steps": -1}, "warmup_steps: a whole number from 0, got -1"),
    *((ErrorFeedback, {"inner": Dense(), "decay": value},
       f"decay: {SHARE}, got {value!r}; 1 forgets nothing") for value in (0, 1.5, "slow")),
    *((PowerSGD, {"rank": value}, f"rank: a whole number from 1, got {value!r}")
      for value in (0, -2, 1.5, True, "two")),
    *((kind, {"inner": Dense(), "momentum": value},
       f"momentum: a number from 0 to below 1, got {value!r}")
      for kind in (MomentumCorrection, BlockMomentum) for value in (1, -0.1, "high", True)),
    (MomentumCorrection, {"inner": Dense(), "nesterov": 1}, "nesterov: true or false, got 1"),
    (MomentumCorrection, {"inner": Dense(), "masking": "no"}, "masking: true or false, got 'no'"),
    *((ClipLocal, {"inner": Dense(), "threshold": value},
       f"threshold: a number above 0, got {value!r}") for value in (0, -1.0, INF, NAN, "low")),
    (ClipLocal, {"inner": Dense(), "of": "all"}, "of: one of share, mean, got 'all'"),
    *((PerLayer, {"inner": Uniform(), "dense": value},
       f"dense: a list, each a word, got {value!r}; {NAMES}") for value in ("vectors", [1])),
    *((PerLayer, {"inner": Uniform(), "smaller_than": value},
       f"smaller_than: a number of values from 0, got {value!r}") for value in (-1, "2k")),
    (Ladder, {"rungs": (Dense(),)}, "values: a ladder needs at least one setting"),
    (Sharded, {"method": SIDCo(0.01)}, "method: SIDCo keeps a state"),
    (Sharded, {"method": PowerSGD(1)}, "method: "),
    (Sharded, {"method": ErrorFeedback(Uniform(8))}, "method: an Encoder, or a Sparsifier, got"),
    *((Sharded, {"method": method}, NO_SHARDS.format(type(method).__name__))
      for method in (OneBit(), SparseLoCo(), DeMo(), TernGrad(shared_scale=True), RandomK(0.1))),
    *((Sharded, {"method": method}, "method: what QSGD loses") for method in (QSGD(7), QSGD(127, None))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings", "message"), WRONG)
def test_a_wrong_setting_is_named(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)) as refused:
        kind(**settings)
    said = str(refused.value).replace(
        "for no compression compressor=dense", ""
    )  # a value, Uniform's
    assert not re.search(r"\b(compressor|exchange|policy|wrapper|train|wrap)[.=]|\n", said)


def test_density_and_factor_may_agree() -> None:
    assert TopK(0.1, 10).num_largest(1000) == TopK(0.1).num_largest(1000) == 100
    assert TopK().num_largest(1000) == 10  # 1 % where neither is given
