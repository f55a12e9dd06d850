"""``calibrate``: measure the links at hand, write a profile that ``network=<name>`` reads.

``python -m dgc_repro calibrate`` between two local workers; ``launch.workers=4``; in a lab with
``launch=netlab network.rate=1gbit``; on GPUs of their own over nccl. Each collective of a run is timed
from 64 bytes to 64 MB, and network/fit.py makes alpha, beta and overheads of it.
"""

from __future__ import annotations

import contextlib
import datetime
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from dgc_repro.bench.collectives import ALLREDUCE, MEASURED, Timed, measure, slowest
from dgc_repro.bench.world import RanksFailed, is_first, on_ranks
from dgc_repro.errors import UserError
from dgc_repro.launch import cli_args, environment
from dgc_repro.launch.build import SECTIONS, choose_device, validate
from dgc_repro.launch.networks import FOLDER, TARGET, named_network
from dgc_repro.launch.overrides import composed
from dgc_repro.network.cost import Costs
from dgc_repro.network.fit import Fit, Point, fit
from dgc_repro.network.lab import Lab
from dgc_repro.network.profile import Network
from dgc_repro.network.units import seconds
from dgc_repro.paper import plot
from dgc_repro.progress import Progress, announce

KEYS: cli_args.Keys = {
    "name": (cli_args.some_text, "calibrated"),
    "sizes": (cli_args.sizes_range, cli_args.sizes_range("sizes", "64..64mb")),
    "repeats": (cli_args.count, 15),
    "seconds": (cli_args.positive, 3.0),
}
"""``repeats``: at most, of each size; ``seconds``: for all repeats of a size; a size of which three would
take longer is left out, and larger ones too; never the first two."""
PROBE_BYTES = 1 << 20
CAPTION = 88  # letters that fit under the figure's title
LOOKS = {
    collective: plot.Look(collective, colour, marker)
    for collective, colour, marker in zip(
        MEASURED, (plot.BLACK, plot.BLUE, plot.ORANGE, plot.GREEN), "o^sv", strict=True
    )
}


def calibrate(arguments: Sequence[str]) -> Path:
    """Do what the command line says; the profile's path. Raises UserError."""
    settings, overrides = cli_args.read(arguments, "calibrate", KEYS, SECTIONS)
    config = composed(overrides)
    validate(config)
    workers = config["launch"]["workers"]
    if workers < 2:
        raise UserError(f"launch.workers: two have a link between them, got {workers}")
    if (kind := config["launch"]["kind"]) in ("simulated", "slurm"):
        raise UserError(f"launch.kind: {kind} has no links here; use launch=local or netlab")
    network = named_network(config)
    in_lab = config["launch"]["kind"] == "netlab"
    if not in_lab and network is not None:
        raise UserError(
            "network: the links at hand are measured; network=... is for launch=netlab, which makes links"
        )
    if network is not None and network.schedule:
        raise UserError(
            "network.schedule: links are calibrated at one rate; give it as network.rate, and calibrate "
            "once a rate"
        )
    if len(settings["sizes"]) < 2:
        raise UserError(
            f"sizes: two of each collective are the fewest for a line, got {settings['sizes']}"
        )
    busy = environment.busy_cores()
    print(f"calibrate: starting {workers} workers, about 10 s; then an estimate", flush=True)
    points, where, notes = measured(config, network, settings)
    hardware = f"{environment.cpu_model()}, {environment.available_cores()} cores"
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    rate = min(network.worker_rates(workers)) if in_lab and network is not None else None
    source = "; ".join([f"calibrated {date}: {workers} workers, {where}, {hardware}", *notes])
    if busy > 0.25:
        source += f"; provisional, {busy:.1f} cores were busy with other work"
    folder = Path(config["paths"]["runs"]) / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        raw = folder / f"{settings['name']}.csv"  # points that cannot be fitted are kept too
        pd.DataFrame(points).assign(error=None).to_csv(raw, index=False)
        try:
            found = fit(points, workers, rate, source)
        except ValueError as error:
            raise UserError(f"{error} (the points are in {raw})") from error
        found.frame.to_csv(raw, index=False)
        path = write(found, folder, settings["name"])
        plot.save(figure(found, workers), folder, settings["name"])
    except OSError as error:
        raise UserError(f"paths.runs: cannot write to {folder} ({error.strerror})") from error
    report(found, path, settings["name"])
    return path


