"""Records: what is in results/records holds, `record` makes one of finished runs or refuses, and
`verify-record` trains a seed again. The tiny recipe here stands for those of conf/records.yaml."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tiny_run import TINY

from dgc_repro.checksums import sealed_summary
from dgc_repro.errors import UserError
from dgc_repro.launch import environment
from dgc_repro.launch.ranks import RunFailed
from dgc_repro.launch.record import checked, confirmed, overlaid
from dgc_repro.paper import leaderboard, statistics
from dgc_repro.paper.leaderboard import Record, Rules
from dgc_repro.paper.records import Run

RULES = Rules.read()
RECORDS = Path(__file__).resolve().parents[2] / "results" / "records"
FOLDERS = leaderboard.folders(RECORDS)
Command = Callable[..., tuple[int, list[str]]]
SEEDS = 5


# What CI checks.


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_published_record_follows_from_its_files_and_its_recipe(folder: Path) -> None:
    assert checked(folder, RULES).name == folder.name


def test_the_page_of_the_published_records_is_made_again_byte_for_byte() -> None:
    records = [checked(folder, RULES) for folder in FOLDERS]
    again = leaderboard.page(records, RULES)
    assert (RECORDS / leaderboard.PAGE_FILE).read_text(encoding="utf-8") == again
    kept = {path.name for path in RECORDS.iterdir()}
    assert kept == {leaderboard.PAGE_FILE, *(folder.name for folder in FOLDERS)}


def test_the_targets_are_frozen() -> None:
    found = {
        target.name: (*target.run, target.metric, target.at_least, target.bound)
        for target in RULES.targets.values()
    }
    assert found == {
        "low": ("recipe=low", "scale=none", "test/accuracy_percent", True, 81),
        "gpt": ("recipe=gpt", "scale=none", "test/loss", False, 1.7969),
    }
    assert (RULES.workers, RULES.seeds, RULES.p) == (8, 5, 0.01)


def test_the_target_of_the_texts_is_dense_training_and_two_hundredths() -> None:
    dense = leaderboard.read(RECORDS / "gpt-dense", RULES)
    mean = np.mean([run.last("test/loss") for run in dense.runs])
    assert round(float(mean) + 0.02, 4) == RULES.targets["gpt"].bound


def test_dense_training_sends_what_eight_workers_on_a_ring_send() -> None:
    dense = leaderboard.read(RECORDS / "low-dense", RULES)
    parameters, steps = (dense.runs[0].summary[key] for key in ("parameters", "steps"))
    payload = dense.runs[0].summary["collectives"]["allreduce"]["payload_bytes"]
    assert payload == pytest.approx(4 * parameters * steps, rel=0.005)  # but the frozen whitening
    assert [sent for _, sent in dense.reached] == pytest.approx([2 * 7 / 8 * payload] * SEEDS)


# A tiny target, and runs of it in this process.


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Rules:
    """One target, which the first test of a tiny model reaches; code counts as committed."""
    run = [*TINY, "launch.workers=2"]
    target = {"title": "tiny", "run": run, "metric": "test/accuracy_percent", "at_least": 0}
    may_differ = ["compressor", "wrap", "wrapper", "policy", "exchange", "train.local_steps"]
    found = Rules.of(
        {
            "targets": {"tiny": target},
            "workers": 8,
            "seeds": 2,
            "p": 0.01,
            "more_bytes": 0.01,
            "may_differ": may_differ,
        }
    )
    monkeypatch.setattr(Rules, "read", classmethod(lambda cls: found))
    monkeypatch.setattr(environment, "code_has_changed", lambda: False)
    monkeypatch.setattr(environment, "git", lambda _: "a commit")
    return found


def train(command: Command, *overrides: str, seeds: int = 2) -> list[str]:
    """The run folders of the first seeds."""
    for seed in range(seeds):
        assert command(*TINY, "launch.workers=2", f"seed={seed}", *overrides)[0] == 0
    folders = sorted(Path("runs").iterdir(), key=lambda folder: folder.stat().st_mtime)
    return [str(folder) for folder in folders[-seeds:]]


def refused(answer: tuple[int, list[str]], begins: str, says: str) -> None:
    code, (line,) = answer
    assert code == 2, line
    assert line.startswith(f"error: {begins}"), line
    assert says in line, line


def test_a_record_is_made_beaten_and_verified(
    rules: Rules, command: Command, trained: list[Path]
) -> None:
    dense = train(command)
    assert command("record", *dense, "by=A Person") == (0, [])
    root = Path("results/records")
    (first,) = leaderboard.folders(root)
    found = checked(first, rules)
    assert (found.name, found.by, len(found.runs)) == ("tiny-dense", "A Person", 2)
    assert sorted(path.name for path in first.iterdir()) == sorted(leaderboard.FILES)
    # Nothing of the machine is in it.
    kept = yaml.safe_load((first / "config.yaml").read_text())
    assert {"seed", "paths", "sink"}.isdisjoint(kept)
    # The seed, trained again, has the same curve.
    one_thread = "launch.threads=1"
    assert command("verify-record", str(first), "seed=1", one_thread) == (0, [])
    assert trained[-1].parent == Path("runs/verified")
    assert command("verify-record", str(first), "seed=7", one_thread) == (0, [])
    # A method with fewer bytes stands above it; one with as many is refused, and nothing has changed.
    sparse = train(command, "compressor=topk", "compressor.density=0.1")
    assert command("record", *sparse) == (0, [])
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    refused(command("record", *dense), "name: results/records/tiny-dense", "give another name")
    refused(command("record", *dense, "name=other"), "tiny-other: sends fewer bytes", "p = 1")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    page = (root / leaderboard.PAGE_FILE).read_text()
    assert page.index("tiny-topk") < page.index("tiny-dense")
    # The page is made again from the folders.
    (root / leaderboard.PAGE_FILE).unlink()
    assert command("record") == (0, [])
    assert (root / leaderboard.PAGE_FILE).read_text() == page


def test_the_same_curve_again_is_said_to_be_the_same(rules: Rules, command: Command) -> None:
    command("record", *train(command))
    known = checked(Path("results/records/tiny-dense"), rules)
    assert "the same curve, value for value" in confirmed(known, known.runs[1])
    other = known.runs[1].epochs.assign(**{"test/accuracy_percent": [9.0, 10.0]})
    assert "curves differ by up to" in confirmed(known, replace(known.runs[1], epochs=other))
    worse = other.assign(**{"test/accuracy_percent": [-2.0, -1.0]})
    with pytest.raises(RunFailed, match="not reached; not confirmed: at most"):
        confirmed(known, replace(known.runs[1], epochs=worse))


def test_runs_that_are_no_record_are_refused_by_their_key(
    rules: Rules, command: Command, tmp_path: Path
) -> None:
    (zero, one), (wide, _) = train(command), train(command, "model.width=8")
    sparse, _ = train(command, "compressor=topk")
    refused(command("record", one), "seed: a record has the seeds 0 to n-1", "got [1]")
    refused(command("record", zero, zero, one), "seed: ", "got [0, 0, 1]")
    refused(command("record", wide), "model.width: differs from `launch=simulated", "compressor")
    refused(command("record", zero, sparse), "wrap: the same", "give the runs of one setting")
    refused(command("record", zero, one, "row=dence"), f"row: a row of {zero}", "got dence")
    refused(command("record", zero, one, "name=../x"), "name: small letters", "got '../x'")
    assert not (tmp_path / "results").exists()


# Somebody else's record.


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDS / "low-dense", tmp_path / "low-dense"))


def resealed(folder: Path) -> None:
    """Write the checksums of changed files, as somebody would who means to deceive."""
    file = folder / leaderboard.FILE
    stated = json.loads(file.read_text())
    file.write_bytes(
        sealed_summary(file, {k: v for k, v in stated.items() if k not in ("files", "sha256")})
    )


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("config.yaml", "epochs: 5", "epochs: 6", "train.epochs: a test after each of 6 epochs"),
        ("config.yaml", "batch_size: 64", "batch_size: 32", "train.batch_size: differs from `recipe=low"),
        ("config.yaml", "workers: 4", "workers: 2", "launch.workers: 2, and the environment of"),
        ("config.yaml", "precision: bf16", "precision: fp32", "train.precision: differs"),
        ("config.yaml", "resume_from: null", "resume_from: /a/run", "train.resume_from: differs"),
        ("config.yaml", "dgc_repro.compressor.dense.Dense", "os.system", "os.system: no component"),
        ("config.yaml", "wrap:", "wrap: !!python/object/apply:os.getcwd []\nold:", "not a record (Constr"),
        ("config.yaml", "policy:", "polity:", "resolved config, got something else (no policy)"),
        ("config.yaml", "dataset:", "dataset: 3\nold:", "config: a run's resolved config"),
        ("runs.json", '"dirty": false', '"dirty": true', "environment.dirty: committed code"),
        ("runs.json", '"status": "finished"', '"status": "stopped"', "summary.status: finished, got stopped"),
        ("runs.json", '"payload_bytes": 2258928000', '"payload_bytes": 22589280', "comm/payload_bytes: "),
        ("runs.json", '"seed": 4', '"seed": 5', "seed: a record has the seeds 0 to n-1"),
        ("runs.json", '"steps": 875', '"steps": 87', "step: 875 in the last epoch"),
        ("runs.json", '"summary"', '"sumary"', "not a record (KeyError"),
        ("log.csv", "0,5,875,", "0,6,875,", "train.epochs: a test after each of 5 epochs, got [1, 2, 3, 4, "),
        ("log.csv", ",82.0,", ",83.0,", "test/accuracy_percent: 83.0 in the last epoch"),
        ("record.json", '"epoch": 5', '"epoch": 4', "record.json does not follow from the files"),
        ("record.json", '"target": "low"', '"target": "hi"', "not a record (KeyError: 'hi')"),
    ],
)  # fmt: skip
def test_a_record_that_does_not_hold_is_refused_by_its_key(
    name: str, old: str, new: str, says: str, copied: Path
) -> None:
    text = (copied / name).read_text()
    assert old in text
    (copied / name).write_text(text.replace(old, new))
    if name != leaderboard.FILE:
        with pytest.raises(UserError, match=f"Damaged: {name} is damaged"):
            checked(copied, RULES)
    resealed(copied)
    with pytest.raises(UserError) as error:
        checked(copied, RULES)
    assert str(error.value).startswith(f"{copied}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_more_or_less_is_no_record(copied: Path) -> None:
    (copied / "model.pkl").write_bytes(b"")
    with pytest.raises(UserError, match=r"and no other, got .*model\.pkl"):
        checked(copied, RULES)
    (copied / "model.pkl").unlink()
    (copied / "log.csv").unlink()
    with pytest.raises(UserError, match="a record has the files"):
        checked(copied, RULES)
    shutil.copytree(RECORDS / "low-dense", copied.with_name("dense"))
    with pytest.raises(UserError, match="name: begins with its target, low-; rename it"):
        checked(copied.with_name("dense"), RULES)


def test_a_record_brings_its_method_alone_to_the_run_that_verifies_it() -> None:
    recipe = {"train": {"epochs": 5, "local_steps": 1}, "model": {"width": 4}, "wrap": ["a"]}
    theirs = {"train": {"epochs": 9, "local_steps": 3}, "model": {"width": 8}, "wrap": ["b"]}
    made = overlaid(recipe, theirs, ["train.local_steps", "wrap"])
    assert made == {"train": {"epochs": 5, "local_steps": 3}, "model": {"width": 4}, "wrap": ["b"]}
    assert recipe["wrap"] == ["a"]
    assert overlaid(recipe, {}, ["train.local_steps"]) == recipe


# The rules, on made-up curves.


def changed(record: Record, change: Callable[[Run], Run], **others: Any) -> Record:
    return replace(record, runs=tuple(map(change, record.runs)), **others)


def test_bytes_count_until_the_first_test_that_has_the_target() -> None:
    dense = leaderboard.read(RECORDS / "low-dense", RULES)
    curve = [50.0, 81.0, 70.0, 80.0, 82.0]
    (total, *_) = [sent for _, sent in dense.reached]
    early = changed(
        dense,
        lambda run: replace(run, epochs=run.epochs.assign(**{"test/accuracy_percent": curve})),
    )
    assert early.reached == [(2, pytest.approx(total * 2 / 5))] * SEEDS
    never = changed(
        dense,
        lambda run: replace(run, epochs=run.epochs.assign(**{"test/accuracy_percent": np.nan})),
    )
    assert never.reached == [(0, np.inf)] * SEEDS


def test_one_seed_that_misses_the_target_is_no_record() -> None:
    dense = leaderboard.read(RECORDS / "low-dense", RULES)
    run = dense.runs[3]
    metric = "test/accuracy_percent"
    missed = replace(
        run,
        epochs=run.epochs.assign(**{metric: [1.0, 2, 3, 4, 80.99]}),
        summary={**run.summary, metric: 80.99},
    )
    with pytest.raises(
        UserError, match=r"^seed: each seed reaches .* 81, and seed 3 ends at 80\.99"
    ):
        replace(dense, runs=(*dense.runs[:3], missed, *dense.runs[4:])).check()


def test_a_record_has_to_be_shown_to_send_less_than_the_one_below_it() -> None:
    dense = leaderboard.read(RECORDS / "low-dense", RULES)

    def scaled(name: str, factors: list[float]) -> Record:
        def smaller(run: Run) -> Run:
            size = run.summary["collectives"]["allreduce"]["payload_bytes"] * factors[run.seed]
            sent = {"allreduce": {"calls": 1, "payload_bytes": size}}
            return replace(run, summary={**run.summary, "collectives": sent})

        return changed(dense, smaller, name=name)

    sure = scaled("sure", [0.5, 0.51, 0.49, 0.5, 0.5])
    vague = scaled("vague", [0.2, 0.9, 0.5, 0.8, 0.3])
    order = leaderboard.standing([dense, sure], RULES, dense.target)
    assert [record.name for record, _ in order] == ["sure", "low-dense"]
    assert order[0][1] < 1e-4
    with pytest.raises(
        UserError, match=r"^vague: sends fewer bytes than sure with p < 0.01, got p = 0.\d+"
    ):
        leaderboard.standing([dense, sure, vague], RULES, dense.target)


def test_welchs_test_is_that_of_scipy() -> None:
    from scipy import stats

    one, two = [3.0, 3.1, 2.9, 3.3], [3.4, 3.6, 3.1, 3.5, 3.9]
    found = statistics.p_not_below(*(statistics.estimate(v, ratio=True) for v in (one, two)))
    known = stats.ttest_ind(np.log(one), np.log(two), equal_var=False, alternative="less")
    assert found == pytest.approx(known.pvalue)
    same = [statistics.estimate([value] * 5, ratio=True) for value in (2.0, 3.0)]
    assert [statistics.p_not_below(*pair) for pair in (same, same[::-1], same[:1] * 2)] == [0, 1, 1]
