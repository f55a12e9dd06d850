"""Hundreds of wrong inputs: each is accepted, or refused with one line and exit code 2.

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

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from tiny_run import SETTINGS, TEXT, TINY, configured

from dgc_repro.launch import cli_args, main, reproduction, worker
from dgc_repro.launch import run as running
from dgc_repro.launch.overrides import resolved
from dgc_repro.launch.paths import artifacts, conf_dir, options
from dgc_repro.launch.settings import NAMES
from dgc_repro.launch.study import built
from dgc_repro.predict import calibrate, recommend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
VALUES_A_KEY = 2
GROUPS = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
ONE_LINE_EACH = """
~seed; ~train; ~paths; ~launch.workers; ~compressor; ~
exchange=3; paths=3; train=3; stopping=3; wrap=3; =3
compressor=[]; scale=null; policy={a:1}; model=true; launch=1e23; compressor=é; train.epochs=[1
train.epochs=${nope}; seed=1e23; seed=1,2; model._target_=builtins.dict; policy._target_=os.system
_target_=builtins.dict; --resolve; --cfg; --cfg nope; --nope; -x; word; =; hydra=1
--config-name=nope; --config-path=/nope; hydra/launcher=nope
--multirun model=-1,2; --multirun =3; --multirun seed=0,word
"""
OF_SUBCOMMANDS = """
reproduce dynamic/table1 seed=word; reproduce dynamic/table1 optimizer=-1; reproduce dynamic/table1 =3
reproduce dynamic/table1 --resolve; reproduce dynamic/table1 scale=-1; reproduce =3
reproduce dynamic/table1 scale.seeds=word; reproduce gravac/table3 measure.steps=1e18
reproduce lecture/waiting study.waiting.trials=1e18; netlab; netlab -1; recommend =3; recommend optimizer=-1
recommend workers=1e18; recommend -x; calibrate =3; calibrate launch=-1; calibrate sizes=-1
"""
SUBCOMMANDS = [line.strip() for line in OF_SUBCOMMANDS.replace("\n", ";").split(";") if line]
COMMANDS = [line.strip() for line in ONE_LINE_EACH.replace("\n", ";").split(";") if line]
COMMANDS += [f"{group}={value}" for group in GROUPS for value in ("-1", "[-1]", "[null]")]
COMMANDS += [f"{key}={value}" for key in ("seed", "sink") for value in ("9" * 5000, "[" * 200)]
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
        running.run_config(resolved(composed), [*TINY, *context, override])

    return watched(lambda: main.answer(act))


def command(arguments: Sequence[str]) -> Outcome:
    """``python -m dgc_repro <arguments>``, through Hydra."""
    with mock.patch.object(sys, "argv", ["dgc_repro", *arguments]):
        return watched(lambda: main.answer(main.dispatch))


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


def bad(outcomes: dict[str, Outcome]) -> list[str]:
    """A line for each case that ended in another way than it may."""
    return [
        f"{case}: {outcome.code} {outcome.lines[:3]} {outcome.trace[-600:]}"
        for case, outcome in outcomes.items()
        if not outcome.fine
    ]


def test_no_value_of_any_key_ends_in_a_traceback(tmp_path: Path) -> None:
    outcomes = {}
    with without_training(tmp_path):
        for number, (context, key) in enumerate(keys()):
            for n in range(VALUES_A_KEY):
                override = (
                    f"{key}={VALUES[(number + n * len(VALUES) // VALUES_A_KEY) % len(VALUES)]}"
                )
                case = " ".join([*context, override])
                outcomes[case] = attempt(context, override)
    assert len(outcomes) > 500
    assert not bad(outcomes)


def test_no_composition_ends_in_a_traceback(tmp_path: Path) -> None:
    with without_training(tmp_path):
        outcomes = {
            given: command([*(() if given in SUBCOMMANDS else TINY), *given.split()])
            for given in (*COMMANDS, *SUBCOMMANDS)
        }
    assert not bad(outcomes)
    assert not [case for case, outcome in outcomes.items() if outcome.code == 0]


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
    outcomes = {}
    for key, read in settings_of_parts():
        for value in VALUES:
            act = lambda o=f"{key}={value}", read=read: read(o)  # noqa: E731
            outcomes[f"{key}={value}"] = watched(lambda act=act: main.answer(act))
    assert len(outcomes) > 500
    assert not bad(outcomes)
