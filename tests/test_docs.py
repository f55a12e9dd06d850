"""What the pages say, done: their code is taken from them and run, their commands are checked.

Runs of docs/adding-a-compressor.md get tiny sizes put behind them; those of the README are composed
and validated only.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import shell
import yaml
from hydra import compose
from shell import TIMEOUT_S

from dgc_repro.launch.overrides import resolved
from dgc_repro.launch.paths import composing, conf_dir
from dgc_repro.launch.rules import validate

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
OWN_LOOP = REPOSITORY / "docs" / "own-loop.md"
FSDP = REPOSITORY / "docs" / "fsdp.md"
ADDING = REPOSITORY / "docs" / "adding-a-compressor.md"
README = REPOSITORY / "README.md"
TESTS = REPOSITORY / "tests"
pytestmark = pytest.mark.timeout(2 * TIMEOUT_S + 20)
TINY = [
    *("launch=simulated", "train.epochs=1", "dataset.train_size=128", "dataset.validation=50"),
    *("dataset.test_size=50", "model.width=4", "sink=none"),
]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language, in order; "" for those that name none."""
    text = page.read_text(encoding="utf-8")
    return [
        code
        for name, code in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
        if name == language
    ]


def transcripts(page: Path) -> list[tuple[str, str]]:
    """(command, what the page says it prints) of every block that shows a prompt."""
    shown = [block.removeprefix("$ ") for block in blocks(page, "") if block.startswith("$ ")]
    return [
        (command, printed) for command, _, printed in (block.partition("\n") for block in shown)
    ]


