"""Streaming DiLoCo: parts of the model are exchanged in turn, while workers go on training.

Paper: Douillard, Donchev, Rush, Kale, Charles, Garrett, Teston, Lacey, McIlroy, Shen, Rame, Szlam, Ranzato,
Barham, "Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch", 2025
(arXiv:2501.18512), algorithm 2. The layers are cut into P fragments (``train.fragments``). H are
``train.local_steps``, tau ``train.delay_steps``, alpha ``train.mixing``. theta are the shared weights, w_i
those of worker i of N. After step t of the workers, for the fragment p whose turn it is:

    Delta = 1/N sum_i (theta_p - w_i,p)               sent where t is a multiple of H / P
    theta_p = OuterOpt(theta_p, Delta)                after step t + tau: SGD with Nesterov momentum
    w_i,p = alpha w_i,p + (1 - alpha) theta_p         at once

Each fragment is sent once in H steps. Fragments are strided, the paper's choice: fragment p has the layers p,
p + P, p + 2 P and so on. A layer is a block of a list (``layers.3``), or what stands beside such lists
(embedding, head). The paper quantizes outer gradients to 4-bit floats; here the compressor does what it does
with gradients, such as ``compressor=uniform compressor.bits=4``.

Asks: what the compressor asks, of one fragment an exchange. A real process begins the first collective of an
exchange at once and waits for it after tau steps.
Differs: the end of an epoch ends the delay too, so that nothing is under way in a checkpoint. Evaluation,
policies and checkpoints see theta. Where nothing is under way at the end of a round, the ranks share their
losses alone. Embeddings and the head are layers like others. Time that is modelled does not know of the
overlap. Compared by reading with torchft's local_sgd.py: the same order of operations. There a fragment is
sent tau steps before a multiple of H / P and arrives at the multiple; fragments are modules that the user
names.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from dgc_repro.exchange.junction import Parameters
from dgc_repro.train.local_steps import LocalSteps
from dgc_repro.train.settings import TrainSettings


def layers(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of parameters by their layer, in order: up to the first number in the name, else its first
    part."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        numbers = [place for place, part in enumerate(parts) if part.isdigit()]
        layer = ".".join(parts[: numbers[0] + 1 if numbers else 1])
        found.setdefault(layer, []).append(name)
    return found


def strided(names: Iterable[str], fragments: int) -> list[list[str]]:
    """The names of the parameters of each fragment."""
    by_layer = list(layers(names).values())
    return [list(itertools.chain(*by_layer[first::fragments])) for first in range(fragments)]


class Streaming(LocalSteps):
    """The weights of the workers hosted here, of which each keeps its own from round to round.

    A round is the time between two steps after which ranks agree. Between rounds the module holds theta, and
    all weights of the workers are kept here."""

    def __init__(
        self,
        parameters: Parameters,
        inner: Sequence[torch.optim.Optimizer],
        settings: TrainSettings,
    ) -> None:
        """``parameters``: those of the module that learn; ``inner``: an optimizer of them for each worker."""
        super().__init__(parameters.values(), inner)
        self._every, self._mixing = settings.steps_between_fragments, settings.mixing
        places = {name: place for place, name in enumerate(parameters)}
        self._names = strided(parameters, settings.fragments)
        self._places = [[places[name] for name in names] for names in self._names]
        self._fragment = 0  # the one that is under way, or was last

    def sends(self, step: int, ends: bool) -> bool:
        if step % self._every:
            return False
        self._fragment = (step // self._every - 1) % len(self._places)
        self.under_way = True
        return True

    @property
    def sent_names(self) -> Collection[str]:
        return self._names[self._fragment]

    @torch.no_grad()
    def leave_outer_gradient(self) -> None:
        """Put theta - w of this fragment into ``param.grad``, and nothing into the others."""
        for parameter in self._parameters:
            parameter.grad = None
        for place in self._places[self._fragment]:
            parameter = self._parameters[place]
            parameter.grad = self._shared[place] - parameter

    @torch.no_grad()
    def end_round(self) -> None:
        """Put theta into the module, and keep the weights of all workers."""
        assert self._here is not None
        self._own[self._here] = self._copy()
        torch._foreach_copy_(self._parameters, self._shared)
        self._shared, self._here = [], None

    @torch.no_grad()
    def merge(self) -> None:
        """Mix what has arrived into the weights of all workers."""
        if self.under_way:
            places = self._places[self._fragment]
            theta = [self._parameters[place] for place in places]
            for own in self._own.values():
                torch._foreach_lerp_([own[place] for place in places], theta, 1 - self._mixing)
        self.under_way = False

    def drop(self) -> None:
        super().drop()
        self._own.clear()
        self.under_way = False

    def state_dict(self, worker: int) -> list[Tensor]:
        """The weights of a worker, between rounds; empty where they are theta."""
        return self._own.get(worker, [])

    def load_state_dict(self, weights: Sequence[Tensor], worker: int) -> None:
        """Take over a worker's weights."""
        pairs = zip(self._parameters, weights, strict=bool(weights))
        own = [torch.empty_like(parameter).copy_(saved) for parameter, saved in pairs]
        if own:
            self._own[worker] = own
