"""``predict``: from the command line to tables and a figure, and what is refused in one line."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dgc_repro.errors import UserError
from dgc_repro.launch.cli_args import sizes_range, workers_range
from dgc_repro.launch.environment import threads_of_worker
from dgc_repro.launch.networks import with_profiles
from dgc_repro.launch.overrides import composed
from dgc_repro.predict.prediction import CANDIDATES, DENSE, METHOD_KEYS, predict
from dgc_repro.predict.show import rate
from dgc_repro.predict.step_timing import Bench

pytestmark = pytest.mark.slow

SLIM = (
    *("model.width=4", "dataset.train_size=512", "train.batch_size=16", "launch.threads=1"),
    *("launch.device=cpu", "repeats=1", "best=false"),
)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "predictions.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A first prediction; its file of times serves the other tests."""
    made = tmp_path_factory.mktemp("predictions")
    predict(
        [
            *("compressor=topk", "compressor.density=0.01", "network.rate=10mbit", *SLIM),
            *("workers=2..64", f"times={made / 'times.json'}", f"out={made}"),
        ]
    )
    return made


def again(folder: Path, out: Path, *settings: str) -> list[dict[str, str]]:
    """Another prediction from the same times."""
    predict([*SLIM, f"times={folder / 'times.json'}", f"out={out}", *settings])
    return rows_of(out)


def test_a_prediction_is_a_table_and_a_figure(folder: Path) -> None:
    rows = rows_of(folder)
    assert [(row["method"], int(row["workers"])) for row in rows if row["method"] == "dense"] == [
        ("dense", n) for n in (2, 4, 8, 16, 32, 64)
    ]
    for row in rows:
        parts = ("compute_ms", "compress_ms", "communicate_ms", "decompress_ms")
        assert float(row["step_ms"]) == pytest.approx(sum(float(row[part]) for part in parts))
        assert float(row["efficiency"]) == pytest.approx(
            float(row["compute_ms"]) / float(row["step_ms"])
        )
    with Image.open(folder / "predictions.png") as image:
        assert image.width > 500
    assert (folder / "predictions.svg").stat().st_size > 1000


def test_communication_is_the_models(folder: Path) -> None:
    times = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    dense = [row for row in rows_of(folder) if row["method"] == "dense"]
    for row in dense:
        n = int(row["workers"])
        moved = 2 * (n - 1) / n * (4 * times["parameters"] + 40)
        assert float(row["communicate_ms"]) == pytest.approx(
            1e3 * moved * 8 / 10e6 / 0.956422, rel=1e-3
        )


def test_gathered_payloads_are_decompressed_by_each_worker(folder: Path) -> None:
    topk = [row for row in rows_of(folder) if row["method"].startswith("topk")]
    assert len({row["payload_mb"] for row in topk}) == 1
    times = json.loads((folder / "times.json").read_text(encoding="utf-8"))
    key = next(
        key for key in times["exchanges"] if "TopK" in key and key.startswith("after_backward ")
    )
    by_workers = times["exchanges"][key][0]["by_workers"]
    assert by_workers["2"]["first"] == by_workers["8"]["first"]
    at = {int(row["workers"]): float(row["decompress_ms"]) for row in topk}
    assert at[8] == pytest.approx(1e3 * by_workers["8"]["decompress"])


def test_break_even_is_where_both_take_as_long(folder: Path, tmp_path: Path) -> None:
    topk = next(
        r for r in rows_of(folder) if r["method"].startswith("topk") and r["workers"] == "2"
    )
    bits = float(topk["break_even"])
    if bits != float("inf"):
        rows = again(
            folder,
            tmp_path,
            "compressor=topk",
            "compressor.density=0.01",
            f"network.rate={bits:.0f}bit",
            "workers=2",
        )
        dense, method = (float(row["step_ms"]) for row in rows)
        assert method == pytest.approx(dense, rel=0.01)


def test_what_is_in_the_file_is_not_measured_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("dgc_repro.predict.step_timing.time_exchange", refuse)
    monkeypatch.setattr("dgc_repro.predict.step_timing.trained", refuse)
    rows = again(
        folder,
        tmp_path,
        "compressor=topk",
        "compressor.density=0.01",
        "network=nvlink",
        "workers=4",
    )
    assert len(rows) == 2


def test_compute_can_be_given(folder: Path, tmp_path: Path) -> None:
    rows = again(folder, tmp_path, "network=ethernet_1gbit", "workers=2", "compute_ms=12.5")
    assert [float(row["compute_ms"]) for row in rows] == [pytest.approx(12.5)]


def test_a_file_of_another_model_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^times: .* holds times of another model"):
        predict(
            [
                *SLIM,
                "model.width=8",
                "network=nvlink",
                f"times={folder / 'times.json'}",
                "workers=2",
            ]
        )


