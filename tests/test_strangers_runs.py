"""Run folders of strangers: `compare` and `load_runs` leave a bad one out by name, follow no link, use little
memory, write nothing outside, and send no control character to the terminal."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from shell import program

import dgc_repro
from dgc_repro import files
from dgc_repro.checksums import sealed, sealed_summary
from dgc_repro.compare import command as compare
from dgc_repro.compare.tasks import judged_sweep
from dgc_repro.errors import LONG_MESSAGE, UserError, shown
from dgc_repro.paper import records
from dgc_repro.paper.records import read_run
from dgc_repro.paper.untrusted import refuse_odd
from dgc_repro.results import finished_runs

FINISHED = Path(__file__).resolve().parent / "finished_run"
BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
HUGE = int("9" * 400)


def folder(name: str) -> Path:
    """A finished run below ``runs``."""
    return Path(shutil.copytree(FINISHED, Path("runs") / name))


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run in the working folder; figures, which take seconds, are not drawn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "figure", lambda *_: None)
    monkeypatch.setattr(compare.plot, "save", lambda *_: None)
    return folder("good")


def config_with(**changes: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        config = yaml.safe_load((run / "config.yaml").read_text())
        (run / "config.yaml").write_text(yaml.safe_dump(config | changes))

    return change


def text_of(name: str, text: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).write_text(text)

    return change


def summary_with(**changes: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | changes))

    return change


def linked(name: str, to: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        secret = Path(to).absolute()
        secret.write_text("SECRET: [\n")
        (run / name).unlink()
        (run / name).symlink_to(secret)

    return change


def piped(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")


BAD = {
    "aliases": text_of("config.yaml", f"seed: 1\n{BOMB}"),
    "a model that is a number": config_with(model=5),
    "a wrapper that is a mapping": config_with(wrap=[{"a": 1}]),
    "a rate of 400 digits": config_with(optimizer={"_target_": "x.SGD", "lr": HUGE}),
    "a date": config_with(stopping={"target": "x", "when": __import__("datetime").date(2026, 1, 1)}),
    "workers in words": config_with(launch={"workers": "two", "kind": "local"}),
    "layers in words": config_with(model={"_target_": "x.LSTM", "layers": "two"}),
    "mixed keys": config_with(schedule={"_target_": "x.S", "at": {1: 2, "x": 3}}),
    "parameters in words": summary_with(parameters="many"),
    "an accuracy of 400 digits": summary_with(**{"test/accuracy_percent": HUGE}),
    "epochs that are lists": text_of(
        "metrics.jsonl", (FINISHED / "metrics.jsonl").read_text().replace('"epoch": 1,', '"epoch": [1],')
    ),
    "decisions in words": text_of(
        "decisions.jsonl", '{"decision": 1, "decision/branch": [1], "decision/energies": ["x"]}\n'
    ),
    "a linked config": linked("config.yaml", "secret.yaml"),
    "a linked record": linked("metrics.jsonl", "secret.yaml"),
    "a pipe": piped,
    "a setting with an escape": config_with(compressor={"_target_": "x.T", "\x1b[2Jdensity": 1}),
    "a value with an escape": config_with(compressor={"_target_": "x.\x1b]0;title\x07", "k": 1}),
    "a table with short lines": text_of("rows.csv", ",".join(["a"] * 3000) + "\n1" * 4000),
    "a trace with short lines": text_of("policy.csv", ",".join(["a"] * 3000) + "\n1" * 4000),
    "a table whose columns hide": text_of("rows.csv", ",".join(['"\n"'] * 3000) + "\n1" * 4000),
    "a table of many columns": text_of("rows.csv", "a," * 20_000),
    "epochs with different keys": text_of(
        "metrics.jsonl",
        "".join(f'{{"kind": "epoch", "epoch": {n}, "key{n}": 0}}\n' for n in range(4000)),
    ),
    "a large config": text_of("config.yaml", f"seed: 1\n# {'x' * 2**20}\n"),
    "a long line": text_of("metrics.jsonl", '{"kind": "epoch", "x": "' + "x" * 2**20 + '"}\n'),
    "\x1b[31mred": lambda run: None,
}  # fmt: skip


@pytest.mark.usefixtures("good")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_run_is_left_out_by_name_and_the_others_are_compared(
    name: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    BAD[name](folder(name))
    compare.main(["runs", "--paper"])
    out, err = capsys.readouterr()
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith("left out: runs/")
    assert shown(name) in line
    assert "\n" not in line
    said = out + err + caplog.text
    assert not [letter for letter in said if ord(letter) < 32 and letter not in "\n\t"]
    assert "SECRET" not in said
    assert len(line) < LONG_MESSAGE + 100
    assert len(Path("runs/compare.csv").read_text().splitlines()) == 2
    assert list(dgc_repro.load_runs("runs").runs["run"]) == ["good"]


def test_a_record_for_which_there_is_no_memory_is_left_out(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(pd, "DataFrame", no_memory)
    runs, skipped = records.read_runs([good])
    assert runs == []
    assert "MemoryError" in skipped[0]


@pytest.mark.usefixtures("good")
@pytest.mark.parametrize("value", [-1.5, "x", [], [[{}]], {}, {"a": {"b": []}}, None])
def test_every_key_of_a_config_may_have_a_value_of_another_type(value: Any) -> None:
    """A run for each key of a recorded config: it is compared, or left out; nothing ends in a traceback."""
    whole = yaml.safe_load((FINISHED / "config.yaml").read_text())
    keys = [(key,) for key in whole]
    keys += [(key, name) for key, node in whole.items() if isinstance(node, dict) for name in node]
    assert len(keys) > 60
    for key in keys:
        changed = json.loads(json.dumps(whole))
        node = changed
        for group in key[:-1]:
            node = node[group]
        node[key[-1]] = value
        text_of("config.yaml", json.dumps(changed))(folder(".".join(key)))
    compare.main(["runs", "--paper", "--out", "compared"])
    tasks = compare.compared(finished_runs("runs"))
    good = read_run(Path("runs", "good")).config  # a copy of it may stand for it
    references = [
        line for task in tasks for line, own in task.runs_of.items() if own[0].config == good
    ]
    (judged,) = compare.judged_against(tasks, *references)
    compare.show_judged([judged], compare.console())
    judged_sweep(tasks)


def test_compare_writes_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder("good")
    precious = Path("precious.txt")
    precious.write_text("mine")
    for name in ("compare.csv", "compare.png", "compare.svg", "against.png", "compare.png.tmp"):
        (Path("runs") / name).symlink_to(precious.absolute())
    compare.main(["runs", "--paper", "--against", "uniform"])
    assert precious.read_text() == "mine"
    for name in ("compare.csv", "compare.png", "compare.svg", "against.png"):
        assert not (Path("runs") / name).is_symlink()


@pytest.mark.usefixtures("good")
def test_a_linked_run_folder_is_not_found_below_another(tmp_path: Path) -> None:
    shutil.copytree(FINISHED, "elsewhere/own")
    (tmp_path / "runs/link").symlink_to(tmp_path / "elsewhere/own")
    assert list(dgc_repro.load_runs("runs").runs["run"]) == ["good"]


def test_the_checksums_of_a_run_follow_no_link(good: Path) -> None:
    path = good / "summary.json"
    path.write_bytes(sealed_summary(path, json.loads(path.read_text())))
    read_run(good)
    outside = Path(shutil.move(good / "metrics.jsonl", "outside.jsonl"))
    (good / "metrics.jsonl").symlink_to(outside.absolute())
    with pytest.raises(UserError, match=r"metrics.jsonl: is a symbolic link"):
        read_run(good)


def test_packed_data_has_a_bound(tmp_path: Path) -> None:
    """A gzip file that unpacks to 600 MiB is read up to the bound of 64 MiB."""
    program(f"""
        import gzip, resource
        from pathlib import Path
        from dgc_repro.errors import UserError
        from dgc_repro.files import MIB, unpacked
        path = Path({str(tmp_path)!r}, "images.gz")
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(600):
                file.write(bytes(MIB))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            unpacked(path, 64 * MIB)
        except UserError as error:
            assert "more than" in str(error)
        else:
            raise SystemExit("was read")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    """)


def test_a_listed_file_is_not_read_beyond_its_size_or_the_bound(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole of 3 GiB had been hashed in 11 seconds before its size was compared."""
    path, trace = good / "summary.json", good / "policy.csv"
    trace.write_text("epoch\n1\n")
    summary = json.loads(path.read_text())
    path.write_bytes(sealed_summary(path, summary))
    os.truncate(trace, 3 * 2**30)
    hashed = []
    digest = hashlib.file_digest

    def counted(file: Any, name: str) -> Any:
        hashed.append(os.fstat(file.fileno()).st_size)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    with pytest.raises(UserError, match=r"policy.csv is damaged"):
        read_run(good)
    honest = json.loads(path.read_text())["files"]
    listed = honest | {trace.name: [3 * 2**30, "0" * 64]}
    path.write_bytes(sealed(summary | {"files": listed}))
    with pytest.raises(UserError, match=r"policy.csv is damaged"):
        read_run(good)
    assert max(hashed) < 2**20


