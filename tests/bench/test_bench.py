"""`make bench` at a tiny size: the tables come out whole. No speed is asserted."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from labs import need_a_lab

from dgc_repro.bench import exchange, methods
from dgc_repro.bench.command_line import main
from dgc_repro.bench.exchange import NETWORK_CASES, Replay
from dgc_repro.bench.rounds import Steps, rounds, spread_out
from dgc_repro.bench.world import RanksFailed, on_ranks
from dgc_repro.errors import UserError
from dgc_repro.kernel import native

pytestmark = pytest.mark.slow

NUM_VALUES = 3_000  # under the size from which kernels are compiled
TABLES = ("methods", "exchange")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a tiny run prints, and the folder it wrote."""
    output, printed = tmp_path_factory.mktemp("bench"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setenv("DGC_REPRO_COMPILE", "0")
        native.library.cache_clear()
        patch.setattr(methods, "NUM_VALUES", NUM_VALUES)
        patch.setattr(exchange, "WIDTH", 4)
        for table in (methods, exchange):
            patch.setattr(table, "QUICK_REPEATS", 2)
        folder = main(["--quick", "--output", str(output)])
    native.library.cache_clear()
    assert re.match(r"bench: about \d+ (s|min) expected on two idle cores\n", printed.getvalue())
    return printed.getvalue(), folder


def rows_of(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / f"{table}.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_printed_tables_are_the_written_ones_in_the_folder_of_their_machine(
    tables: tuple[str, Path],
) -> None:
    printed, folder = tables
    names = {path.name for path in folder.iterdir()}
    assert names == {f"{t}.{s}" for t in TABLES for s in ("csv", "md")}
    assert folder.name.endswith(f"{os.cpu_count()}-cores")
    for table in TABLES:
        written = (folder / f"{table}.md").read_text()
        assert written in printed
        assert f"{os.cpu_count()} cores; torch " in written
        commits = {row["commit"] for row in rows_of(folder, table)}
        assert len(commits) == 1
        assert f"; commit {commits.pop()}; other work" in written


def test_the_published_table_of_a_gpu_names_its_commit(repository: Path) -> None:
    (folder,) = {path.parent for path in (repository / "results" / "bench").rglob("gpu.csv")}
    (commit,) = {row["commit"] for row in rows_of(folder, "gpu")}
    assert re.fullmatch(r"[0-9a-f]{12}", commit)
    assert f"; commit {commit}; other work" in (folder / "gpu.md").read_text()


def test_the_methods_send_what_they_say_and_at_most_the_alignment_more(
    tables: tuple[str, Path],
) -> None:
    rows = {row["setting"]: row for row in rows_of(tables[1], "methods")}
    for bits, block in ((8, 2048), (4, 512)):
        row = rows[f"uniform {bits} bits, block {block}"]
        expected = NUM_VALUES * bits // 8 + 4 * -(-NUM_VALUES // block)
        assert expected <= int(row["sent_bytes"]) < expected + 16
    for row in rows.values():
        assert float(row["compress_x"]) > 0
        assert float(row["decompress_x"]) > 0


def test_every_exchange_is_measured_against_plain_ddp(tables: tuple[str, Path]) -> None:
    first, *others = rows_of(tables[1], "exchange")
    assert first["case"] == "plain DDP"
    assert float(first["step_x"]) == 1.0
    assert len(others) == 8
    assert all(float(row[key]) > 0 for row in others for key in ("step_x", "step_ms"))
    rows = {row["case"]: row for row in others}
    for overlap in ("true", "false"):
        settings = ("dense", "8 bits, block 2048", "4 bits, block 512")
        dense, eight, four = (
            float(rows[f"{s}, overlap={overlap}"]["payload_mb"]) for s in settings
        )
        assert dense > eight > four > 0


def test_what_compression_is_worth_is_measured_on_shaped_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_a_lab()
    monkeypatch.setattr(exchange, "WIDTH", 4)
    folder = main(["--only", "network", "--quick", "--output", str(tmp_path)])
    rows = {(row["link"], row["case"]): row for row in rows_of(folder, "network")}
    assert len(rows) == 2 * (1 + len(NETWORK_CASES))
    assert float(rows["100 Mbit/s", "plain DDP"]["speedup"]) == 1.0
    sent = {case: row["payload_mb"] for (_, case), row in rows.items()}
    few, four, half = (float(sent[f"{n}, overlap=true"]) for n in ("top-k 1 %", "4 bits", "fp16"))
    assert few < four < half


def test_backward_hands_out_the_given_gradients_laid_out_as_they_were() -> None:
    gradients = {"a.weight": torch.randn(4, 3, 2, 2), "a.bias": torch.randn(4)}
    gradients["a.weight"] = gradients["a.weight"].to(memory_format=torch.channels_last)
    model = Replay(gradients)
    model(torch.zeros((), requires_grad=True)).backward()
    for parameter, gradient in zip(model.parameters(), gradients.values(), strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
        assert parameter.stride() == parameter.grad.stride() == gradient.stride()


def test_repeats_are_spread_over_turns_and_none_is_lost() -> None:
    measured: list[tuple[str, int]] = []

    def case(name: str, repeats: int) -> Steps:
        measured.append((name, repeats))
        return rounds({"way": lambda: {"seconds": float(len(measured))}}, repeats)

    found = spread_out({name: partial(case, name) for name in "ab"}, 4)
    assert measured == [(name, share) for share in (2, 1, 1) for name in "ab"]
    assert found["a"]["way"]["seconds"].tolist() == [1.0, 1.0, 3.0, 5.0]


def test_the_order_turns_but_for_the_first_way_and_warm_up_is_not_counted() -> None:
    order: list[str] = []

    def way(name: str) -> dict[str, float]:
        order.append(name)
        return {"seconds": 1.0, **({"calls": 2.0} if len(order) > 4 else {})}

    found = rounds({name: partial(way, name) for name in "abc"}, 2, warmup=1)
    assert "".join(order) == "abc" + "acb" + "abc"
    assert found["a"]["calls"].tolist() == [0.0, 2.0]  # a kind of collective not every step has


def test_a_mistake_on_the_command_line_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^--only: invalid choice: 'launches'") as error:
        main(["--only", "launches"])
    assert "\n" not in str(error.value)


# Live ranks: what comes back, what a step is counted as, and that a failure has a name.


@pytest.fixture
def ranks_find_this_file(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (here, here.parent, repository))))


def fails(how: str) -> None:
    if dist.get_rank() == 1:
        if how == "raises":
            raise KeyError("nobody")
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)
    dist.barrier()


@pytest.mark.usefixtures("ranks_find_this_file")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "rank 1 KeyError: 'nobody'"),
        ("is killed", "rank 1 was killed by SIGKILL"),
        ("is late", "rank 0 .*([Tt]imed out|timeout after)"),
    ],
)
def test_a_rank_that_fails_is_named_with_its_reason(how: str, said: str) -> None:
    with pytest.raises(RanksFailed, match=said):
        on_ranks(fails, how, timeout_seconds=3 if how == "is late" else 30)


def one_each(seconds: Sequence[float]) -> Steps:
    number = dist.get_rank()
    return rounds({"way": lambda: {"seconds": seconds[number], "a_ms": seconds[number]}}, 2, 1)


@pytest.mark.usefixtures("ranks_find_this_file")
def test_of_the_ranks_the_slowest_counts_and_spans_are_means() -> None:
    way = on_ranks(one_each, (1.0, 3.0))["way"]
    assert way.to_dict("list") == {"seconds": [3.0, 3.0], "a_ms": [2.0, 2.0]}
