"""``reproduce <paper>/<artifact>``: make the runs an artifact needs, publish, print.

``conf/artifact/<paper>/<artifact>.yaml`` lists the runs as Hydra sweeps. Finished runs are found by
their config and not made again; seeds are the outer loop, so that every row has one number early.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from dgc_repro.errors import UserError
from dgc_repro.launch.components import nearest
from dgc_repro.launch.paths import conf_dir
from dgc_repro.launch.single import run_config
from dgc_repro.report.publish import publish, show
from dgc_repro.report.render import console_of_width


def reproduce(arguments: Sequence[str]) -> None:
    """``arguments``: the artifact, then overrides for all of its runs (``scale=small seed=1``)."""
    known = artifacts()
    if not arguments or arguments[0] not in known:
        asked = arguments[0] if arguments else ""
        raise UserError(f"reproduce: no artifact {asked!r}; {nearest(asked, known)}")
    name, given = arguments[0], arguments[1:]
    jobs = runs_of(name, given)
    folders: list[Path] = []
    for number, (config, overrides) in enumerate(jobs, start=1):
        row, seed = config["experiment"]["row"], config["seed"]
        print(f"[{number}/{len(jobs)}] {name} {row}, seed {seed}", flush=True)
        folders.append(run_config(config, overrides))
    config = jobs[0][0]
    paper, artifact = name.split("/")
    results = Path(config["paths"]["results"])
    published = publish(folders, paper, artifact, config["scale"]["name"], results)
    show(published, console_of_width())
    print(f"published in {published}", flush=True)


def artifacts() -> list[str]:
    """All ``<paper>/<artifact>`` there are."""
    root = conf_dir() / "artifact"
    return sorted(
        path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")
    )


def runs_of(name: str, given: Sequence[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """Resolved configs of all runs, seeds outermost, and the overrides each was composed from."""
    artifact = OmegaConf.load(conf_dir() / "artifact" / f"{name}.yaml")
    combinations: list[list[str]] = []
    for sweep in artifact.sweeps:
        parsed = OverridesParser.create().parse_overrides(str(sweep).split())
        for batch in BasicSweeper.split_arguments(parsed, None):
            combinations += [list(job) for job in batch]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        scale = compose("config", [*combinations[0], *given]).scale.name
        sized = [*artifact.sizes[scale], *given]
        return [
            (_plain(compose("config", [*combination, *sized, f"seed={seed}"])), sized)
            for seed in _seeds(combinations[0], sized)
            for combination in combinations
        ]


def _seeds(combination: Sequence[str], given: Sequence[str]) -> list[int]:
    """The seed on the command line, or the scale's seeds."""
    config = compose("config", [*combination, *given])
    if any(override.startswith("seed=") for override in given):
        return [int(config.seed)]
    return [int(seed) for seed in config.scale.seeds]


def _plain(config: DictConfig) -> dict[str, Any]:
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    return plain
