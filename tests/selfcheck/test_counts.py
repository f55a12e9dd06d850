"""The row ``counts-cpu`` passes for every method of conf/compressor/."""

from __future__ import annotations

import pytest

from dgc_repro.bench.launches import methods
from dgc_repro.kernel.batch import on_gpu
from dgc_repro.selfcheck.counts import checks
from dgc_repro.selfcheck.rows import CPU, Mismatch, Skip


@pytest.mark.slow
@pytest.mark.skipif(not on_gpu(()), reason="no Triton: the targets are of its kernels")
def test_every_method_is_within_its_targets() -> None:
    found = {}
    for name, check in checks(CPU):
        try:
            found[name] = check()
        except (Mismatch, Skip) as error:
            found[name] = f"{type(error).__name__}: {error}"
    assert found.keys() == methods().keys()
    assert not {name: told for name, told in found.items() if "at most" not in told}
    assert not {name: told for name, told in found.items() if told.startswith(("Mis", "Skip"))}
