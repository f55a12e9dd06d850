"""Pools: each file has a checksum, which reading compares; what a stranger's pool decodes to has a bound."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from published_results import POOLS, RESULTS
from shell import program, run

import dgc_repro
from dgc_repro.errors import UserError
from dgc_repro.files import MOST_VALUES
from dgc_repro.paper import parquet, pool, publish, untrusted

PLACE = RESULTS / "dynamic" / "quick"
MUTATIONS, SEED = 200, 41
SUMS = pool.SUMS_FILE


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PLACE, tmp_path / "dynamic" / "quick"))


def files_of(folder: Path) -> list[Path]:
    return [folder / SUMS, *sorted(folder.glob("*.parquet"))]


def refused(read: Callable[[Path], object], folder: Path) -> bool:
    """Whether reading ends in one line that names the pool."""
    try:
        read(folder)
    except UserError as error:
        return str(folder) in str(error) and "\n" not in str(error)
    return False


def sum_again(folder: Path) -> None:
    """What ``sha256sum *.parquet > SHA256SUMS`` does."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.glob("*.parquet"))
    ]
    (folder / SUMS).write_text("".join(lines))


@pytest.mark.parametrize("folder", POOLS, ids=lambda place: "-".join(place.parts[-2:]))
def test_sha256sum_checks_each_file_of_a_published_pool(folder: Path) -> None:
    assert pool.checksums(folder).keys() == {path.name for path in folder.glob("*.parquet")}
    assert run("sha256sum", "-c", SUMS, cwd=folder).returncode == 0


def test_every_flip_truncation_and_loss_in_a_pool_is_noticed(copied: Path) -> None:
    whole = {path: path.read_bytes() for path in files_of(copied)}
    assert len(pool.read(copied)) == 5
    places, unnoticed = random.Random(SEED), []
    for number in range(MUTATIONS):
        path = places.choice([*whole])
        before = whole[path]
        place = places.randrange(len(before))
        match number % 4:
            case 0:
                changed = before[:place]
            case 1:
                changed = before[:place] + bytes(8) + before[place + 8 :]
            case _:
                flipped = before[place] ^ 1 << places.randrange(8)
                changed = before[:place] + bytes([flipped]) + before[place + 1 :]
        if changed == before:
            continue
        path.write_bytes(changed)
        said = [refused(pool.read, copied)]
        if path.name == pool.RUNS_FILE:
            said.append(refused(pool.configs, copied))
        if not all(said):
            unnoticed.append((path.name, number, place))
        path.write_bytes(before)
    assert unnoticed == []
    for path, before in whole.items():
        path.unlink()
        with pytest.raises(UserError, match=r"SHA256SUMS|runs.parquet|damaged pool"):
            pool.read(copied)
        path.write_bytes(before)
    assert len(pool.read(copied)) == 5


def test_a_pool_without_checksums_is_refused_with_the_command_that_makes_them(copied: Path) -> None:
    (copied / SUMS).unlink()
    for read in (pool.read, pool.configs):
        with pytest.raises(UserError, match=r"no SHA256SUMS.*sha256sum \*.parquet > SHA256SUMS"):
            read(copied)
    odd = Path(shutil.move(copied, copied.with_name("a place; ls")))
    with pytest.raises(UserError, match="`cd '.*a place; ls' && sha256sum"):
        pool.read(odd)
    sum_again(odd)
    assert len(pool.read(odd)) == 5


@pytest.mark.parametrize("line", ["x", "../runs.parquet", "other.parquet", ""])
def test_a_line_that_is_no_checksum_is_refused(copied: Path, line: str) -> None:
    path = copied / SUMS
    path.write_text(f"{path.read_text()}{'0' * 64}  {line}\n" if line != "x" else "x\n")
    with pytest.raises(UserError, match="is damaged at"):
        pool.read(copied)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("change", ["adds", "keeps", "drops"])
