"""Compare the methods with the code of their authors, and write results/conformance/.

    python scripts/conformance.py eden_4 <checkout>   run the authors' code, record what it answers, compare
    python scripts/conformance.py --checkouts <folder>   the same for each row whose repository lies there
    python scripts/conformance.py                     compare with the recorded answers; needs no checkout
    python scripts/conformance.py --bytes             count what 1, 2 and 4 ranks hand to torch.distributed

A checkout is a clone of the row's repository, under its name (``muon``) or with its owner (``owner+muon``).
Its code is run, so look at it first; nothing of it enters this repository. Some need a package of their own
(DeMo, templar: einops). The exit code is 1 where a row does not agree.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import authors.low_rank
import authors.quantizers
import authors.sparse
import authors.training  # noqa: F401
import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from authors.case import CASES, Answers, Case, difference, stepped

from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.launch.rendezvous import use_loopback
from dgc_repro.paper.markdown import markdown_table

RESULTS = Path(__file__).parents[1] / "results" / "conformance"
METHODS, BYTES, PAGE, ANSWERS = "methods.csv", "bytes.csv", "README.md", "answers.npz"
WORLDS = (1, 2, 4)
TIMEOUT = datetime.timedelta(seconds=60)


class NotThere(Exception):
    """What the user gave, in one line."""


@dataclass(frozen=True)
class Row:
    """A line of methods.csv."""

    row: str
    method: str
    setting: str
    repository: str
    commit: str
    commit_date: str
    whose: str
    injected: str
    compared: str
    steps: int
    values: int
    largest_difference: float
    bound: float
    agrees: bool
    note: str


def recorded(case: Case, folder: Path = RESULTS) -> Answers:
    """What the authors' code has answered."""
    with np.load(folder / ANSWERS, allow_pickle=False) as file:
        own = [name for name in file.files if name.partition("/")[0] == case.name]
        return [torch.from_numpy(file[f"{case.name}/{i}"]) for i in range(len(own))]


def record(case: Case, answers: Answers, folder: Path = RESULTS) -> None:
    """Write the answers in the place of older ones."""
    kept: dict[str, Any] = {}
    if (folder / ANSWERS).exists():
        with np.load(folder / ANSWERS, allow_pickle=False) as file:
            others = [name for name in file.files if name.partition("/")[0] != case.name]
            kept = {name: file[name] for name in others}
    kept |= {f"{case.name}/{i}": one.detach().numpy() for i, one in enumerate(answers)}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / ANSWERS, **dict(sorted(kept.items())))


def row_of(case: Case, theirs: Answers, commit: str, date: str) -> Row:
    """Compare, with the answers of the authors' code at a commit."""
    apart = difference(case.ours(), theirs)
    return Row(
        case.name, case.method, case.setting, case.repository, commit, date, case.whose, case.injected,
        case.compared, case.steps, sum(one.numel() for one in theirs), apart, case.bound,
        apart <= case.bound, case.note,
    )  # fmt: skip


def run(case: Case, checkout: Path, folder: Path = RESULTS) -> Row:
    """Run the authors' code, record its answers, and compare."""
    if not (checkout / ".git").exists():
        raise NotThere(f"{checkout}: no git checkout of github.com/{case.repository}")
    git = ("git", "-C", str(checkout))
    diff = [*git, "diff", "--name-only", "HEAD", "--", "*.py"]
    if subprocess.run(diff, capture_output=True, check=True).stdout:
        raise NotThere(
            f"{checkout}: has changes; git stash them, so that the commit names the code"
        )
    origin = subprocess.run(
        [*git, "remote", "get-url", "origin"], capture_output=True, text=True, check=False
    ).stdout
    name = case.repository.partition("/")[2]
    if name.lower() not in origin.lower():
        raise NotThere(
            f"{checkout}: its origin is {origin.strip() or 'not set'}, not {case.repository}"
        )
    told = subprocess.run(
        [*git, "log", "-1", "--format=%H %cs"], capture_output=True, text=True, check=True
    )
    commit, date = told.stdout.split()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about their calls
        theirs = case.theirs(checkout)
    record(case, theirs, folder)
    return row_of(case, recorded(case, folder), commit, date)


def rows(folder: Path = RESULTS, but: Collection[str] = ()) -> list[Row]:
    """The published rows, compared again with the recorded answers. ``but``: rows that are left out."""
    return [
        row_of(CASES[name], recorded(CASES[name], folder), old["commit"], old["commit_date"])
        for old in table(folder / METHODS)
        if (name := old["row"]) not in but
    ]


