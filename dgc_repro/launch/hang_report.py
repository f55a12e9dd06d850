"""Report which ranks are missing and where they hang, after a collective has failed and at no other time.

On each rank a thread sleeps until some rank asks for a report (`HangReport.failed`). It then reports where
its rank's main thread is, even while that thread hangs. A rank that is dead, stopped or cut off does not
answer. Collectives pay nothing for this: until one fails, the thread waits for one key of torch's store.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from dgc_repro.errors import full_disk
from dgc_repro.exchange.wire import FROM_GLOO, CollectiveFailed, is_of_a_collective
from dgc_repro.launch.rendezvous import poll, ranks

ANSWER_SECONDS = 5.0  # that a rank has to say where it is
FOR_EVER = datetime.timedelta(days=1000)
REQUEST = "hang report"
NO_ANSWER = ", nor answers: killed, stopped or cut off from the network"
MOST_LETTERS = 300  # of an error's line


@dataclass(frozen=True)
class Answer:
    """Where a rank is. ``step`` counts from 1, 0: before the first; ``waits_for``: a collective in
    words; ``at``: the line of ours that its main thread is in; ``error``: what it ended with."""

    step: int
    waits_for: str = ""
    at: str = ""
    error: str = ""


class HangReport:
    """This rank's side of a report. ``where``: set it to report the step and collective of a run."""

    def __init__(self, store: Store, rank: int, size: int, timeout_seconds: float) -> None:
        self.where: Callable[[], tuple[int, str]] = lambda: (0, "")
        self._store = store.clone()
        self._listener_store = store.clone()  # a store serves one thread at a time
        self._rank = rank
        self._size = size
        self._timeout_seconds = timeout_seconds
        self._has_sent = threading.Lock()
        threading.Thread(target=self._listen, name="hang report", daemon=True).start()

    def failed(self, error: BaseException) -> str:
        """The line for a run that ends with this error on this rank. May wait for others' answers."""
        step, asked = self.where()
        broken = broken_collective(error)
        if broken is None:
            line = one_line(error)
            self.leave(line)
            return f"{line} (rank {self._rank}, {at_step(step)})"
        asked = broken or asked
        own = Answer(step, asked)
        answers = self._ask_all(own)
        return verdict(own, answers, self._timeout_seconds, torch_message(error))

    def leave(self, error: str) -> None:
        """Record that this rank ends by itself, so that no other rank waits for its answer."""
        step, _ = self.where()
        self._send(self._store, Answer(step, error=error))

    def _ask_all(self, own: Answer) -> dict[int, Answer | None]:
        answers: dict[int, Answer | None] = dict.fromkeys(range(self._size))
        answers[self._rank] = own

        def all_answered() -> bool:
            for rank, answer in answers.items():
                if answer is None and self._store.check([_key(rank)]):
                    answers[rank] = Answer(**json.loads(self._store.get(_key(rank))))
            return None not in answers.values()

        with contextlib.suppress(dist.DistError):  # the store lived in a rank that is gone
            self._send(self._store, own)
            self._store.set(REQUEST, "")
            poll(all_answered, min(ANSWER_SECONDS, self._timeout_seconds))
        return answers

    def _listen(self) -> None:
        try:
            self._listener_store.wait([REQUEST], FOR_EVER)
            step, waits_for = self.where()
            self._send(self._listener_store, Answer(step, waits_for, line_of_main_thread()))
        except Exception:  # the store is gone, and with it the rank that asked
            return

    def _send(self, store: Store, answer: Answer) -> None:
        """Only the first answer counts: a rank that loses its peers while it is asked was not missing."""
        if self._has_sent.acquire(blocking=False):
            store.set(_key(self._rank), json.dumps(asdict(answer)))


def one_line(error: BaseException) -> str:
    """An error's type and message; of a full disk, its file."""
    if full := full_disk(error, "a file"):
        return str(full)
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_LETTERS]


def verdict(
    own: Answer, answers: Mapping[int, Answer | None], timeout_seconds: float, said: str = ""
) -> str:
    """One line: which ranks did not come to the collective that failed here, where they are, and what
    torch ``said``; or the error that a rank has ended with, which is the same line on all ranks."""
    ended = [(rank, answer) for rank, answer in answers.items() if answer and answer.error]
    if ended:
        rank, answer = ended[0]
        return f"{answer.error} (rank {rank}, {at_step(answer.step)})"
    line = _missing_ranks(own, answers, f"launch.timeout_seconds={timeout_seconds:g}")
    return f"{line}; torch says: {said}" if said else line


def _missing_ranks(own: Answer, answers: Mapping[int, Answer | None], limit: str) -> str:
    asked = f"{own.waits_for or 'a collective'} {of_step(own.step)}"
    answered = {rank: answer for rank, answer in answers.items() if answer is not None}
    silent = [rank for rank in answers if rank not in answered]
    if silent:
        return f"{ranks(silent)} did not come to the {asked}{NO_ANSWER} ({limit})"
    here = (own.step, own.waits_for)
    away = [rank for rank, answer in answered.items() if (answer.step, answer.waits_for) != here]
    busy = [rank for rank in away if not answered[rank].waits_for]
    if busy:
        place = answered[busy[0]]
        return (
            f"{ranks(busy)} did not come to the {asked} in time: still {at_step(place.step)}"
            f"{f', in {place.at}' if place.at else ''}; raise {limit} if that takes so long"
        )
    if away:
        place = answered[away[0]]
        return (
            f"{ranks(away)} did not come to the {asked}: waiting for the {place.waits_for} "
            f"{of_step(place.step)} instead; exchange.check=true says where ranks part ({limit})"
        )
    return (
        f"all ranks came to the {asked} and it did not end: the network is cut, or slower than {limit} "
        "allows; raise it, or compress more"
    )


def broken_collective(error: BaseException) -> str | None:
    """The collective whose failing this error is: "" where it was not one of ours (torch's own while
    DDP is made), None where the error is no collective's."""
    for cause in _causes(error):
        if isinstance(cause, CollectiveFailed):
            return cause.asked
        if is_of_a_collective(cause):
            return ""
    return None


def torch_message(error: BaseException) -> str:
    """The first sentence of torch's message on a failed collective, without the place in its source."""
    for cause in filter(is_of_a_collective, _causes(error)):
        line = str(cause).strip().partition("\n")[0]
        place = FROM_GLOO.match(line) if line.startswith("[") else None
        return line[place.end() if place else 0 :].partition(". ")[0].strip()[:MOST_LETTERS]
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that caused it."""
    while error is not None:
        yield error
        error = error.__cause__


def of_step(step: int) -> str:
    """When a collective is asked for; steps count from 1."""
    return f"of step {step}" if step else "before the first step"


def at_step(step: int) -> str:
    """Where a rank is; steps count from 1."""
    return f"at step {step}" if step else "before the first step"


def line_of_main_thread() -> str:
    """The innermost line of this package that the main thread is in, as "train/step.py:83 (name)"."""
    package = Path(__file__).resolve().parent.parent
    here = sys._current_frames().get(threading.main_thread().ident or 0)
    for frame, line in traceback.walk_stack(here) if here else ():
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(package):
            return f"{path.relative_to(package)}:{line} ({frame.f_code.co_name})"
    return ""


def _key(rank: int) -> str:
    return f"answer/{rank}"
