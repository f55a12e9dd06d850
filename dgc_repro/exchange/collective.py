"""What collectives have in common: how errors of one are told from a rank's own, and say which one it was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from torch.distributed import DistError

from dgc_repro.exchange.clock import Clock

Cost = Callable[[str, int], float]
"""Modelled seconds of a collective (named as in the ledger) in which a worker hands over so many bytes."""

FROM_GLOO = re.compile(
    r"\[(enforce fail at )?\S*gloo/\S+:\d+\]|Application timeout caused pair closure"
)
"""How the errors of gloo's transport begin: the place in its source, or what a pair says that was closed."""


class CollectiveFailed(RuntimeError):
    """A collective broke off: a peer is gone, late or cut off. ``asked``: which; the cause is torch's."""

    def __init__(self, asked: str, cause: BaseException) -> None:
        super().__init__(f"{asked}: {' '.join(str(cause).split())}")
        self.asked = asked


@contextmanager
def asking(asked: str, clock: Clock, *, is_timed: bool = False) -> Iterator[None]:
    """Inside, this process begins or waits for a collective; what breaks off there says which one.
    ``is_timed``: as communication."""
    clock.waits_for = asked
    try:
        with clock.span("communicate") if is_timed else nullcontext():
            yield
    except Exception as error:
        if is_of_a_collective(error):
            raise CollectiveFailed(asked, error) from error
        raise
    clock.waits_for = ""


def is_of_a_collective(error: BaseException) -> bool:
    """Whether torch or gloo says this of a collective. What else fails inside one, such as an
    allocation, is this rank's own error and keeps its name and its text."""
    if isinstance(error, DistError):
        return True
    return isinstance(error, RuntimeError) and FROM_GLOO.match(str(error)) is not None
