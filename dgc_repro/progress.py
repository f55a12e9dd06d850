"""Progress of long work and the time it still needs, on a terminal and in a log file.

On a terminal: a bar of one line, redrawn in place at most four times a second. Elsewhere (a pipe, a log file,
a cluster job): a line at most once a minute, without control characters, and none for work of under a minute.
Nothing is drawn between two calls of `Progress.advance`: there is no thread that could disturb a measurement.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

LINE_EVERY_SECONDS = 60.0
DRAW_EVERY_SECONDS = 0.25
Clock = Callable[[], float]


class TimeLeft:
    """Time left, at the pace since the start. ``total``: the whole work, in any unit, expected seconds where
    its pieces differ; ``start``: what was done before."""

    def __init__(self, total: float, start: float = 0.0, clock: Clock = time.monotonic) -> None:
        self.total = total
        self.completed = start
        self._start = start
        self._clock = clock
        self._began = clock()

    def advance(self, amount: float = 1.0) -> None:
        """Add finished work."""
        self.completed += amount

    def words(self) -> str:
        """``about 5 min left``; empty before the first piece and after the last one."""
        done, left = self.completed - self._start, self.total - self.completed
        if done <= 0 or left <= 0:
            return ""
        return f"about {duration((self._clock() - self._began) * left / done)} left"


class Progress(TimeLeft):
    """Shows the progress of ``what``, until `close` or the end of a ``with``. ``console``: standard output by
    default; ``quiet``: show nothing, as on ranks other than 0."""

    def __init__(
        self,
        what: str,
        total: float,
        start: float = 0.0,
        *,
        console: Console | None = None,
        quiet: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(total, start, clock)
        self._what = what
        self._console = console or console_of(sys.stdout)
        self._quiet = quiet
        self._shown_at = self._began
        self._bar: RichProgress | None = None
        if self._console.is_terminal and not quiet:
            self._bar = RichProgress(
                _column("{task.description}"),
                BarColumn(bar_width=None),
                _column("{task.fields[now]}"),
                console=self._console,
                auto_refresh=False,
                transient=True,
                expand=True,
            )
            self._task = self._bar.add_task(what, total=total, now="")
            self._bar.update(self._task, completed=start)
            self._bar.start()
            self._shown_at -= DRAW_EVERY_SECONDS  # the first piece is drawn

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, amount: float = 1.0, now: str = "", what: str = "") -> None:
        """Add finished work. ``now``: what is shown beside it; ``what``: another name from here on."""
        super().advance(amount)
        self._what = what or self._what
        every = LINE_EVERY_SECONDS if self._bar is None else DRAW_EVERY_SECONDS
        if self._quiet or self._clock() - self._shown_at < every:
            return
        self._shown_at = self._clock()
        if self._bar is not None:
            text = " ".join(filter(None, (now, self.words())))
            self._bar.update(
                self._task, completed=self.completed, description=self._what, now=text, refresh=True
            )
        else:
            share = f"{100 * self.completed / self.total:.0f} %" if self.total else ""
            self.line(f"{self._what}: {', '.join(filter(None, (share, now, self.words())))}")

    def line(self, text: str) -> None:
        """Print a line that stays, above a bar."""
        if self._bar is None:
            print(text, file=self._console.file, flush=True)
        else:
            self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def close(self) -> None:
        """Take a bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def console_of(stream: TextIO, width: int | None = None) -> Console:
    """Return a console that draws on ``stream``, and writes control codes, only if a line of it can be
    redrawn. Rich's own test takes a pipe or a file for a terminal when FORCE_COLOR is set. ``width``: where
    lines wrap; None takes the terminal's."""
    can_draw = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return Console(file=stream, force_terminal=can_draw, highlight=False, width=width)


def duration(seconds: float) -> str:
    """``40 s``, ``6 min`` or ``2.5 h``."""
    if seconds < 90:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _column(template: str) -> TextColumn:
    """A column of one line; a name may hold brackets, hence no markup."""
    return TextColumn(template, markup=False, table_column=Column(no_wrap=True))