def test_a_publication_that_is_killed_at_any_file_leaves_a_readable_pool(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = pool.read(PLACE)
    few = [run for run in everything if run.trace.empty][:2]
    assert few
    assert len(few) < len(everything)
    before, after = {
        "adds": (few, everything),
        "keeps": (everything, everything),
        "drops": (everything, everything[:2]),
    }[change]
    calls, is_killed = 0, True
    while is_killed:
        calls += 1
        folder, fresh = (tmp_path / f"{name}-{calls}" for name in ("old", "new"))
        for place, runs in ((folder, before), (fresh, after)):
            pool.write(runs, place)
            named = {"table1": {"title": "x", "verdicts": [], "runs": [run.id for run in runs]}}
            (place / pool.VERDICTS_FILE).write_text(json.dumps(named))
        with monkeypatch.context() as patched:
            kill_at(patched, calls)
            try:
                publish._move(fresh, folder, is_dropping=change == "drops")
                is_killed = False
            except Killed:
                pass
        named = pool.records(folder)["table1"]["runs"]
        assert [run.id for run in pool.read(folder, named)] == list(named)
        found = {run.id: run for run in pool.read(folder)}
        assert found.keys() in ({run.id for run in before}, {run.id for run in after})
        assert all(run.epochs.equals(found[run.id].epochs) for run in after if run.id in found)
    assert calls > 5
    assert found.keys() == {run.id for run in after}


@pytest.mark.parametrize("is_link", [True, False])
def test_a_lock_that_is_a_link_or_a_folder_is_one_line(
    copied: Path, tmp_path: Path, is_link: bool
) -> None:
    lock = copied / ".lock"
    if is_link:
        lock.symlink_to(tmp_path / "outside")
    else:
        lock.mkdir()
    with pytest.raises(UserError, match=r"\.lock: is a link or a folder"):
        publish.rebuild(copied / "table1")
    assert not (tmp_path / "outside").exists()


def kill_at(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Raise `Killed` in place of a call, counted from 1, that changes a pool's files."""
    left = calls

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return function(*arguments)

        return call

    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    monkeypatch.setattr(pool, "write_checksums", counted(pool.write_checksums))


# What a stranger's pool decodes to.


def test_a_small_pool_that_decodes_to_gigabytes_is_refused(copied: Path) -> None:
    """A dictionary of one text of 1 MB, named by 4,000 rows: some kilobytes on disk, 4 GB in memory; and a
    column of zeros."""
    names = pq.read_table(copied / pool.RUNS_FILE).column_names
    zeros = pa.array([0] * 4000, pa.int32())
    texts = pa.DictionaryArray.from_arrays(zeros, ["x" * 2**20])
    table = pa.table(dict.fromkeys(names, texts))
    pq.write_table(table, copied / pool.RUNS_FILE, compression="zstd", store_schema=False)
    assert (copied / pool.RUNS_FILE).stat().st_size < 2**16
    sum_again(copied)
    program(f"""
        import resource
        from pathlib import Path
        from dgc_repro.errors import UserError
        from dgc_repro.paper import pool
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            pool.read(Path({str(copied)!r}))
        except UserError as error:
            assert "more than" in str(error), error
        else:
            raise SystemExit("was read")
        used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert used < 900, used
    """)


def in_parquet(columns: dict[str, Any], **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, compression="zstd", **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("rows", "columns"), [(MOST_VALUES + 1, 1), (2**20, 32), (1, 20_000)], ids=str
)
def test_a_small_pool_of_many_values_is_refused(rows: int, columns: int) -> None:
    content = in_parquet(dict.fromkeys(map(str, range(columns)), pa.nulls(rows)))
    assert len(content) < 2**22
    with pytest.raises(ValueError, match="a table of"):
        parquet.decoded(content)


WORDS = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["x" * 2**20])


@pytest.mark.parametrize(
    "column",
    [WORDS, pa.array([[1]]), pa.array([{"a": 1}]), pa.array([b"x"]), pa.array([1], pa.timestamp("s"))],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_columns_of_types_that_no_pool_has_are_refused(column: pa.Array) -> None:
    """With the stored schema 2,000 places in a dictionary of one text of 1 MB stay a dictionary, which is
    small until Python's values are made of it."""
    content = in_parquet({"id": column})
    with pytest.raises(ValueError, match="column id: numbers or texts, got"):
        parquet.decoded(content)


def test_a_text_that_repeats_the_one_before_is_refused() -> None:
    """A text of 1 MB that 2,000 rows repeat by its length, without a dictionary."""
    texts = pa.array(["x" * 2**20 + str(n) for n in range(50)])
    content = in_parquet(
        {"id": texts}, use_dictionary=False, column_encoding={"id": "DELTA_BYTE_ARRAY"}
    )
    with pytest.raises(ValueError, match="a page has encoding 7"):
        parquet.decoded(content)


def test_a_larger_table_is_decoded_in_large_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """400,000 rows of 16 floats had been decoded row by row, in 98 seconds."""
    rows = 400_000
    numbers = np.random.default_rng(0).normal(size=rows)
    columns = {f"number{n}": numbers + n for n in range(16)}
    columns["text"] = [f"word {n % 1000}" for n in range(rows)]
    content = in_parquet(columns)
    asked = []
    batches = pq.ParquetFile.iter_batches

    def counted(self: Any, rows: int, **options: Any) -> Any:
        asked.append(rows)
        return batches(self, rows, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    assert parquet.decoded(content).equals(pa.table(columns))
    assert asked[0] >= 1024


def test_a_header_with_a_field_twice_is_refused() -> None:
    """The last one of two sizes would count here, and the first one in pyarrow where their types differ."""
    twice = bytes([0x25, 2, 0x06, 4, 2, 0])
    with pytest.raises(ValueError, match="twice"):
        parquet._Header(twice, 0).structure()


def zigzag(value: int, length: int) -> bytes:
    """A varint of Thrift's with this number of bytes, more than it needs perhaps."""
    bits = 2 * value
    return bytes((bits >> 7 * n & 127) | 128 * (n < length - 1) for n in range(length))


def test_a_footer_that_claims_few_bytes_is_not_believed() -> None:
    """One value of 300 MiB in a page, which the footer says has 100 bytes."""
    size = 300 * 2**20
    stream = io.BytesIO()
    pq.write_table(
        pa.table({"id": pa.array(["x" * size])}), stream, compression="zstd",
        use_dictionary=False, write_statistics=False, store_schema=False,
    )  # fmt: skip
    content = stream.getvalue()
    claimed = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(0).total_byte_size
    head, footer = content[:-500], content[-500:]
    honest = zigzag(claimed, 5)
    assert footer.count(honest) == 2
    lying = head + footer.replace(honest, zigzag(100, 5))
    metadata = pq.ParquetFile(io.BytesIO(lying)).metadata
    assert metadata.row_group(0).total_byte_size == 100
    assert parquet.pages_of(lying, metadata)[0].unpacked >= size
    with pytest.raises(ValueError, match="more than"):
        parquet.decoded(lying)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_the_headers_of_pages_say_what_an_honest_footer_says(
    compression: str, version: str
) -> None:
    table = pa.table(
        {
            "text": [f"word {n % 7}" for n in range(20_000)],
            "number": [n / 3 for n in range(20_000)],
            "empty": pa.nulls(20_000, pa.int64()),
        }
    )
    stream = io.BytesIO()
    pq.write_table(
        table, stream, compression=compression, data_page_version=version, data_page_size=4096,
        row_group_size=7000, write_page_checksum=True,
    )  # fmt: skip
    content = stream.getvalue()
    metadata = pq.ParquetFile(io.BytesIO(content)).metadata
    for number, pages in enumerate(parquet.pages_of(content, metadata)):
        group = metadata.row_group(number)
        # The footer counts the headers too.
        assert 0.8 * group.total_byte_size < pages.unpacked <= group.total_byte_size
    assert parquet.decoded(content).equals(table)
    assert parquet.decoded(content, ["number"]).equals(table.select(["number"]))


@pytest.mark.parametrize("seed", range(3))
def test_broken_pages_end_in_an_error_that_pools_expect(seed: int) -> None:
    content = (PLACE / pool.RUNS_FILE).read_bytes()
    places = random.Random(seed)
    for _ in range(200):
        changed = bytearray(content)
        for _ in range(3):
            changed[places.randrange(len(content))] = places.randrange(256)
        with contextlib.suppress(*untrusted.DAMAGE):
            parquet.decoded(bytes(changed))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("config", "[" * 100_000),
        ("config", "5"),
        ("config", '{"seed": 1, "model": 5}'),
        ("config", f'{{"seed": {"9" * 400}}}'),
        ("config", json.dumps({"seed": 1, "wrap": [{"a": 1}]})),
        ("summary", f'{{"steps": {"9" * 5000}}}'),
        ("columns", '{"epochs": ["nothing"]}'),
        ("columns", '{"nothing": ["x"]}'),
        ("columns", "5"),
        ("id", "\x1b[2J"),
    ],
)
def test_a_pool_with_values_of_other_types_is_one_line(
    copied: Path, column: str, value: str
) -> None:
    table = pq.read_table(copied / pool.RUNS_FILE)
    place = table.column_names.index(column)
    own = pa.array([value, *table[column].to_pylist()[1:]])
    pq.write_table(table.set_column(place, column, own), copied / pool.RUNS_FILE)
    sum_again(copied)
    with pytest.raises(UserError, match="a damaged pool") as caught:
        pool.read(copied)
    said = str(caught.value)
    assert "\n" not in said
    assert "\x1b" not in said
    assert len(said) < 2000


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "5", "{", "[" * 100_000, '{"table1": 5}', '{"table1": {"title": 1, "runs": []}}'),
        '{"table1": {"title": "x", "verdicts": [5], "runs": []}}',
        '{"table1": {"title": "x", "verdicts": [{}], "runs": []}}',
        '{"table1": {"title": "\\u001b[2J", "verdicts": [], "runs": []}}',
    ],
)
def test_verdicts_of_other_types_are_one_line(copied: Path, text: str) -> None:
    (copied / pool.VERDICTS_FILE).write_text(text)
    with pytest.raises(UserError, match=r"a damaged pool") as caught:
        dgc_repro.load_claims(copied.parents[1])
    assert "\n" not in str(caught.value)


def test_numbers_with_short_lines_are_refused(copied: Path) -> None:
    (copied / pool.NUMBERS_FILE).write_text(",".join(["a"] * 3000) + "\n1" * 4000)
    with pytest.raises(UserError, match=r"a damaged pool .*a table of 4,001 rows"):
        pool.numbers(copied)


def test_a_linked_file_of_a_pool_is_not_read(copied: Path, tmp_path: Path) -> None:
    path = copied / pool.RUNS_FILE
    path.rename(tmp_path / "outside.parquet")
    path.symlink_to(tmp_path / "outside.parquet")
    with pytest.raises(UserError, match="is a symbolic link"):
        pool.read(copied)
