"""``--help``: each key has a description from a docstring, pages fit a terminal, tables have times."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable
from typing import Annotated, Literal

import pytest

from dgc_repro.checked import checked, within
from dgc_repro.launch import completion, help, main, settings
from dgc_repro.launch.help import described, title_of
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.paths import artifacts, composing, conf_dir, members
from dgc_repro.paper import times
from dgc_repro.results import RESULTS, published_runs

COMPONENTS = ("compressor", "policy", "wrapper", "model", "dataset", "optimizer", "schedule")
Page = Callable[..., list[str]]
Ended = Callable[..., tuple[int, str, str]]


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str]) -> Page:
    """The lines of the page of ``--help`` for some words."""

    def shown(*words: str) -> list[str]:
        with composing():
            help.show(words, {name: command.about for name, command in main.COMMANDS.items()})
        return capsys.readouterr().out.splitlines()

    return shown


# -- descriptions --------------------------------------------------------------------------------


def test_every_key_of_the_default_config_has_a_description() -> None:
    with composing():
        config = help.plain_config()
    found = help.keys_of(config)
    assert "model.low_rank.from_epoch" in found
    assert "optimized_metric" in found
    assert len(found) > 100
    assert {key for key, (_, said) in found.items() if not said.text} == set()
    assert found["train.batch_size"][0] == config["train"]["batch_size"]


@pytest.mark.parametrize("group", [*COMPONENTS, "network", "generalization", "sink", "launch"])
def test_every_key_of_every_member_has_a_description(group: str) -> None:
    for stated in members(group):
        node = stated.get(group, stated)
        node = node.get("mirror") or node
        if "_target_" not in node and group not in settings.SECTIONS:
            continue  # its defaults list names another member, which has it
        target = node.get("_target_")
        cls = pkgutil.resolve_name(target) if target else settings.SECTIONS[group]
        if node.get("kind") == settings.SLURM:
            cls = settings.Slurm
        said = described(cls)
        fields = {field.name for field in dataclasses.fields(cls) if field.init} - {"inner"}
        assert [name for name in fields if not said[name].text] == [], (target, group)


@checked
class Base:
    """What two share. ``left``, ``right``: a side; None: neither. ``kept``: of the base.

    Raises ValueError.
    """

    left: int | None = None
    right: int | None = None
    kept: Annotated[int, within(1)] = 1


@checked
class Leaf(Base):
    """``kept``: see `Base`. word: as written (a, then b);
    ``bare`` is in no list. State: ``left``."""

    word: Literal["a", "b"] = "a"
    bare: bool = False


def test_a_description_is_read_from_the_docstring_of_the_class_or_of_a_base() -> None:
    said = described(Leaf)
    assert said["left"].text == said["right"].text == "a side; null: neither"
    assert said["kept"] == ("of the base", "a whole number from 1", ())
    assert said["word"].text.startswith("as written (a, then b)")
    assert said["word"].choices == ("a", "b")
    assert said["bare"] == ("", "true or false", ())
    assert title_of(Base) == "What two share"
    assert title_of(Leaf) == ""


# -- pages ---------------------------------------------------------------------------------------


def test_the_first_page_fits_a_terminal_and_no_line_is_cut(page: Page) -> None:
    lines = page()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.endswith("...") and "/..." not in line] == []
    keys = {line.split("=")[0].strip() for line in lines if line.startswith("  ") and "=" in line}
    for section, cls in settings.SECTIONS.items():
        assert f"{section}: " in "\n".join(lines)
        names = set(composed([])[section])
        assert names <= keys, (section, cls)
    said = " ".join(" ".join(lines).split())
    for name, command in main.COMMANDS.items():
        assert f" {name} {command.about}" in said
    for group in ("compressor", "policy", "launch"):
        names = {path.stem for path in (conf_dir() / group).glob("*.yaml")}
        assert f" {group} {', '.join(sorted(names))} " in said.replace("*", "")


def test_a_member_is_described_before_and_after_the_flag(page: Page, ended: Ended) -> None:
    lines = page("compressor=topk")
    for words in (["compressor=topk", "--help"], ["--help", "compressor=topk"]):
        code, out, _ = ended(*words)
        assert (code, out.splitlines()) == (0, lines)
    said = " ".join(" ".join(lines).split())
    assert said.startswith("compressor=topk: Exact top-k: the entries of largest magnitude")
    assert "compressor.factor=null send one entry of so many: 100 is density 0.01" in said
    assert "It sets: wrap=[per_layer,error_feedback]" in said
    assert page("topk") == lines


@pytest.mark.parametrize(
    ("word", "shows"),
    [
        ("compressor", "powersgd PowerSGD: two thin factors of each matrix"),
        ("wrapper", "wrapper.error_feedback.decay=1.0 of the residual, a step"),
        ("train", "train.precision=fp32 number format of forward and backward;"),
        ("train.epochs", "train.epochs=10 epochs of the run. A whole number from 1."),
        ("launch=slurm", "launch.partition=null"),
        ("policy=scheduled", "policy.by=epoch"),
        ("model", "model.low_rank.rank_ratio=0.25 the rank over the smaller side"),
        ("recipe=low", "It sets, with what it names: recipe=images model=low"),
        ("experiment=dynamic/static8", "compressor.bits=8"),
        ("experiment", "experiment.row=custom"),
        ("loco", "wrapper.loco.beta=0.8 weight of the past errors"),
        ("sink=wandb", "sink.mode=offline offline needs no key."),
    ],
)
def test_pages_of_groups_members_sections_and_keys(word: str, shows: str, page: Page) -> None:
    lines = page(word)
    assert shows in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) < 80


@pytest.mark.parametrize("name", main.COMMANDS)
def test_the_page_of_every_command_has_one_form(name: str, ended: Ended) -> None:
    code, out, _ = ended(name, "--help")
    assert code == 0
    about, empty, usage, *lines = out.splitlines()
    assert (about, empty) == (main.COMMANDS[name].about, "")
    assert usage.startswith(f"usage: python -m dgc_repro {name}")
    if name == "compare":  # the docstring of its module follows
        return
    assert max(map(len, [usage, *lines])) < 80
    shown = {line.split("=")[0].strip() for line in lines if line.startswith("  ")}
    own = {key.rstrip("=") for key in completion.own_keys(main.COMMANDS[name])}
    assert own <= shown


# -- reproduce -----------------------------------------------------------------------------------


def test_the_table_of_artifacts_has_titles_and_times(ended: Ended) -> None:
    code, out, _ = ended("reproduce", "--help")
    assert code == 0
    lines = out.splitlines()
    by_name = {line.split()[0]: line for line in lines if line.startswith("  ")}
    for name in artifacts():
        assert len(by_name[name].split()) > 3, name
        assert [line for line in lines if line.startswith(f"{name.partition('/')[0]} ")], name
    assert "Table IV: GraVAC against" in by_name["gravac/table4"]
    assert by_name["dynamic/table1"].split()[1:] == ["Table", "I", "40", "s", "small", "67", "min"]


def test_times_are_those_of_the_published_runs() -> None:
    found = times.published(RESULTS)["dynamic/table1"]["quick"]
    runs = published_runs("dynamic/quick")
    recorded = sum(run.summary["time/train_seconds"] for run in runs)
    assert (found.runs, found.seconds) == (len(runs), pytest.approx(recorded))


def test_every_artifact_has_a_reckoned_time_at_quick() -> None:
    seconds, machine = times.reckoned(RESULTS)
    with composing():
        assert [name for name in artifacts() if name not in seconds] == []
    assert machine


def test_no_description_is_typed_twice() -> None:
    """conf/config.yaml leaves the meaning of a run's sections to the docstrings."""
    text = (conf_dir() / "config.yaml").read_text(encoding="utf-8")
    section = text.partition("\ntrain:\n")[2].partition("\npaths:\n")[0]
    assert "#" not in section