# The reader and the writer.


def test_a_folder_in_the_place_of_a_file_is_one_line(tmp_path: Path) -> None:
    target = tmp_path / "compare.csv"
    (target / "inner").mkdir(parents=True)
    for write in (lambda: files.replace(target, b"new"), lambda: files.begun(target).close()):
        with pytest.raises(UserError, match=r"compare.csv: is a folder"):
            write()
    (tmp_path / "other.tmp").mkdir()
    files.replace(tmp_path / "other", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.csv", "other", "other.tmp"]


@pytest.mark.parametrize(
    "number", [":".join(["1"] * 300_000), "-" + "9" * 1001, '!!int "1' + ":1" * 9999 + '"']
)
def test_a_long_number_in_yaml_is_refused_before_it_is_made(number: str) -> None:
    """A number of 600 kB in base 60 took 39 seconds."""
    with pytest.raises(ValueError, match="a number of more than 1,000 letters"):
        files.parsed_yaml(f"seed: {number}")
    assert files.parsed_yaml(f'a: "{"1" * 2000}"\nb: {"x" * 2000}\nc: ""')["a"] == "1" * 2000


def test_looking_at_values_takes_time_in_proportion() -> None:
    """A long key above a long list took more than 75 seconds for 4.4 MB."""
    value = {"x" * 1000: [0] * 10**6}
    begin = time.process_time()
    refuse_odd(value)
    assert time.process_time() - begin < 20
    refuse_odd({"a.b" * 100: {"c": 1}})  # dots are no levels
    with pytest.raises(ValueError, match="a key: at most 1,000 letters, got 1,001"):
        refuse_odd({"x" * 1001: 1})
    with pytest.raises(ValueError, match=r"^a\.b\.0\.c: a whole number within 64 bits"):
        refuse_odd({"a": {"b": [{"c": HUGE}]}})
    deep: Any = 1
    for _ in range(files.MOST_DEPTH):
        deep = [deep]
    refuse_odd(deep)
    with pytest.raises(ValueError, match="too many levels"):
        refuse_odd([deep])


@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_file_is_written_and_read_through_no_link(is_dangling: bool, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    if not is_dangling:
        target.write_text("mine")
    for write in (lambda: files.replace(link, b"new"), lambda: files.begun(link).close()):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        write()
        assert not link.is_symlink()
    link.unlink()
    link.symlink_to(target)
    for read in (files.appended, files.content):
        with pytest.raises(UserError, match="is a symbolic link"):
            read(link)
    files.remove(link)
    assert (target.read_text() if target.exists() else None) == (None if is_dangling else "mine")


@pytest.mark.parametrize("text", ["a: &x [1]\nb: *x\n", "&a [*a]", BOMB, "[" * 65, "{a: " * 500])
def test_yaml_without_aliases_and_with_few_levels(text: str) -> None:
    with pytest.raises(ValueError, match=r"aliases|levels"):
        files.parsed_yaml(text)


def test_what_a_config_holds_twice_is_written_twice() -> None:
    shared = [1, {"a": 2}]
    text = files.as_yaml({"seed": 1, "x": shared, "y": {"z": shared}})
    assert files.parsed_yaml(text) == {"seed": 1, "x": shared, "y": {"z": shared}}


WITH_OWN_WAYS = {
    "files.py",  # the reader and the writer
    # Files of a temporary folder, or of a place that the user names, which the command has made.
    *("bench/tables.py", "bench/world.py", "selfcheck/command.py", "selfcheck/process.py"),
    *("launch/sweep.py", "paper/page.py", "paper/publish.py"),
    # Files of the package, of a checkout or of an installed paper, which is code.
    *("dataset/descriptions.py", "kernel/native.py", "launch/identity.py", "launch/new_paper.py"),
    *("launch/completion.py", "launch/composer.py", "launch/help.py", "paper/findings.py"),
    *("launch/paths.py", "launch/rendezvous.py", "names.py", "paper/facts.py", "paper/index.py"),
    # Data sets, with checksums where they are downloaded.
    *("dataset/download.py", "dataset/ptb.py", "dataset/shakespeare.py"),
    # Files of the system; a file that must be new.
    *("launch/environment.py", "launch/rank_process.py", "launch/ranks.py"),
    *("network/counters.py", "network/lab.py"),
    # Words of a command line, or YAML as text.
    *("launch/reproduction.py", "predict/calibrate.py"),
}
"""Modules that read or write without files.py."""
OTHER_WAYS = re.compile(
    r"\.(read_text|read_bytes|write_text|write_bytes)\(|yaml\.(safe_)?(load|dump)\(|gzip\."
    r"|\.open\(\"[rwax]|(?<!\.)\bopen\(|json\.load\(|read_csv\(path|to_csv\(path|read_table\(path"
)
PACKAGE = Path(dgc_repro.__file__).parent


def test_files_are_read_and_written_through_one_module() -> None:
    """All modules, but those of `WITH_OWN_WAYS`, each of which does so."""
    own = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if OTHER_WAYS.search(line) and not re.search(r"def open\(|# gzip|conf_dir\(", line)
    }
    assert own == WITH_OWN_WAYS


@pytest.mark.parametrize("text", ["9" * 20, "-" + "9" * 400, "9" * 5000, "[" * 100_000, "{"])
def test_json_of_numbers_that_fit_and_of_few_levels(text: str) -> None:
    with pytest.raises(ValueError, match=r"digits|levels|Expecting"):
        files.parsed_json(text)
    assert files.parsed_json("[9223372036854775807, 1e300]") == [2**63 - 1, 1e300]
