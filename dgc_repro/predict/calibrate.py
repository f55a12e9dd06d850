"""``calibrate``: measure the links at hand, write a profile that ``network=<name>`` reads.

``python -m dgc_repro calibrate`` between two local workers; ``launch.workers=4``; in a lab with
``launch=netlab network.rate=1gbit``; on GPUs of their own over nccl. Each collective of a run is timed
from 64 bytes to 64 MB, and network/fit.py makes alpha, beta and overheads of it.
"""

from __future__ import annotations

import contextlib
import datetime
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml

from dgc_repro import files
from dgc_repro.bench.rounds import rounds, timed
from dgc_repro.bench.world import RanksFailed, is_first, on_ranks
from dgc_repro.errors import UserError
from dgc_repro.exchange.world import BROADCAST, Wait, World
from dgc_repro.launch import cli_args, environment
from dgc_repro.launch.devices import choose_device
from dgc_repro.launch.networks import named_network
from dgc_repro.launch.overrides import NETWORKS, TARGET, composed
from dgc_repro.launch.rules import validate
from dgc_repro.launch.settings import NAMES
from dgc_repro.network.fit import Fit, Point, fit
from dgc_repro.network.lab import Lab
from dgc_repro.network.profile import Network
from dgc_repro.network.units import seconds
from dgc_repro.progress import Progress

KEYS: cli_args.Keys = {
    "name": (cli_args.some_text, "calibrated", "The profile's name, for network=."),
    "sizes": (
        *(cli_args.sizes_range, cli_args.sizes_range("sizes", "64..64mb")),
        "Bytes, as 64..64mb (in steps of 4) or 1kb,1mb.",
    ),
    "repeats": (cli_args.count, 15, "Measurements of each size, at most."),
    "seconds": (
        *(cli_args.positive, 3.0),
        "For all measurements of a size. A size of which three would take longer is left out, with all "
        "larger ones, but not the first two.",
    ),
}
MEASURED = ("allreduce", "allgather", "alltoall", "broadcast")
WARMUP, FEWEST, FEWEST_SIZES = 2, 3, 2
BAD_FIT = 0.2
"""A median error of the fit from which `calibrate` warns."""
Timed = Callable[[str, int, int], list[float]]
"""(collective, payload bytes, repeats) -> seconds of each repeat."""


def calibrate(arguments: Sequence[str]) -> Path:
    """Do what the command line says; the profile's path. Raises UserError."""
    settings, overrides = cli_args.read(arguments, "calibrate", KEYS, NAMES)
    config = composed(overrides)
    validate(config)
    workers, kind = config["launch"]["workers"], config["launch"]["kind"]
    network = named_network(config)
    for is_wrong, message in (
        (workers < 2, f"launch.workers: two have a link between them, got {workers}"),
        (
            kind in ("simulated", "slurm"),
            f"launch.kind: {kind} has no links here; use launch=local or netlab",
        ),
        (
            kind != "netlab" and network is not None,
            "network: the links at hand are measured; network=... is for launch=netlab, which makes links",
        ),
        (
            network is not None and bool(network.schedule),
            "network.schedule: links are calibrated at one rate; give it as network.rate, and calibrate "
            "once a rate",
        ),
        (
            len(settings["sizes"]) < FEWEST_SIZES,
            f"sizes: two of each collective are the fewest for a line, got {settings['sizes']}",
        ),
    ):
        if is_wrong:
            raise UserError(message)
    busy = environment.busy_cores()
    print(f"calibrate: starting {workers} workers, about 10 s; then about a minute", flush=True)
    points, where, notes = measured(config, network, settings)
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    hardware = f"{environment.cpu_model()}, {environment.available_cores()} cores"
    source = "; ".join([f"calibrated {date}: {workers} workers, {where}, {hardware}", *notes])
    if busy > 0.25:
        source += f"; provisional, {busy:.1f} cores were busy with other work"
    rate = None if network is None else min(network.worker_rates(workers))
    path = Path(config["paths"]["runs"]) / NETWORKS / f"{settings['name']}.yaml"
    raw = path.with_suffix(".csv")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(raw, pd.DataFrame(points).assign(error=None).to_csv(index=False).encode())
        try:
            found = fit(points, workers, rate, source)
        except ValueError as error:
            raise UserError(f"{error} (the points are in {raw})") from error
        if found.median_error > BAD_FIT:
            note = f"{source}; the fit is off by {found.median_error:.0%} in the median"
            found = replace(found, network=replace(found.network, source=note))
        files.replace(raw, found.frame.to_csv(index=False).encode())
        files.replace(path, profile_text(found).encode())
    except OSError as error:
        raise UserError(f"paths.runs: cannot write to {path.parent} ({error.strerror})") from error
    print(f"rate {found.network.rate}, latency {found.network.latency}; {error_text(found)}")
    if found.median_error > BAD_FIT:
        print(
            f"WARNING: the fit is off by {found.median_error:.0%} in the median, so times on this network "
            "are guesses; calibrate on an idle machine, or with sizes= near those of your payloads"
        )
    print(f"written: {path} (and .csv); use it with network={settings['name']}", flush=True)
    return path


