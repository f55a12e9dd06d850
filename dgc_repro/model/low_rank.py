"""Pufferfish: some layers of a model become two thin layers each, from a full-rank warm-up on.

Paper: Wang, Agarwal, Papailiopoulos, "Pufferfish: communication-efficient models at no extra cost", MLSys
2021, arXiv:2103.03936, section 3. The whole model trains for a few epochs (``from_epoch``); then the weight
of each chosen layer is factorized by a truncated singular value decomposition,

    W = U S V^T  ->  (U_r S_r^1/2) (S_r^1/2 V_r^T),    r = rank_ratio x min(m, n),

and training goes on with the factors. A convolution with W of [out, in, k, k], taken as [out, in k^2],
becomes a k x k convolution to r channels and a 1x1 convolution to ``out`` channels; a linear layer becomes
two linear layers; each of the eight matrices of an LSTM layer becomes two factors, whose product is the
matrix. The first layers and the output layer stay whole.

Differs: a shortcut convolution stays whole, as in the authors' ResNet-18 (github.com/hwang595/Pufferfish). So
does a layer that the factors would not make smaller. The factors of an LSTM are multiplied before each pass:
they are fewer values to send, but not fewer operations. The projections of an attention layer stay whole.

Letters: m, n = rows and columns of W, r = rank.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from copy import deepcopy
from typing import Annotated, cast

import torch
from torch import Tensor, nn

from dgc_repro.checked import checked, within

Layer = nn.Conv2d | nn.Linear | nn.LSTM
State = tuple[Tensor, Tensor]
GATES = 4  # of an LSTM, one below the other in its matrices
SHORTCUT = "downsample"  # torchvision's name of a ResNet's shortcut
INPUT_FACTOR, OUTPUT_FACTOR = "v", "u"


@checked
class LowRank:
    """``from_epoch``: full-rank epochs before the factorization; None: never factorized. ``rank_ratio``:
    the rank over the smaller side of the matrix. ``keep_first``: layers at the input that stay whole."""

    from_epoch: Annotated[int, within(0), "null trains the whole model to the end"] | None = None
    rank_ratio: Annotated[float, within(above=0, below=1), "0.25 is the paper's"] = 0.25
    keep_first: Annotated[int, within(0), "1 keeps the first layer"] = 1

    def layers(self, model: nn.Module) -> dict[str, Layer]:
        """The layers that are factorized, by name. Raises ValueError where there are none."""
        known = {
            name: layer
            for name, layer in model.named_modules()
            if _is_known(layer) and SHORTCUT not in name
        }
        between = list(known.items())[self.keep_first : -1]
        found = {name: layer for name, layer in between if self._shrinks(layer)}
        if not between:
            raise ValueError(
                f"keep_first: leaves nothing to factorize of {len(known)} layers, of which the last stays "
                f"whole, got {self.keep_first}"
            )
        if not found:
            raise ValueError(
                f"rank_ratio: makes none of {len(between)} layers smaller, got {self.rank_ratio:g}; lower it"
            )
        return found

    def rank(self, rows: int, columns: int) -> int:
        """The rank of the factors of a matrix."""
        return max(1, math.floor(self.rank_ratio * min(rows, columns)))

    def _shrinks(self, layer: Layer) -> bool:
        return all(self.rank(m, n) * (m + n) < m * n for m, n in map(sides, matrices(layer)))

    def factorized(self, model: nn.Module) -> nn.Module:
        """A copy of the model with thin layers. No parameter is shared with the model, and no random number
        is drawn. Raises ValueError where no layer can be factorized."""
        chosen = self.layers(model)
        copy = deepcopy(model)
        for parameter in copy.parameters():
            parameter.grad = None
        for name, layer in chosen.items():
            owner, _, attribute = name.rpartition(".")
            setattr(copy.get_submodule(owner), attribute, self._thin(layer))
        return copy.train(model.training)

    def _thin(self, layer: Layer) -> nn.Module:
        if isinstance(layer, nn.LSTM):
            return ThinLSTM(layer, self)
        (weight,) = matrices(layer)
        rank = self.rank(*sides(weight))
        u, v = factors(weight, rank)
        like = {"device": weight.device, "dtype": weight.dtype}
        biased = layer.bias is not None
        first: nn.Conv2d | nn.Linear
        second: nn.Conv2d | nn.Linear
        if isinstance(layer, nn.Conv2d):
            first = nn.utils.skip_init(
                nn.Conv2d, layer.in_channels, rank, layer.kernel_size, layer.stride, layer.padding,
                layer.dilation, bias=False, padding_mode=layer.padding_mode, **like,
            )  # fmt: skip
            second = nn.utils.skip_init(nn.Conv2d, rank, layer.out_channels, 1, bias=biased, **like)
        else:
            first = nn.utils.skip_init(nn.Linear, layer.in_features, rank, bias=False, **like)
            second = nn.utils.skip_init(nn.Linear, rank, layer.out_features, bias=biased, **like)
        thin = ThinLinear if isinstance(layer, nn.Linear) else nn.Sequential
        with torch.no_grad():
            for part, values in ((first, v), (second, u)):
                part.weight.copy_(values.view_as(part.weight))
            if second.bias is not None and layer.bias is not None:
                second.bias.copy_(layer.bias)
        return thin(OrderedDict({INPUT_FACTOR: first, OUTPUT_FACTOR: second}))


def _is_known(layer: nn.Module) -> bool:
    """Whether it can be factorized. A subclass is left alone: attention reads its output layer's weight."""
    return (
        type(layer) is nn.Linear
        or (type(layer) is nn.Conv2d and layer.groups == 1)
        or (type(layer) is nn.LSTM and layer.proj_size == 0)
    )