def run(arguments: list[str], folder: Path, *more: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a folder; ``more``: folders of modules."""
    path = os.pathsep.join(map(str, (REPOSITORY, *more)))
    return shell.run(sys.executable, *arguments, cwd=folder, path=path)


def output(arguments: list[str], folder: Path) -> str:
    """Return what a command that succeeds prints."""
    done = run(arguments, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# docs/own-loop.md, docs/fsdp.md


@pytest.mark.slow
@pytest.mark.parametrize("page", [OWN_LOOP, FSDP], ids=lambda page: page.stem)
def test_the_loop_of_a_page_prints_what_the_page_says_and_continues(
    page: Path, tmp_path: Path
) -> None:
    shown = transcripts(page)
    assert len(shown) == (3 if page == FSDP else 2)
    names = dict.fromkeys(command.split()[-1] for command, _ in shown)
    for name, script in zip(names, blocks(page, "python"), strict=False):
        (tmp_path / name).write_text(script, encoding="utf-8")
    for command, printed in shown:
        launcher, *arguments = command.split()
        assert launcher == "torchrun"
        standalone = ["-m", "torch.distributed.run", "--standalone", *arguments]
        assert output(standalone, tmp_path) == printed


@pytest.mark.slow
def test_the_policy_of_the_own_loop_page_steps_down_when_told_of_the_epoch(tmp_path: Path) -> None:
    loop, attach, tell = blocks(OWN_LOOP, "python")
    before, attached, after = loop.partition("    exchange = attach(")
    _, started, end = after.partition("\n\ndist.init_process_group(")
    assert attached
    assert started
    note = "seen = exchange.state_dict()['policy']['position']\n"
    inside = [attach, note, tell, "print(seen, exchange.state_dict()['policy']['position'])\n"]
    script = [before, textwrap.indent("\n".join(inside), "    "), started, end]
    (tmp_path / "policy.py").write_text("".join(script), encoding="utf-8")
    alone = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", "policy.py"]
    assert output(alone, tmp_path) == "0 1\n"


# docs/adding-a-compressor.md


def saved(folder: Path, files: dict[str, str]) -> Path:
    """A user's folder with these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """The page's three files of a compressor."""
    method, _, check, *_ = blocks(ADDING, "python")
    overlay, *_ = blocks(ADDING, "yaml")
    files = {"topblocks.py": method, "check_topblocks.py": check}
    return saved(tmp_path, files | {"my_conf/compressor/topblocks.yaml": overlay})


def check_of_the_page(folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of the page's command that plays the laws."""
    words = shlex.split(transcripts(ADDING)[0][0])
    start = words.index("python") + 1
    done = run([*words[start:], *options], folder, TESTS, TESTS / "compressor")
    assert done.stderr == ""
    return done.returncode, done.stdout


def num_laws(folder: Path, *options: str) -> int:
    """How many tests of the laws pass; none may fail."""
    code, printed = check_of_the_page(folder, *options)
    assert code == 0, printed
    assert "SKIPPED" not in printed  # each test is about the page's settings
    (passed,) = re.findall(r"(\d+) passed", printed)
    return int(passed)


@pytest.mark.slow
def test_the_compressor_of_the_page_obeys_every_law(own_folder: Path) -> None:
    assert num_laws(own_folder, "-rs") >= 13  # 7 laws, most with 2 settings, each in 3 worlds


@pytest.mark.slow
def test_the_coding_of_the_page_obeys_every_law(tmp_path: Path) -> None:
    _, coding, check, *_ = blocks(ADDING, "python")
    (formula,) = blocks(ADDING, "py")
    (tmp_path / "meansigns.py").write_text(coding, encoding="utf-8")
    head, _, rest = check.partition("@asks.register")
    tail = "from test_laws import *" + rest.partition("from test_laws import *")[2]
    settings = """
no = {
    "conservation": "keeps no residual",
    "contraction": "contracts in the norm, not value by value",
}
law_settings.SETTINGS = (
    Setting("meansigns", MeanSigns(), excuses=no),
    Setting("ef-meansigns", ErrorFeedback(MeanSigns()), excuses=FED_BACK),
)
"""
    text = head.replace("topblocks import TopBlocks", "meansigns import MeanSigns")
    text = "\n".join([text, formula, settings, tail])
    (tmp_path / "check_topblocks.py").write_text(text, encoding="utf-8")
    assert num_laws(tmp_path) >= 12  # all laws but contraction


@pytest.mark.slow
def test_a_fixed_number_of_entries_obeys_the_laws_with_the_pages_other_formula(
    own_folder: Path,
) -> None:
    (choice,) = re.findall(r"`(select\.topk\(x, [^`]*)`", ADDING.read_text(encoding="utf-8"))
    ragged, fixed = (block[block.index("@asks") :] for block in blocks(ADDING, "python")[2:4])
    ragged = ragged.partition("\n\nloses")[0]
    method, check = own_folder / "topblocks.py", own_folder / "check_topblocks.py"
    text = method.read_text(encoding="utf-8").replace("ragged = True", "ragged = False")
    method.write_text(re.sub(r"return select\.at\(.*", f"return {choice}", text), encoding="utf-8")
    check.write_text(check.read_text(encoding="utf-8").replace(ragged, fixed), encoding="utf-8")
    assert num_laws(own_folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "law", "says"),
    [
        ("(tensor.numel(), int(floats))", "(tensor.numel(), 1 + int(floats))",
         "test_bytes", "tensor constant: its payload has the parts ((1, 8), ("),
        (".indices\n", ".indices.flip(0)\n",
         "test_bytes", "28 ascending places of 130: sort them in `select`"),
        ("x, width = tensor.view(-1)", "x, width = -tensor.view(-1)",
         "test_contraction", "entries are off"),
    ],
)  # fmt: skip
def test_the_check_of_the_page_finds_a_compressor_that_breaks_a_law(
    own_folder: Path, right: str, wrong: str, law: str, says: str
) -> None:
    broken = 0
    for name in ("topblocks.py", "check_topblocks.py"):
        text = (own_folder / name).read_text(encoding="utf-8")
        broken += right in text
        (own_folder / name).write_text(text.replace(right, wrong), encoding="utf-8")
    assert broken == 1
    code, printed = check_of_the_page(own_folder, "-k", law)
    assert code == 1
    assert re.search(rf"^FAILED \S*{law}", printed, re.M), printed
    assert says in printed


