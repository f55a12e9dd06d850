"""The command line under random input: cases, and one case run in this process.

A case is a context (overrides that make a valid tiny run) and one more override. The keys are read from the
composed configs, so that a new key is fuzzed without a change here. `attempt` does what
``python -m dgc_repro`` does up to the first training step.
"""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from tiny_run import SETTINGS, TEXT, TINY, configured

from dgc_repro.launch import main, single, worker
from dgc_repro.launch.overrides import resolved
from dgc_repro.launch.paths import options

HANG_SECONDS = 60
WORDS_OF_YAML = r"""
-1 0 1 -0.5 0.5 1e-45 1e18 1000000000000000000 1e23 100000000000000000000000
nan inf -inf true false null word '' '-1' 'a\nb' [] [1] [-1,nan] [null] [word,word]
[[1]] {} {a:1} {1:{}} '${a}' ???
"""
VALUES = (*WORDS_OF_YAML.split(), "'é ü 漢'")
ROOT = {"cifar10": "dataset.root=nowhere", "cifar100": "dataset.root=nowhere"}
WORDS = ("lstm", "descriptions", "pydoc", "ptb")


def contexts() -> Iterator[tuple[str, ...]]:
    """One for each compressor, wrapper and policy, and one for each member of the other groups."""
    yield ()
    yield from SETTINGS.values()
    for group in ("schedule", "sink", "network", "launch", "model", "dataset"):
        for member in options(group):
            text = TEXT if member in WORDS else ()
            root = [ROOT[member]] if member in ROOT else []
            links = ["network.rate=1gbit"] if member == "netlab" else []
            yield (*text, f"{group}={member}", *root, *links)


def keys() -> Iterator[tuple[tuple[str, ...], str]]:
    """Every (context, dotted key), each setting of each component once; sections are keys too."""
    seen = set()
    for context in contexts():
        config = configured(*TINY, *context)
        for key, owner in _walk(config, ""):
            if (key, owner) not in seen:
                seen.add((key, owner))
                yield context, key


def _walk(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        yield f"{path}{name}", str(node.get("_target_"))
        if isinstance(value, Mapping):
            yield from _walk(value, f"{path}{name}.")


@dataclass(frozen=True)
class Outcome:
    """How a case ended. ``code`` is None where an exception came through, or the time was up."""

    code: int | None
    lines: tuple[str, ...]
    trace: str = ""

    @property
    def fine(self) -> bool:
        """Accepted without a word on stderr, or refused with one line and exit code 2."""
        if self.code == 0:
            return True
        return (
            self.code == 2
            and len(self.lines) == 1
            and self.lines[0].startswith("error: ")
            and len(self.lines[0]) > len("error: x")
        )


def watched(action: Callable[[], int]) -> Outcome:
    """Run it with stdout and stderr caught. Hangs end after `HANG_SECONDS`."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"no end after {HANG_SECONDS} s")

    before = {n: signal.getsignal(n) for n in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(HANG_SECONDS)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = action()
        return Outcome(code, tuple(said.getvalue().splitlines()))
    except SystemExit as end:  # from inside Hydra
        return Outcome(int(end.code or 0), tuple(said.getvalue().splitlines()))
    except BaseException:
        return Outcome(None, tuple(said.getvalue().splitlines()), traceback.format_exc())
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def attempt(context: Sequence[str], override: str) -> Outcome:
    """What ``python -m dgc_repro <context> <override>`` does, composed from a cached context."""

    def act() -> None:
        composed = OmegaConf.create(configured(*TINY, *context))
        parsed = OverridesParser.create().parse_override(override)
        OmegaConf.update(composed, parsed.key_or_group, parsed.value(), merge=True)
        single.run_config(resolved(composed), [*TINY, *context, override])

    return watched(lambda: main.answer(act))


def command(arguments: Sequence[str]) -> Outcome:
    """``python -m dgc_repro <arguments>``, through Hydra."""
    with mock.patch.object(sys, "argv", ["dgc_repro", *arguments]):
        return watched(lambda: main.answer(main.dispatch))


@contextlib.contextmanager
def without_training(folder: Path) -> Iterator[None]:
    """Ranks run in this process, as simulated ones, and end where the first step would be made."""

    def rank_here(config: dict[str, Any], run_folder: Path) -> None:
        changed = deepcopy(config)
        changed["launch"] |= {"kind": "simulated", "backend": "auto"}
        changed["exchange"]["overlap"] = False
        (run_folder / "config.yaml").write_text(yaml.safe_dump(changed))
        worker.run_worker(run_folder)

    with (
        contextlib.chdir(folder),
        mock.patch.object(single, "execute", rank_here),
        mock.patch.object(single, "execute_netlab", rank_here),
        mock.patch.object(worker, "train", return_value=False),
        mock.patch("dgc_repro.sink.wandb.Wandb._open"),
        mock.patch("dgc_repro.launch.worker.native.library", return_value=None),
    ):
        yield
