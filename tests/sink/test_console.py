"""The terminal: plain lines in a pipe, a bar of one line on a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from made_up_run import epoch_record, play, run_info, step_metrics

from dgc_repro.sink.console import Console, bytes_in_words, epoch_line

CONTROL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return Terminal()


def show(stream: io.StringIO, folder: Path) -> list[str]:
    """All lines that a whole run prints."""
    sink = Console(stream)
    sink.start(run_info(folder))
    play(sink)
    sink.note("went back [bold]one[/bold] checkpoint")
    sink.finish({"status": "finished"})
    sink.close()
    return re.split(r"[\r\n]+", stream.getvalue().strip("\n"))


def bar(terminal: Terminal, folder: Path, start_epoch: int = 0, **step: Any) -> list[str]:
    """What the bar shows after one step, line by line."""
    sink = Console(terminal)
    sink.start(run_info(folder, start_epoch))
    if step:
        sink.step({**step_metrics(40), **step})
    sink.close()
    return re.split(r"[\r\n]", CONTROL_CODES.sub("", terminal.getvalue()).rstrip())


LINES = [
    "dynamic-table1-static8_ef-quick-s3-0a1b2c3d",
    "epoch 1/3  test 40.00 %  val 60.00 %  loss 0.100  bits=8  2.0 MB  10.5 s",
    "epoch 2/3  test 62.50 %  val 60.00 %  loss 0.050  bits=8  4.0 MB  21.0 s",
    "epoch 3/3  test 61.25 %  val 60.00 %  loss 0.033  bits=8  6.0 MB  31.5 s",
    "went back [bold]one[/bold] checkpoint",
]


@pytest.mark.parametrize("kind", ["pipe", "dumb terminal"])
def test_in_a_pipe_or_on_a_dumb_terminal_there_are_the_lines_and_no_control_codes(
    kind: str, tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*(("FORCE_COLOR", "1") if kind == "pipe" else ("TERM", "dumb")))
    shown = show(io.StringIO() if kind == "pipe" else terminal, tmp_path)
    assert shown == [*LINES, f"finished: {tmp_path}"]


def test_on_a_terminal_the_same_lines_stay_above_the_bar(
    tmp_path: Path, terminal: Terminal
) -> None:
    shown = [CONTROL_CODES.sub("", line) for line in show(terminal, tmp_path)]
    assert {*LINES, f"finished: {tmp_path}"} <= set(shown)


def test_the_bar_shows_epoch_loss_accuracy_rung_bytes_and_time_left(
    tmp_path: Path, terminal: Terminal
) -> None:
    line = bar(terminal, tmp_path, step=40)[-1].strip()
    shown = r"epoch 2/3 \S+ loss 0\.050 acc 98\.8 % bits=8 4\.0 MB about \d+ s left"
    assert re.fullmatch(shown, line)


def test_the_widest_bar_fits_80_columns_and_leaves_room_to_see_progress(
    tmp_path: Path, terminal: Terminal
) -> None:
    sizes = {"epoch": 130, "train/loss": 12.5, "comm/payload_bytes": 9e9}
    label = {"policy/label": "density=0.00100,[values=16]"}
    lines = bar(terminal, tmp_path, 1, **sizes, **label)
    assert max(map(len, lines)) <= 80
    last = [line for line in lines if "loss 12.500" in line][-1]
    assert re.search(r"130/3 \S{4,} loss.* 9\.00 GB .*left *$", last)


def test_the_bar_of_a_resumed_run_starts_at_its_epoch(tmp_path: Path, terminal: Terminal) -> None:
    assert "epoch 3/3" in "".join(bar(terminal, tmp_path, 2))


def test_a_long_epoch_line_fits_80_columns() -> None:
    wide = {"epoch": 100, "test/accuracy_percent": 100.0, "policy/label": "bits=16"}
    wide |= {"comm/payload_bytes": 9.9e9, "time/train_seconds": 9999.9}
    assert len(epoch_line(epoch_record(3) | wide, 150)) <= 80


def test_a_text_has_perplexity_where_images_have_accuracy(
    tmp_path: Path, terminal: Terminal
) -> None:
    record = {**epoch_record(3), "test/perplexity": 72.298, "validation/perplexity": 1234.56}
    line = epoch_line(record, 40)
    assert "test ppl 72.3  val ppl 1234.6" in line
    assert "%" not in line
    assert len(line) <= 80
    characters = {**record, "test/perplexity": 5.8531, "validation/perplexity": 9.99961}
    assert "test ppl 5.853  val ppl 10.000" in epoch_line(characters, 40)
    shown = "".join(bar(terminal, tmp_path, **{"train/perplexity": 5791.98}))
    assert "ppl 5792.0" in shown
    assert "acc" not in shown


def test_what_a_record_does_not_have_is_left_out_of_its_line() -> None:
    record = {k: v for k, v in epoch_record(1).items() if not k.startswith("validation")}
    assert "val" not in epoch_line(record, 3)


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0.0 MB"), (12_345_678, "12.3 MB"), (2.5e10, "25.00 GB")]
)
def test_bytes_are_said_in_millions(count: float, words: str) -> None:
    assert bytes_in_words(count) == words