@pytest.fixture
def policy_folder(tmp_path: Path) -> Path:
    """The page's files of policies, which come after the compressor."""
    policy, check, half = blocks(ADDING, "python")[-3:]
    *_, overlay = blocks(ADDING, "yaml")
    files = {"backoff.py": policy, "check_backoff.py": check, "half.py": half}
    return saved(tmp_path, files | {"my_conf/policy/backoff.yaml": overlay})


def trained_twice(folder: Path, first: int, *more: str) -> Path:
    """The one run folder of two commands of the page: a component by its class name, and by its overlay."""
    commands = [command.removeprefix("python ") for command, _ in transcripts(ADDING)]
    new, again = (
        output([*command.split(), *TINY, *more], folder) for command in commands[first : first + 2]
    )
    assert "already done" not in new
    assert "already done" in again
    assert new.splitlines()[-1] == again.splitlines()[-1]
    return folder / new.splitlines()[-1].removeprefix("run folder: ")


@pytest.mark.slow
def test_the_compressor_of_the_page_trains_by_class_name_and_by_overlay_as_one_run(
    own_folder: Path,
) -> None:
    trained_twice(own_folder, 1)


@pytest.mark.slow
def test_the_check_of_the_pages_policy_prints_what_it_says(policy_folder: Path) -> None:
    command, printed = transcripts(ADDING)[5]
    assert output([command.removeprefix("python ")], policy_folder) == printed


@pytest.mark.slow
def test_the_policy_of_the_page_trains_by_class_name_and_by_overlay_as_one_run(
    policy_folder: Path,
) -> None:
    folder = trained_twice(policy_folder, 6, "train.epochs=2")
    with (folder / "policy.csv").open(encoding="utf-8") as file:
        rows = [(row["epoch"], row["label"]) for row in csv.DictReader(file)]
    assert rows == [("1", "density=0.01"), ("2", "density=0.01")]


@pytest.mark.slow
def test_the_policy_that_looks_at_the_gradient_writes_each_decision_down(
    policy_folder: Path,
) -> None:
    command = transcripts(ADDING)[8][0].removeprefix("python ")
    folder = output([*command.split(), *TINY], policy_folder).splitlines()[-1]
    path = policy_folder / folder.removeprefix("run folder: ") / "decisions.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines
    for number, line in enumerate(lines, 1):
        assert line["decision"] == number
        assert line["decision/rung"] in (1, 2)
        assert 0 <= line["decision/gain"] <= 1
        assert (line["decision/gain"] >= 0.5) or line["decision/rung"] == 1


@pytest.mark.slow
def test_the_overlay_of_the_page_takes_the_pages_policy(own_folder: Path) -> None:
    (ladder,) = re.findall(
        r"`(policy\.field=\S+ policy\.values=\S+)` with `policy=fixed policy.rung=2`",
        ADDING.read_text(encoding="utf-8"),
    )
    given = ["--config-dir", "my_conf", "compressor=topblocks", "policy=fixed", "policy.rung=2"]
    printed = output(["-m", "dgc_repro", *given, *ladder.split(), *TINY], own_folder)
    assert "run folder: " in printed


@pytest.mark.slow
def test_the_compressor_of_the_page_is_compared_with_topk(own_folder: Path) -> None:
    """The page's sweep, of one density and seed, and its comparison."""
    sweep, more = transcripts(ADDING)[3]
    small = sweep.replace("=0.01,0.1", "=0.1").replace("=0,1,2", "=0").removeprefix("python ")
    printed = output([*small.split(), *TINY], own_folder)
    assert "[2/2]" in printed
    assert re.search(r"^TopBlocks density=0\.1 \+ error\b.* 1 ", printed, re.M)
    output(more.strip().removeprefix("$ python ").split(), own_folder)
    assert (own_folder / "runs" / "compare.png").is_file()


@pytest.mark.slow
def test_the_compressor_of_the_page_is_timed_beside_the_benchmarks(own_folder: Path) -> None:
    ask = transcripts(ADDING)[4][0].removeprefix("python ").split()
    slim = ["model.width=4", "dataset=digits", "dataset.train_size=512", "launch.threads=1"]
    printed = output([*ask, *slim, "batch=16", "device=cpu", "launch.device=cpu"], own_folder)
    assert re.search(r"^ yours +not known +- ", printed, re.M)


