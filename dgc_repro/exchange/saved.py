"""States of an exchange in files, and what they become in a world of another size.

A worker's state is ``{"step": ..., "states": {label: {parameter: tensor}}}``. It does not know groups, so
that it can be loaded where parameters are grouped otherwise. What versions before December 2026 have written,
a nest for each parameter, loads too (`from_nest`).

A state of one rank of a user's loop has the keys ``rank`` and ``world_size``. In a file that several ranks
share, the keys carry the rank: ``{"rank0": (state,), "rank1": (state,)}``. The tuple keeps
torch.distributed.checkpoint from looking inside: it saves and loads the state as one value, and needs no
state of equal shapes to load into.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dgc_repro.compressor.interface import EXCHANGES
from dgc_repro.compressor.sharded import OWNER
from dgc_repro.errors import UserError, refuse_first_of
from dgc_repro.exchange.exchange import Exchange

RESHARD = ("refuse", "mean")
"""Where the states are another number of workers': refuse them, or give each worker the mean of all."""
KEYS = ("world_size", "rank", "exchange", "policy", "ledger")
"""What every state of a rank has."""
State = dict[str, Any]
States = Mapping[str, Mapping[str, Tensor]]


def state_dict(exchange: Exchange, worker: int = 0) -> State:
    """The state of one worker hosted here. The tensors are the exchange's own: copy them, or write them to a
    file, before the next step."""
    return {"step": exchange.step, "states": exchange.states(worker)}


def load_state_dict(exchange: Exchange, saved: Mapping[str, Any], worker: int = 0) -> None:
    """Take over a worker's state. Raises ValueError when it is another compressor's; nothing has changed
    then."""
    is_nest = "tensors" in saved
    given = from_nest(saved) if is_nest else saved
    found: States = given["states"]
    own = {label: held for label, held in exchange.states(worker).items() if held}
    pairs: list[tuple[Tensor, Tensor]] = []
    fits = not {label for label, held in found.items() if held} - own.keys()
    for label, held in own.items():
        fits &= not found.get(label, held).keys() - held.keys()
        for name, tensor in held.items():
            value = found.get(label, {}).get(name)
            if value is None and label.endswith(EXCHANGES):  # an older version counted all steps
                value = torch.full_like(tensor, float(given["step"]))
            if label.endswith(OWNER) and value is not None and not value.numel():
                value = torch.zeros_like(tensor)  # an older version made it on first use
            if value is None or value.dtype != tensor.dtype or not _fits(value, tensor, is_nest):
                fits = False
                break
            pairs.append((tensor, value))
    if not fits:
        raise ValueError(
            "the saved compressor state is of another model, compressor or wrap list, or of another "
            "version of this package"
        )
    exchange.undo()  # an error may have ended the last step
    for tensor, value in pairs:
        tensor.copy_(value.reshape(tensor.shape))
    exchange.step = given["step"]


def _fits(value: Tensor, tensor: Tensor, is_nest: bool) -> bool:
    """Whether a saved value has the shape of a state. Older versions had some states flat."""
    return value.numel() == tensor.numel() if is_nest else value.shape == tensor.shape


def from_nest(saved: Mapping[str, Any]) -> State:
    """A state of a version before December 2026: of each parameter a nest, as its compressor nests."""
    states: dict[str, dict[str, Tensor]] = {}

    def walk(name: str, part: Any, label: str) -> None:
        if isinstance(part, Mapping):
            for key, value in part.items():
                walk(name, value, f"{label}.{key}" if label else str(key))
        elif isinstance(part, list):  # the rungs of a ladder
            for number, rung in enumerate(part):
                walk(name, rung, label.removesuffix("rungs") + f"rung{number}")
        elif isinstance(part, Tensor):
            states.setdefault(label, {})[name] = part
        else:
            states.setdefault(label, {})[name] = torch.tensor(float(part), dtype=torch.float64)

    for name, part in saved["tensors"].items():
        walk(name, part, "")
    return {"step": saved["step"], "states": states}


def mean_of(saved: Sequence[Mapping[str, Any]]) -> State:
    """The state whose tensors are the means of all workers' (residuals keep their mass, as the model, which
    averages over workers, sees it). Numbers, float64, are the largest."""
    every = [from_nest(one) if "tensors" in one else one for one in saved]
    first: States = every[0]["states"]
    states: dict[str, dict[str, Tensor]] = {}
    for label, held in first.items():
        for name in held:
            same = torch.stack([one["states"][label][name] for one in every])
            of_all = same.amax(0) if same.dtype == torch.float64 else same.mean(0)
            states.setdefault(label, {})[name] = of_all
    return {"step": every[0]["step"], "states": states}


def refuse_reshard(source: str, states: States, saved: int, workers: int, reshard: str) -> None:
    """Raise UserError where states of ``saved`` workers cannot become those of ``workers``. ``states``: of
    this world, which have the same labels."""
    each = f"train.reshard: {source} was saved by {saved} workers, each of which keeps"
    has_owners = any(label.endswith(OWNER) for label in states)
    has_codes = any(not t.is_floating_point() for held in states.values() for t in held.values())
    refuse_first_of(
        {
            f"train.reshard: one of {', '.join(RESHARD)}, got {reshard!r}": reshard not in RESHARD,
            f"train.reshard: {source} was saved by {saved} workers, this run has {workers}; use "
            "train.reshard=mean (each worker gets the mean of the old residuals)": saved != workers
            and reshard == "refuse",
            f"{each} what exchange.aggregation=sharded has not sent of the shard it owns: that has no mean; "
            "continue with as many workers": saved != workers and has_owners,
            f"{each} errors as codes (wrap=[loco]): these have no mean; continue with as many "
            "workers": saved != workers and has_codes,
        }
    )


def keyed(states: Mapping[int, State]) -> State:
    """The states in one dict whose keys carry the rank."""
    return {f"rank{rank}": (state,) for rank, state in states.items()}


def states_of(saved: Mapping[str, Any]) -> dict[int, State]:
    """The states in what was saved, by rank, without empty ones. Raises UserError where it is no state."""
    if not isinstance(saved, Mapping):
        raise UserError(
            f"state: it is {type(saved).__name__}; give what state_dict() of an exchange has returned"
        )
    if saved.keys() & {*KEYS}:
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
