"""What the ranks of a user's own loop tell each other through the store of their process groups: whether all
have called `attach`, with the same arguments, and how many steps each has taken when a collective has failed.

A collective hangs, or ends in gloo's own error, where one rank is elsewhere. The store has what each rank has
written, so that the others can say which rank it is.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from typing import Any

import torch.distributed as dist
from torch import Tensor

from dgc_repro.errors import UserError

LOOK_EVERY_SECONDS = 0.05
ANSWER_SECONDS = 5.0
"""How long a rank whose collective has failed waits for the others to say where they are."""
SAY_SECONDS = 30.0
"""After which a rank that waits for others says so."""
DEFAULT_SECONDS = 600.0
"""How long ranks wait for each other at least, where nobody says how long."""
TOLD_SECONDS = 0.25
"""After which the ranks that wait have read a problem, before its rank may call `agree` again."""
CALLS = "dgc_repro/calls/{}"
"""Where a rank, by its number, counts its calls for any ranks."""
WITHDRAWN = "withdrawn"
SAME_BATCHES = (
    "give all ranks the same number of batches, with drop_last=True of DistributedSampler and "
    "DataLoader"
)


class Rendezvous:
    """One place in the store, where these ranks of the world write and wait for each other. The n-th call of
    each rank leads to the same place. ``seconds``: how long a rank waits for the others.

    Raises DistError where the process has ended that hosts the store."""

    def __init__(self, ranks: Sequence[int], seconds: float) -> None:
        self.ranks = list(ranks)
        self.seconds = seconds
        self._rank = dist.get_rank()
        self._store: Any = dist.distributed_c10d._get_default_store()
        self._root = f"dgc_repro/{sha256(repr(self.ranks).encode()).hexdigest()[:16]}"
        # Counted in the store, because it begins anew with the process group.
        self._number = self._store.add(f"{self._root}/calls/{self._rank}", 1)
        self._problems = _problems_of(self._store)
        self._have_met = False

    def gather(self, what: str, said: str, seconds: float | None = None) -> dict[int, str]:
        """Return what each rank has ``said``, by rank: of all, or of those that have come in time."""
        place = f"{self._root}/{self._number}/{what}"
        if any(self.problems()):  # the rank that has one may wait here already, with its next call
            return {}
        self._store.set(f"{place}/{self._rank}", said)
        self._store.add(place, 1)
        begun, pause = time.monotonic(), 1e-3
        until = begun + (self.seconds if seconds is None else seconds)
        says = seconds is None  # for whom it waits, once
        while not (all_here := self._store.add(place, 0) >= len(self.ranks)):
            if time.monotonic() > until or any(self.problems()):
                break
            if says and time.monotonic() > begun + SAY_SECONDS:
                late = [rank for rank in self.ranks if not self._has_come(f"{place}/{rank}")]
                says = not late
                if late:
                    print(
                        f"dgc_repro: rank {self._rank} waits for {named(late)}, at most {self.seconds:g} s; "
                        "all ranks that train the model have to call attach and compare_batches",
                        file=sys.stderr,
                    )
            time.sleep(pause)
            pause = min(2 * pause, LOOK_EVERY_SECONDS)
        self._have_met |= all_here
        keys = {rank: f"{place}/{rank}" for rank in self.ranks}
        here = [rank for rank, key in keys.items() if all_here or self._store.check([key])]
        told = self._store.multi_get([keys[rank] for rank in here])
        return {rank: text.decode() for rank, text in zip(here, told, strict=True)}

    def _has_come(self, key: str) -> bool:
        return bool(self._store.check([key]) and self._store.get(key).decode() != WITHDRAWN)

    def problems(self) -> list[str]:
        """Return what is wrong with each rank's call, where a rank cannot come here because of it. (A call
        that goes wrong after the ranks have met is another one.)"""
        place = self._problems
        if self._have_met or not self._store.check([place]):
            return [""] * len(self.ranks)
        keys = [f"{place}/{rank}" for rank in self.ranks]
        return [self._store.get(k).decode() if self._store.check([k]) else "" for k in keys]

    def withdraw(self, what: str, *, is_over: bool) -> None:
        """Take back that this rank has come, so that all may come here later. ``is_over``: another rank's
        call has failed, so that this one counts as well."""
        place = f"{self._root}/{self._number}/{what}"
        self._store.set(f"{place}/{self._rank}", WITHDRAWN)  # no one else takes it for missing
        self._store.add(place, -1)
        self.leave()
        if not is_over:
            self._store.add(CALLS.format(self._rank), -1)

    def leave(self) -> None:
        """Come to the same place again with the next call."""
        self._store.add(f"{self._root}/calls/{self._rank}", -1)


def _problems_of(store: Any) -> str:
    """Return where ranks write what is wrong with their n-th call for any ranks, n being this rank's number
    now. Ranks that attach the same number of models have the same n."""
    return f"dgc_repro/problems/{store.add(CALLS.format(dist.get_rank()), 1)}"


def patience(group: Any) -> float:
    """Return how long `agree` waits: as long as the process group, and 600 s at least."""
    longest = DEFAULT_SECONDS
    for device in getattr(group, "_device_types", ()):
        with contextlib.suppress(RuntimeError, AttributeError):  # a backend without options
            longest = max(longest, group._get_backend(device).options._timeout.total_seconds())
    return longest


def agree(
    ranks: Sequence[int] | None, problem: str, facts: Mapping[str, object], seconds: float
) -> Rendezvous:
    """Raise UserError on all of these ranks where one has a ``problem``, where their ``facts`` differ (by
    argument: what must be the same on all), or where one does not call this within ``seconds``.

    ``ranks``: None where a problem leaves them unknown. This rank raises at once then, and the ranks that
    wait for it learn the problem."""
    if ranks is None:
        with contextlib.suppress(dist.DistError):
            store: Any = dist.distributed_c10d._get_default_store()
            place = _problems_of(store)
            store.set(f"{place}/{dist.get_rank()}", problem)
            store.set(place, "")
            time.sleep(TOLD_SECONDS)
        raise UserError(problem)
    try:
        here = Rendezvous(ranks, seconds)
        compare(here, "arguments", facts, problem=problem)
    except dist.DistError as error:
        raise UserError(
            problem
            or "attach: the store of the process group gives no answer, because the process that hosts it "
            "(rank 0, or torchrun) has ended; see what it said"
        ) from error
    return here


def compare(
    here: Rendezvous,
    what: str,
    facts: Mapping[str, object],
    *,
    problem: str = "",
    fix: str = "give all the same",
) -> None:
    """See `agree`. ``what``: the name under which all ranks compare these; ``fix``: of facts that differ."""
    ranks, plain = here.ranks, {key: _in_words(value) for key, value in facts.items()}
    text = json.dumps([problem, plain])
    digests = here.gather(f"{what}/digest", sha256(text.encode()).hexdigest())
    missing = [rank for rank in ranks if rank not in digests]
    if missing := missing or [r for r, digest in digests.items() if digest == WITHDRAWN]:
        problems = here.problems()
        if digests:
            here.withdraw(f"{what}/digest", is_over=any(problems))
        else:
            here.leave()
        if not problem:
            refuse_first(problems, ranks)
        raise UserError(
            problem
            or f"attach: {named(missing)} did not call attach within {here.seconds:g} s; call "
            "it on all ranks that train the model, and see what that rank said"
        )
    if len({*digests.values()}) == 1:
        refuse_first([problem] * len(ranks))
        return
    texts = here.gather(what, text)
    told = [json.loads(texts.get(rank, text)) for rank in ranks]
    refuse_first([one for one, _ in told], ranks)
    for key in facts:
        every = [plain[key] for _, plain in told]
        differing = (same for same in zip_longest(*every, fillvalue="none") if len({*same}) > 1)
        if lines := next(differing, None):
            found = [
                f"{value} ({named([r for r, one in zip(ranks, lines, strict=True) if one == value])})"
                for value in dict.fromkeys(lines)
            ]
            raise UserError(f"{key}: it differs between ranks: {', '.join(found)}; {fix}")


def steps_apart(here: Rendezvous, attempt: int, step: int) -> str:
    """Say which ranks have taken other steps than this one, whose collective has failed for the
    ``attempt``-th time, in its step number ``step`` (from 1). Empty where all ranks are in this step."""
    with contextlib.suppress(dist.DistError):
        told = here.gather(f"failed/{attempt}", str(step), ANSWER_SECONDS)
        if silent := [rank for rank in here.ranks if rank not in told]:
            return (
                f"{named(silent)} takes no part in step {step}; it has ended or does something else: "
                f"{SAME_BATCHES}, or see what that rank said"
            )
        by_step: dict[str, list[int]] = {}
        for rank, number in told.items():
            by_step.setdefault(number, []).append(rank)
        if len(by_step) == 1:
            return ""
        found = ", ".join(f"{number} ({named(some)})" for number, some in by_step.items())
        return f"ranks have taken different numbers of steps: {found}; {SAME_BATCHES}"
    return (
        "the process that hosts the store of the process group (rank 0, or torchrun) has ended; "
        f"{SAME_BATCHES}, or see what it said"
    )


def refuse_first(problems: Sequence[str], ranks: Sequence[int] | None = None) -> None:
    """Raise UserError with the first of the ranks' problems, and the ranks that have it where not all do.
    A problem is empty where there is none. ``ranks``: whose they are, where that is not 0, 1, 2 ..."""
    if first := next(filter(None, problems), None):
        pairs = zip(ranks or range(len(problems)), problems, strict=True)
        said_by = [str(rank) for rank, text in pairs if text == first]
        whose = "" if len(said_by) == len(problems) else f" (rank {', '.join(said_by)})"
        raise UserError(f"{first}{whose}")


def named(ranks: Sequence[int]) -> str:
    """Return "rank 0, 2"."""
    return f"rank {', '.join(map(str, ranks))}"


def described(parameters: Mapping[str, Tensor]) -> dict[str, str]:
    """Shapes and types, by name."""
    return {
        name: f"{list(p.shape)} {str(p.dtype).removeprefix('torch.')}"
        for name, p in parameters.items()
    }


def _in_words(fact: object) -> list[str]:
    """A fact as lines to compare, without addresses in memory. A mapping's are its items."""
    if isinstance(fact, Mapping):
        return [f"{key} {value}" for key, value in fact.items()]
    return [re.sub(r" at 0x[0-9a-f]+", "", repr(fact))]