# README.md and every page


@pytest.mark.slow
@pytest.mark.timeout(10 * TIMEOUT_S)
def test_the_readmes_runs_are_compared_by_its_own_command(tmp_path: Path) -> None:
    """The commands of "Runs of your own" in their order, small, after a paper's run in the same folder."""
    section = README.read_text(encoding="utf-8").partition("## Runs of your own")[2]
    commands = [
        shlex.split(line, comments=True)
        for _, block in re.findall(r"^```(\w*)\n(.*?)^```", section, re.M | re.S)
        for line in block.splitlines()
        if not line.startswith("#")
    ]
    kept = [word for word in TINY if word != "sink=none"]
    text = [word for word in kept if not word.startswith(("dataset", "model", "launch"))]
    sizes = ("dataset.train_size=1200", "dataset.validation=100", "dataset.test_size=101")
    text += [*sizes, "dataset.bptt=12", "model.width=6", "launch=simulated"]
    output(["-m", "dgc_repro", "experiment=dynamic/static8", *kept], tmp_path)
    said = {}
    for command in commands:
        python, *arguments = command
        if python == "torchrun":
            kept = [word for word in kept if not word.startswith("launch")]
            arguments = ["-m", "torch.distributed.run", "--standalone", *arguments]
        if {"compare", "recommend", "--help"} & set(arguments):
            own = []
        elif "selfcheck" in arguments:
            own = ["rows=machine"]  # the others take minutes, and have tests
        else:
            own = text if "scale=text/quick" in arguments else kept
        said[" ".join(command)] = output([*arguments, *own], tmp_path)
    assert len(said) == 7
    (printed,) = (said[name] for name in said if " compare " in name)
    # The printed table wraps names where its times leave too little room.
    with (tmp_path / "runs" / "compare.csv").open(newline="") as file:
        counts = Counter(row["line"].partition(", policy=")[0] for row in csv.DictReader(file))
    assert counts == {
        "DGCSampled + momentum correction + error feedback": 1,
        "TopK density=0.01 + error feedback": 1,
        "PowerSGD rank=2 + error feedback": 1,
        "Dense": 3,
        "TopK + error feedback": 3,
        "Uniform bits=8": 3,
        "PowerSGD rank=4 + error feedback": 3,
    }
    assert "Uniform bits=8 " in printed
    assert "left out: 1 of 16 runs, those of papers" in printed
    assert (tmp_path / "runs" / "compare.png").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_number_that_was_not_filled_in(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    assert not re.findall(r"\{[a-z_0-9]+\}", text)


def test_the_make_targets_of_the_pages_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9_-]+):", makefile, re.M))
    named = {
        (page.name, target)
        for page in PAGES
        if page.name != "CHANGELOG.md"  # it names targets that are gone
        for target in re.findall(
            r"(?:^|`)make ([a-z0-9_-]+)", page.read_text(encoding="utf-8"), re.M
        )
    }
    assert {"reproduce-table1", "test"} <= {target for _, target in named}
    assert [(page, target) for page, target in sorted(named) if target not in targets] == []


def test_the_links_of_the_pages_lead_somewhere() -> None:
    dead = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if link.startswith(("http://", "https://", "#")):
                continue
            place, _, heading = link.partition("#")
            target = page.parent / place
            if not target.exists() or (heading and heading not in headings(target)):
                dead.append(f"{page.name}: {link}")
    assert dead == []


def test_the_page_of_methods_has_every_compressor_and_setting() -> None:
    text = (REPOSITORY / "docs" / "methods.md").read_text(encoding="utf-8")
    everywhere = text.partition("Every sparsifier has")[2].partition("\n\n")[0]
    for path in sorted((conf_dir() / "compressor").glob("*.yaml")):
        (row,) = [
            line for line in text.splitlines() if re.match(rf"\|.*`{path.stem}`.*\|.*\|", line)
        ][:1]
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        for key in set(found.get("compressor", found)) - {"_target_", "defaults"}:
            assert f"`{key}`" in row + everywhere, (path.stem, key)


