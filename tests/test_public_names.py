"""The names that users import: which there are, and that the pages use no others."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_docs import PAGES, blocks

import dgc_repro
import dgc_repro.extend

INTEGRATIONS = {
    "dgc_repro.integrations.accelerate": ["attach"],
    "dgc_repro.integrations.lightning": ["Compress"],
    "dgc_repro.integrations.transformers": ["Compressed"],
}
CONTRIBUTORS = {
    "adding-a-compressor.md": "dgc_repro.selfcheck",  # in a checkout
    "adding-a-paper.md": "dgc_repro.paper",
}
"""By page, a package whose names it may import although they are not stable."""

STABLE = """
    __version__ attach Attached UserError
    BF16 BlockFloat DeMo Dense DGCSampled Dion DRIVE EDEN EFSignSGD FP16 Natural OneBit PowerSGD QSGD RandomK
    RedSync RunningUniform SIDCo SignSGD SparseLoCo TernGrad Threshold TopK Uniform
    BlockMomentum ClipLocal ErrorFeedback Ladder LoCo MomentumCorrection OneBitAdam PerLayer Sharded
    Accordion AdaQS EpochReport Fixed GraVAC Oracle Probed ScaDLES Scheduled Stepwise Warmup
    Adam DionSteps LAMB LARS Muon RoundedSGD
    conf_dir Lab load_claims load_results load_runs
"""
STABLE_FOR_EXTENSIONS = """
    checked Count Positive Share one_of within
    Compressor Context Step Wrapper PerTensor World Batch Segments
    DensitySparsifier Selecting Quantizer num_kept select Selection BatchPayload Sparse Wholes
    EpochReport Plan Policy Rungs State StepReport ENERGIES MEAN OWN SPREAD
"""


def test_the_stable_names_are_these() -> None:
    """A name that is gone breaks the code of users: docs/own-loop.md says what has to be done first."""
    assert sorted(dgc_repro.__all__) == sorted(STABLE.split())
    assert sorted(dgc_repro.extend.__all__) == sorted(STABLE_FOR_EXTENSIONS.split())
    assert all(hasattr(dgc_repro.extend, name) for name in dgc_repro.extend.__all__)


def test_no_public_name_is_that_of_a_module() -> None:
    """Python sets a package's attribute to a submodule that is imported, whatever `__getattr__` has."""
    package = Path(dgc_repro.__file__).parent
    modules = {path.stem for path in package.iterdir()}
    assert modules & set(dgc_repro.__all__) == set()


def imported(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each import of ours in a text: in its code, and within its sentences."""
    for module, names in re.findall(
        r"\bfrom (dgc_repro(?:\.\w+)*) import (\([^)]*\)|[\w ,]+)", text
    ):
        for name in re.findall(r"(\w+)(?: as \w+)?", names):
            yield module, name
    for module in re.findall(r"\bimport (dgc_repro(?:\.\w+)+)", text):
        yield module, ""


def read(code: str) -> Iterator[str]:
    """Each name that code reads from ``dgc_repro``."""
    for node in ast.walk(ast.parse(code)):
        of = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(of, ast.Name) and of.id == "dgc_repro":
            yield node.attr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_imports_public_names_alone(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        pytest.skip("it tells of the names of its time")
    public = {
        "dgc_repro": dgc_repro.__all__,
        "dgc_repro.extend": dgc_repro.extend.__all__,
        **INTEGRATIONS,
    }
    own = CONTRIBUTORS.get(page.name, "none")
    found = set(imported(page.read_text(encoding="utf-8")))
    for language in ("py", "python"):
        for code in blocks(page, language):
            found |= {("dgc_repro", name) for name in read(code)}
    for module, name in sorted(found):
        is_own = module == own or module.startswith(f"{own}.")
        assert is_own or name in public.get(module, ()), f"from {module} import {name}"


def test_imports_are_found_in_code_in_sentences_and_in_attributes() -> None:
    text = "from dgc_repro import (A,\n B as C)\nuse `from dgc_repro.extend import D`, import dgc_repro.x"
    found = {("dgc_repro", "A"), ("dgc_repro", "B"), ("dgc_repro.extend", "D"), ("dgc_repro.x", "")}
    assert set(imported(text)) == found
    assert set(read("dgc_repro.load_runs('runs').runs")) == {"load_runs"}


@pytest.mark.parametrize("module", INTEGRATIONS)
def test_an_integration_has_its_names(module: str) -> None:
    pytest.importorskip(module.rpartition(".")[2])
    assert all(hasattr(importlib.import_module(module), name) for name in INTEGRATIONS[module])
