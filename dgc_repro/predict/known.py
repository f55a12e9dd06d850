"""Models and networks that `recommend` knows by name: counted and stated numbers, nothing measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dgc_repro.errors import UserError
from dgc_repro.files import parsed_yaml, text
from dgc_repro.launch.overrides import made, nearest
from dgc_repro.names import conf_dir
from dgc_repro.network.profile import Network
from dgc_repro.paper.benchmark.speed import Sizes

WORDS = "sequences of 35 words"
SIDES = (32, 224)
"""Pixels of a side of an image: CIFAR's and ImageNet's."""


@dataclass(frozen=True)
class Model:
    """A model of conf/model at full size. ``workload``: of the benchmark, the one that is like it; ``gflop``:
    counted, of forward and backward of 32 samples; ``side``: pixels of a side of an image, None for words."""

    workload: str
    sizes: Sizes
    gflop: float
    side: int | None = None

    @property
    def samples(self) -> str:
        """What a batch is made of."""
        return WORDS if self.side is None else f"images of {self.side} x {self.side}"


def _on_images(first: Model, *others: Model) -> dict[int | None, Model]:
    return {one.side: one for one in (first, *others)}


_RESNET101 = Sizes(44_549_160, 106_344, 169_531)
_VGG16 = Sizes(138_357_544, 13_416, 80_131)
MODELS: dict[str, dict[int | None, Model]] = {
    "resnet18": _on_images(
        Model("low", Sizes(11_173_962, 9_610, 36_325), 106.528, 32),
        Model("low", Sizes(11_689_512, 10_600, 37_435), 340.749, 224),
    ),
    "resnet101": _on_images(
        Model("low", _RESNET101, 1490.317, 224), Model("low", _RESNET101, 30.800, 32)
    ),
    "vgg16": _on_images(Model("low", _VGG16, 2964.742, 224), Model("low", _VGG16, 83.758, 32)),
    "lstm": {None: Model("lstm", Sizes(66_034_000, 34_000, 53_000), 341.568)},
    "transformer": {None: Model("transformer", Sizes(6_710_032, 17_168, 28_704), 28.014)},
}
"""By name and side of an image, the usual one first, for which the stem in conf/model is made. ResNet18 has
CIFAR's stem and 10 classes at 32 x 32, and ImageNet's stem and 1,000 classes at 224 x 224."""


def usual_sides() -> dict[str, int]:
    """The side of an image that each model on images has by default."""
    sides = {name: next(iter(of)) for name, of in MODELS.items()}
    return {name: side for name, side in sides.items() if side is not None}


def network_of(settings: Mapping[str, str], runs: Path) -> Network:
    """The network of ``network=<name>`` and ``network.<key>=<value>``: of conf/network, a file, or one that
    ``calibrate`` wrote below ``runs``. Raises UserError."""
    name = settings.get("network", "none")
    files = (*conf_dir().glob("network/*.yaml"), *runs.glob("networks/*.yaml"))
    known = {path.stem: path for path in files}
    path = known.get(name, Path(name))
    if not path.is_file():
        if path.suffix == ".yaml":
            raise UserError(f"network: no file {name}; python -m dgc_repro calibrate writes one")
        raise UserError(f"network: no {name!r}; {nearest(name, known.keys() - {'none'})}")
    own = {key.removeprefix("network."): text for key, text in settings.items() if "." in key}
    try:
        written = parsed_yaml(text(path.resolve()))
        written |= {key: parsed_yaml(value) for key, value in own.items()}
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"network: {name} is no profile ({' '.join(str(error).split())})"
        ) from error
    written.pop("_target_", None)
    network = made(Network, written, "network")
    if not network.known:
        raise UserError(
            "network: name one, such as network=ethernet_1gbit or network.rate=100mbit; python -m dgc_repro "
            "calibrate measures the links at hand"
        )
    for key, given in (
        ("loss", network.loss), ("schedule", network.schedule), ("as_workers", network.as_workers),
    ):  # fmt: skip
        if given:
            raise UserError(f"network.{key}: the model has none; leave it out, got {given!r}")
    return network


def model_of(name: str, side: int | None, parameters: float | None) -> Model:
    """A model of the table, on images of a side (None: the usual one); with ``parameters``, one like it of so
    many. Raises UserError."""
    if name not in MODELS:
        raise UserError(
            f"model: no {name!r}; {nearest(name, MODELS)} Of another model give the one that is most like "
            "it, and parameters="
        )
    known = MODELS[name]
    if side is not None and None in known:
        raise UserError(f"image: {name} reads {WORDS}; leave image out, got {side}")
    if side is not None and side not in known:
        raise UserError(
            f"image: {' or '.join(map(str, sorted(SIDES)))}, got {side}; of another size give compute_ms="
        )
    found = next(iter(known.values())) if side is None else known[side]
    if parameters is None:
        return found
    larger = parameters / found.sizes.parameters
    sizes = found.sizes
    # Factors of low rank grow with the sides of the matrices.
    scaled = Sizes(parameters, larger * sizes.vectors, larger**0.5 * sizes.factors)
    return replace(found, sizes=scaled, gflop=larger * found.gflop)
