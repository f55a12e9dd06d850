"""The layers of docs/architecture.md, read from the imports of every file of the package.

Imports inside functions and under TYPE_CHECKING count: a type is a dependency too. To let one
package import another, change the table, and say why in docs/architecture.md.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shell import program

PACKAGE = Path(__file__).resolve().parent.parent / "dgc_repro"

ANYTHING = "*"

UNDER_ALL = ("errors", "files", "checked", "checksums", "names", "progress")
UNDER_LAUNCH = (
    *("train", "exchange", "network", "compressor", "policy", "model", "dataset", "sink", "paper"),
    *("payload", "kernel", "optimizer", "nests"),
)
UNDER_BENCHES = ("launch", "study", "results", *UNDER_LAUNCH)

# Which of our modules a package (or a module at the top) may import, its own and UNDER_ALL aside.
# An entry allows everything below it. Imports point down, so no two rows name each other.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "__main__": (ANYTHING,),
    "launch.main": (ANYTHING,),  # the command line's table of commands
    "predict": ("bench", *UNDER_BENCHES),
    "selfcheck": ("bench", *UNDER_BENCHES),
    "bench": UNDER_BENCHES,
    "launch": ("study", "compare", "results", *UNDER_LAUNCH),
    "train": (
        *("exchange", "model", "dataset", "compressor", "policy", "sink", "network", "optimizer"),
        "nests",
    ),
    "integrations": ("exchange", "compressor", "policy"),
    "optimizer": (),
    "generalization": ("study",),
    "measure": ("study",),
    "study": ("compressor", "kernel", "network", "model", "payload"),
    "__init__": ("exchange", "compressor", "policy", "results", "optimizer", "network", "names"),
    "extend": ("exchange.world", "compressor", "policy", "payload", "kernel"),
    "compare": ("paper", "results"),
    "results": ("paper",),
    "names": (),
    "nests": (),
    "exchange": ("compressor", "policy", "payload", "kernel", "nests"),
    "network": (),
    "compressor": ("exchange.world", "policy.interface", "payload", "kernel"),
    # The workers, whom a compressor asks, lie below it.
    "exchange.world": ("exchange.clock", "exchange.collective", "exchange.ledger", "kernel"),
    "exchange.collective": ("exchange.clock",),
    "exchange.clock": ("kernel",),
    "exchange.ledger": (),
    "policy": (),
    "payload": ("kernel",),
    "model": (),
    "dataset": (),
    "sink": (),
    "paper": ("network", "exchange.ledger"),
    "kernel": (),
    "errors": (),
    "files": ("errors",),
    "checked": (),
    "checksums": ("errors", "files"),
    "progress": (),
}

BELOW = "it lies below what it imports: take what you need as an argument"
ON_TOP = "nothing but the command line builds on it"
READS = "it reads records: write the number into the run's record and read it there"
WORKERS = "the workers lie below the compressors, who ask them"
INSTEAD = {
    "compressor": "a compressor asks and never talks: ask the World that its step is handed, and yield what "
    "waits for the answer",
    **dict.fromkeys(("exchange.world", "exchange.collective", "exchange.clock"), WORKERS),
    "exchange.ledger": "paper/ reads the ledger's names without torch",
    "policy": "a policy sees only the observations that it is handed: have train/ or exchange/ "
    "pass the number in",
    "payload": "compressors stand on payloads: move what you need below, into kernel/",
    "train": "train/ is handed its objects: build them in launch/ and pass them in",
    "integrations": "an integration calls attach: mend what it needs in exchange/",
    **dict.fromkeys(
        ("generalization", "measure"), "it is the path of a component: its code is in study/"
    ),
    "extend": "extend.py lists names of compressors and policies: the code is in their packages",
    "launch": "predict/ and bench/ build on launch/: only launch/main.py, the table of commands, names them",
    "bench": "predict/ builds on bench/: move what both need into bench/",
    **dict.fromkeys(("predict", "selfcheck"), ON_TOP),
    **dict.fromkeys(("paper", "results", "compare"), READS),
    "sink": "a sink is handed finished records: put the number into the record",
    "study": "study/ is handed tensors, networks and methods: build them in launch/ and pass them in",
    "__init__": "`import dgc_repro` stays light: import under TYPE_CHECKING, and list the name in _PUBLIC",
}
"""What to do in place of an import; `BELOW` where a row is not named."""

# Who may import a library that has one owner (all of a folder, or one file), and what others do.
ONLY_IN: dict[str, tuple[tuple[str, ...], str]] = {
    "hydra": (("launch",), "take plain arguments, and let launch/ turn the config into objects"),
    "omegaconf": (("launch",), "take plain arguments, and let launch/ resolve the config"),
    "wandb": (("sink.wandb",), "put the number into the record: sink/wandb.py mirrors it"),
    "wandb_workspaces": (
        ("sink.wandb_report",),
        "add the panel there: wandb-workspaces is optional",
    ),
    "lightning": (("integrations.lightning",), "pass the integration what it needs"),
    "accelerate": (("integrations.accelerate",), "pass the integration what it needs"),
    "transformers": (("integrations.transformers",), "pass the integration what it needs"),
    "triton": (
        ("kernel.gpu",),
        "import kernel/gpu where a batch is on a GPU: Triton may be absent",
    ),
    "torch.distributed": (
        # collective: only to tell the errors of a collective from others; rendezvous: only the store
        (
            *("exchange.world", "exchange.process_group", "exchange.hook", "exchange.fsdp"),
            *("exchange.door", "exchange.rendezvous", "exchange.collective", "bench", "launch"),
            *("selfcheck", "train.checkpoint"),
        ),
        "ask a World",
    ),
}

# On a laptop without torch, results/ still becomes tables and figures.
WITHOUT_TORCH = ("paper", "results", "compare", *UNDER_ALL, "__init__", "network")

# What an install without extras has: these import nothing else of other people's, the standard library aside.
TENSORS_ONLY = {
    **dict.fromkeys(
        ("compressor", "exchange", "optimizer", "payload", "policy"), ("torch", "numpy")
    ),
    "kernel": ("torch", "numpy", "triton"),
}


def is_below(module: str, roots: tuple[str, ...]) -> bool:
    """Whether ``module`` is one of ``roots`` or lies below one, by dotted name."""
    return any(root == ANYTHING or f"{module}.".startswith(f"{root}.") for root in roots)


def imports_of(source: str, module: str) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of all that ``source``, the file of ``module``, imports.

    ``from a import b`` gives ``a.b``, since b may be a module. ``module`` is the name as Python
    has it, so a package's own file ends in ``.__init__``.
    """
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=name, names=names, level=level):
                base = ".".join(module.split(".")[:-level]) if level else ""
                start = ".".join(part for part in (base, name) if part)
                yield from ((node.lineno, f"{start}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="torch"), attr="distributed"):
                yield node.lineno, "torch.distributed"  # reached through a plain `import torch`


def faults(source: str, inside: str) -> list[str]:
    """A sentence for each import of ``source`` that breaks a layer; ``inside`` as "train.step"."""
    where = f"dgc_repro/{inside.replace('.', '/')}.py"
    own = inside.removesuffix(".__init__")
    # the most specific row: launch.main has its own, launch.build has launch's
    rows = [row for row in MAY_IMPORT if is_below(own, (row,))]
    if not rows:
        return [
            f"{where}: MAY_IMPORT in tests/test_architecture.py has no row for it; add one that "
            "says what it may import, and its place to docs/architecture.md"
        ]
    row = max(rows, key=len)
    found = []
    for line, name in imports_of(source, f"dgc_repro.{inside}"):
        if sentence := fault(name, own, row):
            found.append(f"{where}:{line}: {sentence}")
    return sorted(set(found))


def fault(name: str, own: str, row: str) -> str | None:
    """What is wrong with importing ``name`` in the file ``own`` under ``row``, or None."""
    if name in ("dgc_repro", "dgc_repro.__version__"):
        return None
    if is_below(name, ("dgc_repro",)):
        target = name.removeprefix("dgc_repro.")
        if is_below(target, (*MAY_IMPORT[row], row, *UNDER_ALL)):
            return None
        allowed = ", ".join((*MAY_IMPORT[row], *UNDER_ALL))
        return f"{row} may import {allowed} of ours, not {target}; {INSTEAD.get(row, BELOW)}"
    for library, (owners, instead) in ONLY_IN.items():
        if is_below(name, (library,)) and not is_below(own, owners):
            owner = ", ".join(owners).replace(".", "/")
            return f"{library} belongs to {owner}; {instead}"
    root = name.partition(".")[0]
    if row in WITHOUT_TORCH and root in ("torch", "torchvision"):
        return f"{row} never imports {root}, so that a laptop rebuilds every table; {INSTEAD.get(row, BELOW)}"
    if row in TENSORS_ONLY and root not in (*TENSORS_ONLY[row], *sys.stdlib_module_names):
        return f"{row} imports {' and '.join(TENSORS_ONLY[row])} only, not {root}; {INSTEAD.get(row, BELOW)}"
    return None


def module_names() -> list[str]:
    """Every file of the package as "train.step", "exchange.__init__", ..."""
    files = sorted(PACKAGE.rglob("*.py"))
    return [".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in files]


def test_imports_point_down() -> None:
    found = []
    for inside in module_names():
        path = PACKAGE.joinpath(*inside.split(".")).with_suffix(".py")
        found += faults(path.read_text(encoding="utf-8"), inside)
    assert not found, "\n" + "\n".join(found)


def test_every_row_of_the_table_names_something_that_exists() -> None:
    names = module_names()
    assert [row for row in MAY_IMPORT if not any(is_below(name, (row,)) for name in names)] == []


@pytest.mark.parametrize(
    ("inside", "source", "sentence"),
    [
        ("compressor.topk", "import torch.distributed as dist", "ask a World"),
        ("compressor.topk", "import torch\ntorch.distributed.barrier()", "topk.py:2"),
        ("compressor.topk", "from ..exchange import exchange", "a compressor asks"),
        ("compressor.topk", "import scipy", "torch and numpy only"),
        ("kernel.signs", "import triton", "import kernel/gpu where"),
        ("policy.__init__", "from ..train import step", "observations"),
        ("exchange.world", "from dgc_repro.compressor import topk", "lie below"),
        ("train.loop", "import wandb", "sink/wandb.py mirrors it"),
        ("sink.jsonl", "import importlib\nimportlib.import_module('wandb')", "mirrors it"),
        ("paper.frame", "import torch", "a laptop rebuilds"),
        ("__init__", "def f():\n    import torch", "a laptop rebuilds"),
        ("newcomer.thing", "", "has no row"),
    ],
)
def test_an_import_that_breaks_a_layer_is_named_with_what_to_do_instead(
    inside: str, source: str, sentence: str
) -> None:
    found = faults(source, inside)
    assert len(found) == 1
    assert sentence in found[0]


def test_torch_is_loaded_by_the_public_names_alone() -> None:
    """In a fresh interpreter: transitively, and every file, which the reading of imports cannot see."""
    program("""
        import importlib, pkgutil, sys
        import dgc_repro, dgc_repro.compare.command, dgc_repro.paper, dgc_repro.results
        for module in pkgutil.walk_packages(dgc_repro.paper.__path__, "dgc_repro.paper."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
            assert "torch" not in sys.modules, (
                f"importing {module.name} loads torch; read the number from the run's record"
            )
        assert set(dgc_repro.__all__) <= set(dir(dgc_repro))
        assert set(dgc_repro.__all__) == {"__version__", *dgc_repro._PUBLIC}
        assert dgc_repro.UserError and dgc_repro.load_runs and dgc_repro.load_results
        assert "torch" not in sys.modules, "import dgc_repro loads torch; use its __getattr__"
        assert callable(dgc_repro.attach)
        assert "torch" in sys.modules
        for name in dgc_repro.__all__:
            found = getattr(dgc_repro, name)
            assert name in ("__version__", "DionSteps") or found.__name__ == name
        from dgc_repro import *
    """)


def test_type_checkers_and_getattr_see_the_same_public_names() -> None:
    import dgc_repro

    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    imported = {name for _, name in imports_of(source, "dgc_repro.__init__")}
    public = {f"dgc_repro.{module}.{name}" for name, module in dgc_repro._PUBLIC.items()}
    own = {name for name in imported if name.startswith("dgc_repro.")}
    assert own == {*public, "dgc_repro.errors.needing_repro"}


def test_all_compressors_wrappers_policies_and_optimizers_are_public() -> None:
    import dgc_repro

    conf = PACKAGE.parent / "conf"
    groups = ("compressor", "wrapper", "policy", "optimizer")
    files = [path for group in groups for path in conf.glob(f"{group}/*.yaml")]
    targets = re.findall(
        r"_target_: dgc_repro\.(compressor|policy|optimizer)\.\w+\.(\w+)",
        "".join(f.read_text() for f in files),
    )
    assert len(targets) > 40
    # Without the trainer SAM is SGD. (torch has SGD.)
    assert {name for _, name in targets} - set(dgc_repro.__all__) == {"SAM"}
    with pytest.raises(AttributeError, match="atach"):
        _ = dgc_repro.atach


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their bare names and refuses to collect a second one."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert {name for name in names if names.count(name) > 1} == set()