def test_times_are_measured_with_the_threads_of_a_worker(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    other = 1 if before > 1 else 2  # torch may have more threads than there are cores
    seen: list[int] = []
    settings = [*SLIM[:3], f"launch.threads={other}", "launch.device=cpu"]
    bench = Bench(composed(settings), tmp_path / "times.json", 1)
    train = bench._train

    def watched(steps: int) -> Any:
        seen.append(torch.get_num_threads())
        return train(steps)

    bench._train = watched  # type: ignore[method-assign]
    assert bench.times.about["threads"] == other
    assert seen == [other]
    assert torch.get_num_threads() == before
    with pytest.raises(UserError, match=r"^times: .* number of threads \(3 a worker here"):
        Bench(composed([*settings, "launch.threads=3"]), tmp_path / "times.json", 1)


def test_workers_share_the_cores_as_those_of_a_run_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgc_repro.launch.environment.available_cores", lambda: 8)
    expected = {"launch.workers=2": 4, "launch.workers=16": 1, "launch.threads=3": 3}
    expected |= {"launch=simulated": 4, "launch=simulated launch.workers=16": 1}
    found = {s: threads_of_worker(composed(s.split())["launch"]) for s in expected}
    assert found == expected


@pytest.mark.parametrize(
    ("method", "title", "most"),
    [
        (["compressor=dgc", "policy.values=[0.25,0.02]"], "dgc density=0.02", 0.07),
        (["compressor=onebit_adam"], "onebit_adam", 0.07),
    ],
)
def test_a_prediction_is_of_the_steps_after_the_warm_up(
    method: list[str], title: str, most: float, folder: Path, tmp_path: Path
) -> None:
    times = folder if title != "onebit_adam" else tmp_path  # of another optimizer
    rows = again(times, tmp_path, "network.rate=10mbit", "workers=2", *method)
    payload = {row["method"]: float(row["payload_mb"]) for row in rows}
    assert set(payload) == {"dense", title}
    assert payload[title] < most * payload["dense"]


def test_all_candidates_are_compared_with_their_loss(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = again(folder, tmp_path, "network.rate=10mbit", "workers=2,4", "best=true")
    largest = {row["method"] for row in rows if row["workers"] == "4"}
    assert largest == {"dense", *CANDIDATES}
    printed = capsys.readouterr().out
    assert re.match(r"predict: about \d+ (s|minutes) expected", printed)
    assert "…" not in printed  # no cell is cut
    assert "loss: points of accuracy against dense training" in printed
    (loss,) = {row["loss"] for row in rows if row["method"] == "randomk 100x"}
    assert float(loss) > 1  # it is fast, and does not converge in the benchmark


def test_the_methods_row_is_its_own_beside_a_candidate_of_its_name(
    folder: Path, tmp_path: Path
) -> None:
    rows = again(
        folder, tmp_path, "network.rate=10mbit", "workers=2", "best=true", "compressor=terngrad"
    )
    payload = {row["method"]: float(row["payload_mb"]) for row in rows}
    assert payload["terngrad (as given)"] > payload["terngrad"]  # it averages vectors uncompressed


def test_dense_training_in_another_unit_is_priced_beside_dense(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("network=nvlink", "workers=2", "wrap=[]", "exchange.unit=model")
    dense, joined = again(folder, tmp_path, *given)
    assert (dense["method"], joined["method"]) == ("dense", "dense wrap=[] unit=model")
    printed = capsys.readouterr().out.splitlines()
    pays_below = [line.split()[-3] for line in printed if line.strip().startswith("dense ")][-2:]
    assert pays_below[0] == "-"
    assert pays_below[1] != "-"  # a rate, or never: the times of both are about the same


def test_gradients_are_there_in_the_last_micro_step() -> None:
    settings = (*SLIM[:-2], "train.accumulate=4")
    times = Bench(composed(list(settings)), None, 1).times
    assert min(times.ready_ms.values()) > 0.65 * times.compute_ms


def test_the_source_of_a_profile_is_printed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again(folder, tmp_path, "network.rate=1gbit", "network.source=2 workers", "workers=2")
    assert "rate 1gbit" not in (printed := capsys.readouterr().out)
    assert re.search(r"network \(modelled\): .*; 2 workers\n", printed)


@pytest.mark.parametrize("text", ["{", '{"version": 1}'])
def test_a_file_that_holds_no_times_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"^times: .* is no file of times"):
        predict([*SLIM, "network=nvlink", f"times={path}", "workers=2"])


def test_ranges() -> None:
    assert workers_range("workers", "2..256") == [2, 4, 8, 16, 32, 64, 128, 256]
    assert workers_range("workers", "2..6,3") == [2, 3, 4, 6]
    assert workers_range("workers", "[8]") == [8]
    assert sizes_range("sizes", "64..4kb") == [64, 256, 1024, 4000]


def test_a_profile_in_a_file_is_read_by_name_and_by_path(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "networks" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        "rate: 3gbit\nsoftware: {allreduce: {overhead: 9us}}\nsource: it's mine\n", "utf-8"
    )
    runs = f"paths.runs={tmp_path / 'runs'}"
    by_name = composed([runs, "network=mine", "network.rate=1gbit"])["network"]
    by_path = composed([f"network={path}"])["network"]
    assert by_name == {**by_path, "rate": "1gbit"}
    stated = {
        "rate": "3gbit",
        "software": {"allreduce": {"overhead": "9us"}},
        "source": "it's mine",
    }
    assert by_path == composed([])["network"] | stated
    kept = ["network=nvlink", "network=nvlink,loopback", "network=choice(a,b)"]
    assert with_profiles(kept) == kept


@pytest.mark.parametrize("text", ["rate: 3", "[1, 2]", "rat: 1gbit", "rate: {"])
def test_a_file_that_is_no_profile_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"^network"):
        with_profiles([f"network={path}"])


def test_candidates_set_nothing_but_the_method() -> None:
    for name, settings in {**CANDIDATES, "dense": DENSE}.items():
        for setting in settings:
            key = setting.partition("=")[0]
            if (name, key) == ("signsgd", "optimizer.momentum"):
                continue  # signs of means over steps are another method
            assert any(key == m or key.startswith(f"{m}.") for m in METHOD_KEYS), setting


def test_rates_are_said_as_people_say_them() -> None:
    assert [rate(b) for b in (2.5e9, 1e8, float("inf"), float("nan"))] == [
        *("2.5 Gbit/s", "100 Mbit/s", "any rate", "never"),
    ]
