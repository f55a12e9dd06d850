"""Hundreds of wrong values: each is accepted, or refused with one line and exit code 2.

A case is a context (overrides that make a valid tiny run) and one more override. The keys are read from the
composed configs, so that a new key is fuzzed without a change here. `attempt` does what
``python -m dgc_repro`` does up to the first training step.
"""

from __future__ import annotations

import contextlib
import io
import re
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from tiny_run import SETTINGS, TEXT, TINY, configured

from dgc_repro.launch import cli_args, main, reproduction, worker
from dgc_repro.launch import run as running
from dgc_repro.launch.overrides import resolved
from dgc_repro.launch.paths import artifacts, options
from dgc_repro.launch.settings import NAMES
from dgc_repro.launch.study import built
from dgc_repro.predict import calibrate, recommend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
VALUES_A_KEY = 2
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


def problem_of(action: Callable[[], object]) -> str:
    """Return how a command ended that was neither accepted, nor refused with one line and exit code 2; of
    others the empty text. Hangs end after `HANG_SECONDS`."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"no end after {HANG_SECONDS} s")

    before = {n: signal.getsignal(n) for n in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(HANG_SECONDS)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = main.answer(action)
    except BaseException:
        return traceback.format_exc()[-600:]
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)
    lines = said.getvalue().splitlines()
    if code == 0 or (code == 2 and re.fullmatch("error: ..+", "\n".join(lines))):
        return ""
    return f"{code} {lines[:3]}"


def attempt(context: Sequence[str], override: str) -> None:
    """What ``python -m dgc_repro <context> <override>`` does, composed from a cached context."""
    composed = OmegaConf.create(configured(*TINY, *context))
    parsed = OverridesParser.create().parse_override(override)
    OmegaConf.update(composed, parsed.key_or_group, parsed.value(), merge=True)
    running.run_config(resolved(composed), [*TINY, *context, override])


@contextlib.contextmanager
def without_training(folder: Path) -> Iterator[None]:
    """Ranks run in this process, as simulated ones, and end where the first step would be made."""

    def rank_here(config: dict[str, Any], run_folder: Path, **_: Any) -> None:
        changed = deepcopy(config)
        changed["launch"] |= {"kind": "simulated", "backend": "auto"}
        changed["exchange"]["overlap"] = False
        (run_folder / "config.yaml").write_text(yaml.safe_dump(changed))
        worker.run_worker(run_folder)

    with (
        contextlib.chdir(folder),
        mock.patch.object(running, "execute", rank_here),
        mock.patch.object(worker, "train", return_value=False),
        mock.patch("dgc_repro.sink.wandb.Wandb._open"),
        mock.patch("dgc_repro.launch.worker.native.library", return_value=None),
    ):
        yield


def assert_none_has_problems(cases: dict[str, Callable[[], object]]) -> None:
    assert len(cases) > 500
    problems = {case: problem_of(action) for case, action in cases.items()}
    assert [f"{case}: {problem}" for case, problem in problems.items() if problem] == []


def test_no_value_of_any_key_ends_in_a_traceback(tmp_path: Path) -> None:
    cases: dict[str, Callable[[], object]] = {}
    with without_training(tmp_path):
        for number, (context, key) in enumerate(keys()):
            for n in range(VALUES_A_KEY):
                value = VALUES[(number + n * len(VALUES) // VALUES_A_KEY) % len(VALUES)]
                override = f"{key}={value}"
                cases[" ".join([*context, override])] = partial(attempt, context, override)
        assert_none_has_problems(cases)


def settings_of_parts() -> list[tuple[str, Callable[[str], Any]]]:
    """(key, what reads it) of all settings of sub-commands, studies and measurements."""
    found: list[tuple[str, Callable[[str], Any]]] = []
    for known in (recommend.KEYS, calibrate.KEYS):
        for key in known:
            found.append((key, lambda o, known=known: cli_args.read([o], "", known, NAMES)))
    for name in artifacts():
        artifact = reproduction.artifact_node(name)
        places = [f"study.{part}" for part in artifact.get("study", {})]
        for place in [*places, *(["measure"] if "measure" in artifact else [])]:
            for key in OmegaConf.select(artifact, place):

                def read(o: str, place: str = place, artifact: Any = artifact) -> None:
                    kind = place.partition(".")[0]
                    built({kind: reproduction.section_of(artifact, place, [o])})

                found.append((f"{place}.{key}", read))
    return found


def test_no_setting_of_a_study_a_measurement_or_a_sub_command_ends_in_a_traceback() -> None:
    read_as = {
        f"{key}={v}": (read, f"{key}={v}") for key, read in settings_of_parts() for v in VALUES
    }
    assert_none_has_problems({case: partial(*how) for case, how in read_as.items()})