def headings(page: Path) -> set[str]:
    """The anchors of a page: of its headings, as they are made from them on the web, and its own."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^#+ (.*)$", text, re.M)
    own = set(re.findall(r'<a id="(\w+)">', text))
    return own | {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in found
    }


def commands(page: Path) -> list[str]:
    """The lines in a page's bash blocks that train: they have no subcommand after the package."""
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    trains = r"python -m dgc_repro (--multirun )?\w[\w.]*="
    return [line for line in lines if re.match(trains, line)]


def expanded(command: str) -> list[list[str]]:
    """The overrides of each run of a command; a value with commas outside brackets is a sweep."""
    words = [word for word in command.split()[3:] if word != "--multirun"]
    choices = [
        [word] if "[" in word else [f"{key}={value}" for value in values.split(",")]
        for word in words
        for key, _, values in [word.partition("=")]
    ]
    return [list(job) for job in itertools.product(*choices)]


CASES = re.findall(
    r"\| `(compressor=[^`]*)` \|$", (REPOSITORY / "docs/benchmark.md").read_text("utf-8"), re.M
)
"""Settings that the page gives for a case."""


@pytest.mark.parametrize("command", [*commands(README), *CASES])
def test_the_runs_of_the_pages_are_valid(command: str) -> None:
    """Composed and validated as the command line does it before it starts any rank."""
    assert len(CASES) >= 4
    jobs = [command.split()] if command in CASES else expanded(command)
    assert ("--multirun" in command) == (len(jobs) > 1)
    with composing():
        for overrides in jobs:
            validate(resolved(compose("config", overrides)))


# What the README says


LOOP = """
import torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model, checkpoint = DistributedDataParallel(nn.Linear(600, 10)), {{}}
optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy
loader = [(torch.randn(8, 600), torch.randint(10, (8,))) for _ in range(2)]
{code}
print(sorted(checkpoint["exchange"]))
"""
"""What the README's lines are put into."""


def test_the_first_screen_has_the_figure_and_one_table_of_five_to_seven_rows() -> None:
    head = README.read_text(encoding="utf-8").partition("\n## Install")[0]
    (figure,) = re.findall(r"^!\[[^]]+\]\(([^)]+)\)$", head, re.MULTILINE)
    assert (REPOSITORY / figure).is_file()
    rows = [line for line in head.splitlines() if line.startswith("| ")]
    assert rows[0].count("|") == 7
    assert 5 <= len(rows) - 1 <= 7
    results = (REPOSITORY / "results" / "README.md").read_text(encoding="utf-8")
    assert [line for line in results.splitlines() if line.startswith("| ")][: len(rows)] == rows


def test_the_readme_is_read_in_minutes() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 170
    prose = re.sub(r"```.*?```|<!--.*?-->|^\|.*$", "", text, flags=re.M | re.S)
    assert len(prose.split()) < 700


@pytest.mark.slow
def test_the_lines_of_the_readme_train_a_model() -> None:
    (code,) = blocks(README, "python")
    assert "'ledger'" in shell.program(LOOP.format(code=code))


def test_the_readme_says_how_table_1_was_trained() -> None:
    """Seeds, and the payload of uncompressed training, of the table under "Reproduce a paper"."""
    text = " ".join(README.read_text(encoding="utf-8").split())
    for scale, model, said in (
        ("air", "Air, 0.375 M parameters", "a network of 0.37 M parameters trains for 8 epochs"),
        ("medium", "18-layer ResNet, width 16", "an 18-layer ResNet of width 16 for 30 epochs"),
    ):
        folder = REPOSITORY / "results" / "dynamic" / scale
        table = pd.read_csv(folder / "numbers.csv")
        own = table[(table["artifact"] == "table1") & (table["quantity"] == "test accuracy")]
        (seeds,) = re.findall(rf"here, `{scale}`, n = (\d+)", text)
        assert set(own["n"]) == {int(seeds)}
        assert model in (folder / "table1" / "table.md").read_text(encoding="utf-8")
        assert said in text
