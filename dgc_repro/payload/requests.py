"""What a compressor may ask of the other workers. It yields a request and is resumed with the answer.

=================  ===============================================  ==============================
request            answer                                           one collective a round
=================  ===============================================  ==============================
`Mean`             mean over workers, same shape and dtype          allreduce (sum of x / N)
`Max`              element-wise maximum over workers                allreduce
`Gather`           payloads of all workers, rank order; one layout  allgather
`GatherRagged`     the same; lengths of the parts may differ        allgather of sizes, then parts
`AllToAll`         what every worker has for this one               all-to-all (of sizes, then parts)
`Choose`           the rung the policy picks                        allreduce of the energies
=================  ===============================================  ==============================

Answers live in reused buffers, shared between simulated workers: read them, do not overwrite them;
they are valid until the exchange ends. What is asked about is read before the generator is resumed,
never after.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import Payload


@dataclass(frozen=True, slots=True)
class Mean:
    """Average a floating-point tensor over workers; the answer is a tensor of the same shape. Of a batch
    (of one type) the answer is a list of tensors.

    ``in_place``: the asker has no more use for the tensor's values, the answer may take its storage.
    ``names``: of the tensors of a batch that one flat tensor holds something of.
    """

    tensor: Tensor | Batch
    in_place: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Max:
    """The element-wise maximum over workers. ``names``: as of `Mean`."""

    tensor: Tensor | Batch
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gather:
    """Everybody's payload, where all payloads have parts of the same sizes. Answer: `Gathered`.

    ``layouts``: where the tensors, and so the sizes, differ from rank to rank in a known way, a payload laid
    out as each rank's (its values do not matter); shorter ones are filled up to the longest.
    """

    payload: Payload
    layouts: tuple[Payload, ...] | None = None
    ragged: ClassVar[bool] = False

    def expects(self, rank: int) -> Payload:
        """A payload laid out as the one that comes from a rank."""
        return self.payload if self.layouts is None else self.layouts[rank]

    def made(self) -> Gather:
        """The same with a payload that is made, if it was `Later`."""
        return self


@dataclass(slots=True)
class Later:
    """A payload that cannot be made before the host has read its size from a GPU. ``unread``: the size
    (`Unread` of kernel/gpu/launch.py), which may be read together with other numbers."""

    make: Callable[[], Payload]
    unread: Any
    _made: Payload | None = field(default=None, init=False)

    def made(self) -> Payload:
        """The payload; the first call makes it."""
        if self._made is None:
            self._made = self.make()
        return self._made


@dataclass(frozen=True, slots=True)
class GatherRagged(Gather):
    """Everybody's payload, where the lengths of parts differ: they travel first. Answer: `Gathered`."""

    payload: Payload | Later  # type: ignore[assignment]
    ragged: ClassVar[bool] = True

    @property
    def is_later(self) -> bool:
        """Whether the payload is not made yet."""
        return isinstance(self.payload, Later)

    def made(self) -> GatherRagged:
        payload = self.payload
        return replace(self, payload=payload.made()) if isinstance(payload, Later) else self


@dataclass(frozen=True, slots=True)
class AllToAll:
    """A payload for each worker, and one from each. Answer: list by source rank of payloads, None
    where nothing comes; what this worker has for itself is its own payload, and is not sent.

    ``payloads``: by destination rank, None for nothing. ``expected``: by source rank, a payload
    laid out as the one that comes from there (its values do not matter), None where nothing comes.
    ``ragged``: the lengths of parts are not known beforehand, they travel first.
    ``names``: of the tensors of a batch, for messages.
    """

    payloads: tuple[Payload | None, ...]
    expected: tuple[Payload | None, ...]
    ragged: bool = False
    names: tuple[str, ...] = ()

    def expects(self, rank: int) -> Payload | None:
        """As of `Gather`; None where nothing comes."""
        return self.expected[rank]


@dataclass(frozen=True, slots=True)
class Choose:
    """Ask the policy for a rung after it has seen this step's gradient. Answer: int.

    ``energies``: f64[3] or f64[6], of this tensor and worker. The first three are ||g||^2 and the energy
    ||g||^2 - ||g - C(g)||^2 that the weakest rung and the candidate explain, where g includes the residual.
    (The explained energy of a sparsifier is ||C(g)||^2. It does not count a quantizer's noise as signal.)
    With `Plan.norms` three L2 norms follow: of the gradient without its residual, and the square roots of
    the two explained energies. All are summed over tensors and averaged over workers before the policy sees
    them, so that every rank gets the same answer. Of a batch: f64[tensors, 3 or 6], and the ``names``.
    """

    energies: Tensor
    names: tuple[str, ...] = ()


Request = Mean | Max | Gather | GatherRagged | AllToAll | Choose


@dataclass(frozen=True, slots=True)
class Many:
    """Several requests at once, each by a key of its own. Answer: a dict by the same keys."""

    asked: Mapping[Any, Request | Many]


Exchange = Generator[Request | Many, Any, "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one exchange of one tensor ended; of a batch, lists in its order.

    ``mean``: the average over workers of what was sent, the shape of the tensor. ``own``: this
    worker's payload as sent. ``state``: the state for the next step.
    """

    mean: Any  # Tensor, or Sequence[Tensor]
    own: Any  # Payload; of a batch, one that takes a batch
    state: Any  # dict[str, Any], or a list of them


def together(
    exchanges: Mapping[Any, Exchange],
) -> Generator[Request | Many, Any, dict[Any, Outcome]]:
    """Advance several exchanges side by side; their outcomes by the same keys."""
    if len(exchanges) == 1:
        ((key, exchange),) = exchanges.items()
        if not isinstance(key, str):  # the name of a tensor is kept, for what ranks are told
            return {key: (yield from exchange)}
    outcomes: dict[Any, Outcome] = {}
    answers: dict[Any, Any] = dict.fromkeys(exchanges)
    try:
        while answers:
            asked: dict[Any, Request | Many] = {}
            for key, answer in answers.items():
                try:
                    asked[key] = exchanges[key].send(answer)
                except StopIteration as end:
                    outcomes[key] = end.value
            answers = (yield Many(asked)) if asked else {}
    finally:
        for exchange in exchanges.values():
            exchange.close()
    return outcomes
