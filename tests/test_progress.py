"""Progress of long work: a bar on a terminal, plain lines in a log, at a made-up clock."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from dgc_repro.progress import Progress, TimeLeft, console_of, duration

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def worked(terminal: bool, pieces: int, seconds_each: float) -> str:
    """What is shown while so many pieces are done."""
    stream, clock = io.StringIO(), Clock()
    console = Console(file=stream, force_terminal=terminal, width=80)
    with Progress("bench", pieces, console=console, clock=clock) as progress:
        for piece in range(1, pieces + 1):
            clock.seconds += seconds_each
            progress.advance(now=f"[piece {piece}] done")
            if piece == 2:
                progress.line("a line :x: that stays")
    return stream.getvalue()


def test_a_log_gets_a_line_a_minute_without_control_characters() -> None:
    shown = worked(terminal=False, pieces=10, seconds_each=25.0)
    assert not CONTROL.search(shown)
    assert shown.splitlines() == [
        "a line :x: that stays",
        "bench: 30 %, [piece 3] done, about 3 min left",  # 175 s
        "bench: 60 %, [piece 6] done, about 2 min left",  # 100 s
        "bench: 90 %, [piece 9] done, about 25 s left",
    ]


def test_a_terminal_gets_a_bar_of_one_line_that_is_redrawn_in_place() -> None:
    shown = worked(terminal=True, pieces=10, seconds_each=25.0)
    texts = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "\r" in shown
    assert re.search(r"bench \S+ \[piece 3\] done about 3 min left", texts)
    lines = re.split(r"[\r\n]+", texts)
    assert "a line :x: that stays" in [line.rstrip() for line in lines]
    assert max(map(len, lines)) <= 80
    drawn = len(re.findall(r"\[piece \d+\] done", texts))
    assert drawn >= 9  # each piece, and once more below the line that stays


def test_a_terminal_is_drawn_four_times_a_second_at_most() -> None:
    shown = worked(terminal=True, pieces=16, seconds_each=0.0625)
    assert set(re.findall(r"\[piece (\d+)\] done", shown)) == {"1", "5", "9", "13"}


def test_work_that_was_done_before_does_not_count_for_the_pace() -> None:
    clock = Clock()
    left = TimeLeft(100, start=90, clock=clock)
    assert left.words() == ""
    clock.seconds += 60
    left.advance(5)
    assert left.words() == "about 60 s left"
    left.advance(5)
    assert left.words() == ""


@pytest.mark.parametrize("total", [0, 3])
def test_a_total_that_is_not_known_has_no_share(total: int) -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(file=stream, force_terminal=False)
    with Progress("downloading", total, console=console, clock=clock) as progress:
        clock.seconds += 61
        progress.advance(now="1 MB")
    share, left = ("33 %, ", ", about 2 min left") if total else ("", "")
    assert stream.getvalue() == f"downloading: {share}1 MB{left}\n"


def test_a_pipe_is_no_terminal_whatever_the_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = console_of(io.StringIO())
    console.print("[bold]title[/] 12 %")
    assert not console.is_terminal
    assert console.file.getvalue() == "title 12 %\n"


def test_all_consoles_are_made_by_that_rule(repository: Path) -> None:
    """Else a table in a log has control codes where FORCE_COLOR is set, as on many CI machines."""
    sources = (repository / "dgc_repro").rglob("*.py")
    makers = {path.name for path in sources if " Console(" in path.read_text(encoding="utf-8")}
    assert makers == {"progress.py"}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (89, "89 s"), (754, "13 min"), (5399, "90 min"), (9000, "2.5 h")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
