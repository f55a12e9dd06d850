"""Models and networks that `recommend` knows by name: counted and stated numbers, nothing measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dgc_repro.errors import UserError
from dgc_repro.files import parsed_yaml, text
from dgc_repro.launch.typed import made, nearest
from dgc_repro.names import conf_dir
from dgc_repro.network.profile import Network
from dgc_repro.paper.benchmark.speed import Sizes

IMAGES, WORDS = "images of 32 x 32", "sequences of 35 words"


@dataclass(frozen=True)
class Model:
    """A model of conf/model at full size. ``workload``: of the benchmark, the one that is like it; ``gflop``:
    counted, of forward and backward of 32 samples."""

    workload: str
    sizes: Sizes
    gflop: float

    @property
    def samples(self) -> str:
        """What a batch is made of."""
        return IMAGES if self.workload == "low" else WORDS


MODELS = {
    "resnet18": Model("low", Sizes(11_173_962, 9_610, 36_325), 106.528),
    "resnet101": Model("low", Sizes(44_549_160, 106_344, 169_531), 30.800),
    "vgg16": Model("low", Sizes(138_357_544, 13_416, 80_131), 83.758),
    "lstm": Model("lstm", Sizes(66_034_000, 34_000, 53_000), 341.568),
    "transformer": Model("transformer", Sizes(6_710_032, 17_168, 28_704), 28.014),
}


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


def model_of(name: str, parameters: float | None) -> Model:
    """A model of the table; with ``parameters``, one like it of so many. Raises UserError."""
    if name not in MODELS:
        raise UserError(
            f"model: no {name!r}; {nearest(name, MODELS)} Of another model give the one that is most like "
            "it, and parameters="
        )
    found = MODELS[name]
    if parameters is None:
        return found
    larger = parameters / found.sizes.parameters
    sizes = found.sizes
    # Factors of low rank grow with the sides of the matrices.
    scaled = Sizes(parameters, larger * sizes.vectors, larger**0.5 * sizes.factors)
    return Model(found.workload, scaled, larger * found.gflop)