def matrices(layer: Layer) -> list[Tensor]:
    """The weights of a layer as matrices [m, n]: of a convolution [out, in k^2], of an LSTM one for each
    gate."""
    if isinstance(layer, nn.LSTM):
        weights = [p for name, p in layer.named_parameters() if name.startswith("weight")]
        return [gate.detach() for weight in weights for gate in weight.chunk(GATES)]
    return [layer.weight.detach().flatten(1)]


def sides(matrix: Tensor) -> tuple[int, int]:
    """Rows and columns."""
    rows, columns = matrix.shape
    return rows, columns


def factors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """U_r S_r^1/2 of [m, r] and S_r^1/2 V_r^T of [r, n] (section 3), computed in float64."""
    u, s, v = torch.linalg.svd(weight.double(), full_matrices=False)
    root = s[:rank].sqrt()
    return (u[:, :rank] * root).to(weight), (root[:, None] * v[:rank]).to(weight)


class ThinLinear(nn.Sequential):
    """Two linear layers in the place of one. torch's encoder layer reads the weight and the bias of that one
    in its evaluation."""

    @property
    def weight(self) -> Tensor:
        first, second = self.children()
        return cast(nn.Linear, second).weight @ cast(nn.Linear, first).weight

    @property
    def bias(self) -> Tensor | None:
        _, second = self.children()
        return cast(nn.Linear, second).bias


class ThinLSTM(nn.Module):
    """An LSTM whose matrices are products of factors. Biases stay as they are."""

    def __init__(self, whole: nn.LSTM, low_rank: LowRank) -> None:
        """Factorize the matrices of ``whole``, which is not changed."""
        super().__init__()
        self.names = list(whole._flat_weights_names)
        # What torch's LSTM is called with after its weights.
        self.called_with = whole.bias, whole.num_layers, float(whole.dropout)
        self.then = whole.bidirectional, whole.batch_first
        self.hidden_size, self.batch_first = whole.hidden_size, whole.batch_first
        self.runs = whole.num_layers * (2 if whole.bidirectional else 1)
        for name in self.names:
            weight = getattr(whole, name).detach()
            if weight.dim() == 1:
                setattr(self, name, nn.Parameter(weight.clone()))
                continue
            rank = low_rank.rank(*sides(weight.chunk(GATES)[0]))
            pairs = [factors(gate, rank) for gate in weight.chunk(GATES)]
            for which, parts in zip(
                (OUTPUT_FACTOR, INPUT_FACTOR), zip(*pairs, strict=True), strict=True
            ):
                setattr(self, f"{name}_{which}", nn.Parameter(torch.stack(parts)))

    def weights(self) -> list[Tensor]:
        """As `nn.LSTM` orders them: each matrix is the product of its factors, gate by gate."""
        return [
            getattr(self, name)
            if hasattr(self, name)
            else (getattr(self, f"{name}_u") @ getattr(self, f"{name}_v")).flatten(0, 1)
            for name in self.names
        ]

    def forward(self, inputs: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """As `nn.LSTM`: (f32[B,T,H], state or None for zeros) -> (f32[B,T,H], state)."""
        if state is None:
            columns = inputs.shape[0 if self.batch_first else 1]
            zeros = inputs.new_zeros(self.runs, columns, self.hidden_size)
            state = zeros, zeros
        found = torch._VF.lstm(
            inputs, state, self.weights(), *self.called_with, self.training, *self.then
        )
        return found[0], found[1:]