def measured(
    config: Mapping[str, Any], network: Network | None, settings: Mapping[str, Any]
) -> tuple[list[Point], str, Sequence[str]]:
    """Points of live workers, where these were, and notes on their links."""
    launch = config["launch"]
    workers = launch["workers"]
    device, backend = choose_device(config)
    where, notes = f"{backend} on this machine", []
    with contextlib.ExitStack() as stack:
        lab = None
        if launch["kind"] == "netlab":
            assert network is not None, "validated: a lab has rates"
            rates = network.worker_rates(workers)
            latency = seconds("latency", network.latency)
            links = Lab(rates, latency, network.loss, name="calibrate")
            lab = stack.enter_context(links)
            where, notes = f"{backend} in a lab of {min(rates) / 1e6:g} Mbit/s links", lab.notes
        for note in notes:
            print(f"note: {note}", flush=True)
        try:
            points = on_ranks(
                *(on_rank, settings, device),
                workers=workers,
                lab=lab,
                timeout_seconds=launch["timeout_seconds"],
                backend=backend,
            )
        except RanksFailed as error:
            raise UserError(f"launch: {error}") from error
    return points, where, notes


def on_rank(settings: Mapping[str, Any], device_type: str) -> list[Point]:
    """Print an estimate, and time the collectives."""
    timed = partial(slowest, device_type=device_type)
    expected = expected_seconds(timed, settings)
    total = len(MEASURED) * sum(expected.values())
    if is_first():
        announce("calibrate", total)
    with Progress("calibrate", total, quiet=not is_first()) as progress:
        return measure(
            settings["sizes"],
            settings["repeats"],
            settings["seconds"],
            timed,
            lambda point: progress.advance(expected[point.payload_bytes], point_text(point)),
        )


def point_text(point: Point) -> str:
    """A measured point in words."""
    return f"{point.collective} {point.payload_bytes:,} B {1e3 * point.seconds:.3f} ms"


def expected_seconds(timed: Timed, settings: Mapping[str, Any]) -> dict[int, float]:
    """About how long one collective takes, by bytes: from an allreduce of the smallest size and one of about
    a MB."""
    sizes: list[int] = settings["sizes"]
    small = min(sizes)
    large = max(size for size in sizes if size <= max(PROBE_BYTES, small))
    latency, slow = (timed(ALLREDUCE, size, 1)[0] for size in (small, large))
    a_byte = max(0.0, slow - latency) / max(1, large - small)
    repeats: int = settings["repeats"]
    seconds: float = settings["seconds"]
    return {size: min(seconds, repeats * (latency + a_byte * (size - small))) for size in sizes}


def write(found: Fit, folder: Path, name: str) -> Path:
    """The profile, ``<name>.yaml``."""
    network = found.network
    settings = {
        TARGET: "dgc_repro.network.profile.Network",
        "rate": network.rate,
        "latency": network.latency,
        "efficiency": network.efficiency,
        "software": {c: dict(stated) for c, stated in (network.software or {}).items()},
        "source": network.source,
    }
    errors = found.frame["error"].abs().groupby(found.frame["collective"], sort=False)
    by_collective = errors.agg(["median", "max"]).itertuples()
    head = [
        network.source,
        error_text(found),
        *(f"  {c}: median {100 * m:.1f} %, worst {100 * w:.0f} %" for c, m, w in by_collective),
    ]
    lines = [*(f"# {line}" for line in head), yaml.safe_dump(settings, sort_keys=False)]
    path = folder / f"{name}.yaml"
    path.write_text("\n".join(lines), "utf-8")
    return path


def error_text(found: Fit) -> str:
    """How well the model fits the points."""
    return (
        f"{len(found.points)} points; error of the fit: median {100 * found.median_error:.1f} %, "
        f"worst {100 * found.worst_error:.0f} %"
    )


def report(found: Fit, path: Path, name: str) -> None:
    """Print what was found."""
    network = found.network
    print(f"rate {network.rate}, latency {network.latency}")
    for collective, stated in (network.software or {}).items():
        print(f"  {collective}: " + ", ".join(f"{k} {v}" for k, v in stated.items()))
    print(error_text(found))
    print(f"written: {path} (and .csv, .svg, .png); use it with network={name}", flush=True)


def figure(found: Fit, workers: int) -> Figure:
    """Measured points, the model's lines; below, the errors."""
    costs = Costs(found.network, workers)
    with plot.style():
        drawn = Figure(figsize=(6.4, 5.4), layout="constrained")
        times, errors = drawn.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for collective, own in found.frame.groupby("collective", sort=False):
            look, sizes = LOOKS[str(collective)], own["payload_bytes"]
            times.plot(sizes, 1e3 * own["seconds"], **look.line | {"linestyle": ""})
            steps = np.geomspace(sizes.min(), sizes.max(), 200)
            modelled = [1e3 * costs.seconds(look.label, size) for size in steps]
            times.plot(steps, modelled, color=look.colour)
            errors.plot(sizes, 100 * own["error"], **look.line)
        times.set_xscale("log")
        plot.name_axes(times, "", "ms", log="y")
        times.legend()
        errors.axhline(0, color=plot.BLACK, linewidth=0.8)
        plot.name_axes(errors, "payload bytes (log)", "model's error, %")
        caption = textwrap.shorten(found.network.source, CAPTION, placeholder=" ...")
        plot.title(times, "Collectives: measured (points), fitted (lines)", caption)
    return drawn