def table(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file; none where it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def typed(line: Mapping[str, str]) -> dict[str, Any]:
    """The values of a `Row` from its texts."""
    kinds = {"steps": int, "values": int, "largest_difference": float, "bound": float}
    kinds["agrees"] = lambda text: text == "True"
    return {name: kinds.get(name, str)(text) for name, text in line.items()}


def write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


# ---- Bytes


COUNTED = [case.name for case in CASES.values() if case.compressor is not None]
# What a rank gives: its tensor; of an all-to-all, what is for others. Each collective has its own arguments.
GIVES: dict[str, Callable[..., int]] = {
    "all_reduce": lambda tensor, *_: tensor.nbytes,
    "broadcast": lambda tensor, *_: tensor.nbytes,
    "all_gather_into_tensor": lambda into, tensor: tensor.nbytes,
    "all_gather": lambda into, tensor: tensor.nbytes,
    "all_to_all_single": lambda into, tensor, come, go: (
        (sum(go) - go[dist.get_rank()]) * tensor.itemsize
    ),
}


def count_bytes() -> list[dict[str, Any]]:
    """The lines of bytes.csv: bytes that all ranks together hand to torch.distributed, and those in their
    ledgers."""
    found = []
    for ranks in WORLDS:
        with tempfile.TemporaryDirectory() as folder:
            processes.spawn(_rank, (ranks, folder), nprocs=ranks)
            told = [np.loadtxt(Path(folder) / f"{rank}", dtype=np.int64) for rank in range(ranks)]
        for name, (given, ledger) in zip(COUNTED, sum(told), strict=True):
            line = {"row": name, "ranks": ranks, "steps": CASES[name].steps}
            found.append(
                line | {"handed_bytes": given, "ledger_bytes": ledger, "equal": given == ledger}
            )
    return sorted(found, key=lambda line: COUNTED.index(line["row"]))


def _rank(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    use_loopback()
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=TIMEOUT
    )
    counted = [0]

    def counting(collective: Any, given: Callable[..., int]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counted[0] += given(*args)
            return collective(*args, **kwargs)

        return call

    found = []
    with ExitStack() as stack:
        for name, given in GIVES.items():
            stack.enter_context(patch.object(dist, name, counting(getattr(dist, name), given)))
        for case in (CASES[name] for name in COUNTED):
            assert case.compressor is not None
            counted[0] = 0
            exchange = Exchange(case.compressor, case.given[0][0], World(), seed=7)
            for every in case.given:
                stepped(exchange, [every[rank % len(every)]])
            found.append((counted[0], exchange.world.ledger.payload_bytes))
    np.savetxt(Path(folder) / f"{rank}", found, fmt="%d")
    dist.barrier()
    dist.destroy_process_group()


# ---- The page

NOT_COMPARED = {
    "sidco": "No checkout of the authors' code can be had. GraVAC's port fits the excess over the smallest "
    "survivor, the paper and this side the excess over the threshold, so that other entries are sent.",
    "redsync": "No code of the authors is known. GraVAC's port accepts half as many entries and stops its "
    "search at steps of 0.2.",
    "loco": "The authors' repository has no code.",
    "onebit_adam": "DeepSpeed scales signs by the 2-norm, this side by the 1-norm, and compresses the "
    "average once more.",
    "gravac": "The authors' repository has the compressors and the throughput model, not the policy.",
    "dgc_sampled, nvfp4, fp8 formats, adaqs, muloco, streaming_diloco": "No comparison was written yet.",
    "scadles": "The rule stands inside the authors' trainer and cannot be called.",
    "uniform, running_uniform": "The dynamic paper's code is not public.",
}
"""Methods with a paper and without a row, and why."""


def page(found: Sequence[Row], counted: Sequence[Mapping[str, str]]) -> str:
    """results/conformance/README.md."""
    agree = sum(row.agrees for row in found)
    methods = sorted({"local steps" if row.method == "dense" else row.method for row in found})
    of_authors = {row.method for row in found if row.whose == "authors"}
    equal = sum(line["equal"] == "True" for line in counted)
    lines = [
        "# Do these methods do what published code does?",
        "",
        f"**{agree} of {len(found)} comparisons with published code agree**, for {len(methods)} methods: "
        f"{len(of_authors)} against the code of a method's own authors, the others against a port that "
        "is named. The same gradients went through that code and through this package. "
        f"{sum(bool(row.note) for row in found)} comparisons leave out a difference that is known, or go "
        "around a fault of the other code; [the second table](#answers) names each.",
        "",
        "## Answers",
        "",
        "*Difference*: the largest of all values, relative to the largest value of its tensor. *Bound*: the "
        "largest difference that is agreement. It is 0 where values must be equal, 1.9e-06 where "
        "sums of float32 are taken in another order, and 3.1e-05 where matrices are multiplied. Random "
        "numbers cannot agree by themselves, so both sides are given the same ones.",
        "",
        _table(
            ["method", "setting", "code", "steps", "difference", "bound", "agrees"],
            [
                [
                    f'<a id="{row.row}"></a>`{row.method}`',
                    row.setting,
                    f"[{row.repository}](https://github.com/{row.repository}/tree/{row.commit}) "
                    f"{row.commit_date}",
                    row.steps,
                    "0" if row.largest_difference == 0 else f"{row.largest_difference:.1e}",
                    "0" if row.bound == 0 else f"{row.bound:.1e}",
                    "yes" if row.agrees else "**no**",
                ]
                for row in found
            ],
        ),
        "",
        "What is compared, what both sides were given beside the gradients, and what a row leaves out:",
        "",
        _table(
            ["row", "whose code", "compared", "given to both", "left out"],
            [[f"`{row.row}`", row.whose, row.compared, row.injected, row.note] for row in found],
        ),
        "",
        "## Bytes",
        "",
        f"{equal} of {len(counted)} counts are equal: what 1, 2 and 4 ranks of gloo hand to "
        "torch.distributed, and what this package's ledger says. No published code takes part. The "
        "numbers are those of all ranks together, in the steps of the row; ranks 3 and 4 repeat the "
        "gradients of ranks 1 and 2. "
        "`python scripts/conformance.py --bytes` counts again.",
        "",
        _table(
            ["row", *(f"{ranks} rank{'s' * (ranks > 1)}" for ranks in WORLDS)],
            [
                [f"`{name}`", *(_bytes(line) for line in counted if line["row"] == name)]
                for name in dict.fromkeys(line["row"] for line in counted)
            ],
        ),
        "",
        "## Not compared",
        "",
        _table(["method", "why"], [[f"`{n}`", why] for n, why in NOT_COMPARED.items()]),
        "",
        "## What the page does not say",
        "",
        "- The rows compare a method's arithmetic on given gradients, a few steps long. They do not compare "
        "trainings.",
        "- A port can share a mistake with this package. GRACE's and EXO Gym's rows are ports.",
        "- Departures from the papers are in each method's docstring ([Methods](../../docs/methods.md)).",
        "",
        "## Again",
        "",
        "`make conformance` compares with the recorded answers of the published code (`answers.npz`, beside "
        "this page); `make conformance CHECKOUTS=<folder>` runs the code again, from clones of its "
        "repositories. One row: `python scripts/conformance.py eden_4 <checkout>`.",
    ]
    return "\n".join(lines) + "\n"


def _table(names: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    return markdown_table(pd.DataFrame(lines, columns=names), links=True)


def _bytes(line: Mapping[str, str]) -> str:
    given = f"{int(line['handed_bytes']):,}"
    return (
        given if line["equal"] == "True" else f"**{given}, ledger {int(line['ledger_bytes']):,}**"
    )


def publish(found: Sequence[Row], counted: Sequence[Mapping[str, Any]]) -> None:
    """Write the tables and the page, in the order of the cases."""
    order = list(CASES)
    found = sorted(found, key=lambda row: order.index(row.row))
    write(RESULTS / METHODS, [asdict(row) for row in found])
    if counted:
        write(RESULTS / BYTES, counted)
    (RESULTS / PAGE).write_text(page(found, table(RESULTS / BYTES)), encoding="utf-8")


def places(folder: Path) -> dict[str, Path]:
    """The checkouts that lie in a folder, by row."""
    found = {}
    for case in CASES.values():
        owner, name = case.repository.split("/")
        for place in (folder / f"{owner}+{name}", folder / owner / name, folder / name):
            if place.is_dir():
                found[case.name] = place
                break
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("row", nargs="?", choices=list(CASES), metavar="row", help=", ".join(CASES))
    parser.add_argument("checkout", nargs="?", type=Path, help="of the row's repository")
    parser.add_argument("--checkouts", type=Path, help="a folder of checkouts")
    parser.add_argument("--bytes", action="store_true", help="count what ranks hand over")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True  # a checkout is read only
    if chosen.row and chosen.checkout is None:
        parser.error(f"{chosen.row}: give a checkout of github.com/{CASES[chosen.row].repository}")
    here = {chosen.row: chosen.checkout} if chosen.row else {}
    if chosen.checkouts:
        here = places(chosen.checkouts)
        if not here:
            parser.error(
                f"--checkouts {chosen.checkouts}: no clone of a known repository lies there"
            )
    counted: list[Any] = count_bytes() if chosen.bytes else []
    try:
        new = {name: run(CASES[name], place) for name, place in here.items()}
    except NotThere as error:
        parser.error(str(error))
    every = {row.row: row for row in rows(but=new)} | new
    publish(list(every.values()), counted)
    for row in every.values():
        told = f"{row.row:14}{row.largest_difference:9.1e}{row.bound:9.1e}"
        print(f"{told}  {'agrees' if row.agrees else 'DIFFERS'}  {row.repository}")
    unequal = [line for line in table(RESULTS / BYTES) if line["equal"] != "True"]
    for line in unequal:
        print(f"{line['row']}, {line['ranks']} ranks: {line['handed_bytes']} bytes handed over, the ledger "
              f"has {line['ledger_bytes']}")  # fmt: skip
    return int(bool(unequal) or not all(row.agrees for row in every.values()))


if __name__ == "__main__":
    sys.exit(main())