def measured(
    config: Mapping[str, Any], network: Network | None, settings: Mapping[str, Any]
) -> tuple[list[Point], str, Sequence[str]]:
    """Points of live workers, where these were, and notes on their links."""
    workers = config["launch"]["workers"]
    device, backend, note = choose_device(config)
    if note:
        print(f"note: {note}", flush=True)
    where, lab = f"{backend} on this machine", None
    with contextlib.ExitStack() as stack:
        if network is not None:
            rates = network.worker_rates(workers)
            links = Lab(rates, seconds("latency", network.latency), network.loss)
            lab = stack.enter_context(links)
            where = f"{backend} in a lab of {min(rates) / 1e6:g} Mbit/s links"
        notes = [] if lab is None else lab.notes
        for note in notes:
            print(f"note: {note}", flush=True)
        try:
            points = on_ranks(
                *(on_rank, settings, device),
                workers=workers,
                lab=lab,
                timeout_seconds=config["launch"]["timeout_seconds"],
                backend=backend,
            )
        except RanksFailed as error:
            raise UserError(f"launch: {error}") from error
    return points, where, notes


def on_rank(settings: Mapping[str, Any], device_type: str) -> list[Point]:
    """Time the collectives."""
    total = len(MEASURED) * len(settings["sizes"])
    with Progress("calibrate", total, quiet=not is_first()) as progress:

        def done(point: Point) -> None:
            text = f"{point.collective} {point.payload_bytes:,} B {1e3 * point.seconds:.3f} ms"
            progress.advance(now=text)

        ask = partial(slowest, device_type=device_type)
        return measure(settings["sizes"], settings["repeats"], settings["seconds"], ask, done)


def measure(
    sizes: Sequence[int],
    repeats: int,
    seconds: float,
    ask: Timed,
    done: Callable[[Point], None] = lambda _: None,
) -> list[Point]:
    """The median of each collective and size, as `KEYS` says. ``done``: called with each point."""
    points = []
    for collective in MEASURED:
        slope = 0.0  # seconds a byte, of the last size: of the first one that is mostly latency
        for place, size in enumerate(sizes):
            if place >= FEWEST_SIZES and FEWEST * slope * size > seconds:
                break
            times = ask(collective, size, 1)
            left = min(repeats, max(FEWEST, int(seconds / max(times[0], 1e-6)))) - 1
            if left >= 1:
                times = [*times, *ask(collective, size, left)]
            took = statistics.median(times)
            slope = took / size
            points.append(Point(collective, size, took))
            done(points[-1])
    return points


def slowest(
    collective: str, payload_bytes: int, repeats: int, device_type: str = "cpu"
) -> list[float]:
    """Seconds of each repeat, the slowest rank's; called by all ranks. ``payload_bytes`` as the ledger counts
    them."""
    on_gpu = device_type == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    world = World(device=device)
    others = max(1, world.size - 1)
    if collective == "alltoall":
        payload_bytes = max(1, payload_bytes // others) * others
    floats = torch.zeros(max(1, payload_bytes // torch.float32.itemsize), device=device)
    flat = torch.zeros(payload_bytes, dtype=torch.uint8, device=device)
    pieces = [payload_bytes // others] * world.size
    pieces[world.rank] = 0
    begin: Mapping[str, Callable[[], Wait]] = {
        "allreduce": lambda: world.total([floats]),
        "allgather": lambda: world.gather([flat], "calibrate"),
        "alltoall": lambda: world.swap([flat], [pieces], [pieces], "calibrate"),
    }

    def whole() -> None:
        if collective == BROADCAST:
            world.reduce_(BROADCAST, flat, None)
        else:
            begin[collective]()()
        if on_gpu:
            torch.cuda.synchronize(device)

    steps = rounds({collective: timed(whole)}, repeats, WARMUP)[collective]
    found: list[float] = steps["seconds"].tolist()
    return found


def profile_text(found: Fit) -> str:
    """The profile as YAML, with the errors of the fit above it."""
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
    head = [network.source, error_text(found)]
    head += [
        f"  {collective}: median {median:.1%}, worst {worst:.0%}"
        for collective, median, worst in errors.agg(["median", "max"]).itertuples()
    ]
    return "\n".join([*(f"# {line}" for line in head), yaml.safe_dump(settings, sort_keys=False)])


def error_text(found: Fit) -> str:
    """How well the model fits the points."""
    return (
        f"{len(found.points)} points; error of the fit: median {found.median_error:.1%}, "
        f"worst {found.worst_error:.0%}"
    )
