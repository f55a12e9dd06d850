"""States of a world's ranks in one object, and what they become in a world of another size.

A state of one rank has the keys ``rank`` and ``world_size``. In a file that several ranks share, the keys
carry the rank: ``{"rank0": (state,), "rank1": (state,)}``. The tuple keeps torch.distributed.checkpoint from
looking inside: it saves and loads the state as one value, and needs no state of equal shapes to load into.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from dgc_repro.compressor.sharded import OWNER
from dgc_repro.errors import UserError, refuse_first_of
from dgc_repro.exchange.gradients import tensors_of

RESHARD = ("refuse", "mean")
"""Where the states are another number of workers': refuse them, or give each worker the mean of all."""
KEYS = ("world_size", "rank", "exchange", "policy", "ledger")
"""What every state of a rank has."""
State = dict[str, Any]


def keyed(states: Mapping[int, State]) -> State:
    """The states in one dict whose keys carry the rank."""
    return {f"rank{rank}": (state,) for rank, state in states.items()}


def states_of(saved: Mapping[str, Any]) -> dict[int, State]:
    """The states in what was saved, by rank, without empty ones. Raises UserError where it is no state."""
    if not isinstance(saved, Mapping):
        raise UserError(f"state: it is {saved}; give what state_dict() of an exchange has returned")
    if "world_size" in saved:
        _refuse_incomplete(saved)
        return {saved["rank"]: dict(saved)}
    names = {name: re.fullmatch(r"rank(\d+)", str(name)) for name in saved}
    if not all(names.values()):
        raise UserError(
            f"state: {', '.join(map(str, [*names][:3]))} are not the keys of a state that attach has saved"
        )
    found = {}
    for name, number in names.items():
        match saved[name]:
            case [Mapping() as state] if number:
                if state:
                    _refuse_incomplete(state)
                    found[int(number[1])] = dict(state)
            case other:
                raise UserError(
                    f"state: {name} holds {type(other).__name__}, and no state that attach has saved; load "
                    "it as it was saved"
                )
    return found


def _refuse_incomplete(state: Mapping[str, Any]) -> None:
    """Raise UserError where a rank's state lacks a key."""
    if missing := [key for key in KEYS if key not in state]:
        raise UserError(
            f"state: it has no {missing[0]}; give what state_dict() of an exchange has returned"
        )


def refuse_reshard(source: str, states: Any, saved: int, workers: int, reshard: str) -> None:
    """Raise UserError where states of ``saved`` workers cannot become those of ``workers``. ``states``: of
    this world, which have the same kinds."""
    each = f"train.reshard: {source} was saved by {saved} workers, each of which keeps"
    refuse_first_of(
        {
            f"train.reshard: one of {', '.join(RESHARD)}, got {reshard!r}": reshard not in RESHARD,
            f"train.reshard: {source} was saved by {saved} workers, this run has {workers}; use "
            "train.reshard=mean (each worker gets the mean of the old residuals)": saved != workers
            and reshard == "refuse",
            f"{each} what exchange.aggregation=sharded has not sent of the shard it owns: that has no mean; "
            "continue with as many workers": saved != workers and _has_owners(states),
            f"{each} errors as codes (wrap=[loco]): these have no mean; continue with as many "
            "workers": saved != workers
            and not all(tensor.is_floating_point() for tensor in tensors_of(states)),
        }
    )


def mean_of(states: list[Any]) -> Any:
    """The nest whose tensors are the means of all nests' (residuals keep their mass, as the model,
    which averages over workers, sees it). Its whole numbers, counts of steps, are the largest."""
    first = states[0]
    if isinstance(first, Tensor):
        every = torch.stack(states)
        return every.mean(0) if every.is_floating_point() else every.amax(0)
    if isinstance(first, dict):
        return {key: mean_of([state[key] for state in states]) for key in first}
    if isinstance(first, list | tuple):
        return [mean_of(list(same)) for same in zip(*states, strict=True)]
    return max(states) if isinstance(first, int) else first


def _has_owners(state: Any) -> bool:
    """Whether a nest holds residuals of compressor/sharded.py."""
    if isinstance(state, dict):
        return OWNER in state or any(map(_has_owners, state.values()))
    return isinstance(state, list) and any(map(_has_owners, state))


class Saves(Protocol):
    """What is needed of `Attached`."""

    def states(self, *, gather: bool) -> State: ...

    def load_state_dict(self, state: State, *, reshard: str = "refuse") -> None: ...


class RankStates:
    """An exchange, as frameworks take objects that they save: ``state_dict`` and ``load_state_dict``, with
    the rank in the keys."""

    def __init__(self, exchange: Saves, *, gather: bool, reshard: str) -> None:
        self._exchange = exchange
        self._gather = gather
        self._reshard = reshard

    def state_dict(self) -> State:
        """A copy on the CPU of this rank's state, or, by a collective on all ranks, of every rank's."""
        return self._exchange.states(gather=self._gather)

    def load_state_dict(self, state_dict: State) -> None:
        """See `Attached.load_state_dict`."""
        self._exchange.load_state_dict(state_dict, reshard=self._reshard)
