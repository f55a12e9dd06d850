"""What results/ holds is what its pools make today, byte for byte. Its figures can be shown in a talk. A page
can be made of a part of its runs."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

import matplotlib
import pytest
from matplotlib import ft2font
from matplotlib.font_manager import findfont
from published_results import PAGES, POOLS, REPOSITORY, RESULTS, name_of
from talk import require_fit_for_a_talk

from dgc_repro.errors import UserError
from dgc_repro.names import git
from dgc_repro.paper import findings, index, plot, pool, publish
from dgc_repro.paper.page import Page, markdown
from dgc_repro.paper.plot import SETTINGS
from dgc_repro.paper.verdict import MIN_SEEDS

MAKE_BYTES = ("kiwisolver", "matplotlib", "numpy", "pandas", "pillow", "pyarrow", "scipy")
"""Packages that decide the bytes of pages and figures."""
MEASURED = ("bench", "network", "conformance")
"""Folders of tables that `make bench` and its relatives write while they measure, without a pool."""


@pytest.fixture(scope="module")
def tracked() -> set[Path]:
    """The files of results/ under version control."""
    if not (listed := git("ls-files --full-name :/results")):
        pytest.skip("no git checkout here")
    return {REPOSITORY / line for line in listed.splitlines()}


@pytest.fixture(scope="module", params=PAGES, ids=name_of)
def made(request: pytest.FixtureRequest) -> tuple[Path, Page]:
    """The folder of a page, and the page that its pool makes: once for all tests of it."""
    return request.param, publish.page_of(request.param)


@pytest.fixture
def _pinned_packages() -> None:
    pinned = dict(
        line.split("==")
        for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    for name in MAKE_BYTES:
        if version(name) != pinned[name]:
            pytest.skip(f"the pages were made with {name} {pinned[name]}, here is {version(name)}")
    if ft2font.__freetype_build_type__ != "local":
        pytest.skip("this matplotlib draws text with the system's FreeType, not its own")


def test_figures_take_the_font_that_matplotlib_brings() -> None:
    font = Path(findfont(SETTINGS["font.family"], fallback_to_default=False)).resolve()
    assert font.is_relative_to(Path(matplotlib.get_data_path()).resolve())


@pytest.mark.slow
@pytest.mark.usefixtures("_pinned_packages")
def test_a_page_and_its_figures_are_made_again_byte_for_byte(
    made: tuple[Path, Page], tracked: set[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, page = made
    monkeypatch.setattr(publish, "page_of", lambda _: page)
    again = tmp_path.joinpath(*folder.parts[-3:])
    publish.rebuild(folder, again)
    name, text = folder.name, pool.numbers(folder.parent)
    assert pool.records(again.parent)[name] == pool.records(folder.parent)[name]
    assert pool.numbers(again.parent).to_csv() == (
        text[text["artifact"] == name].reset_index(drop=True).to_csv()
    )
    new = {path.name: path.read_bytes() for path in again.iterdir() if path.suffix != ".svg"}
    published = {path.name: path.read_bytes() for path in tracked if path.parent == folder}
    assert sorted(new) == sorted(published)
    assert [name for name in new if new[name] != published[name]] == []


@pytest.mark.slow
def test_a_published_figure_is_fit_for_a_talk(made: tuple[Path, Page]) -> None:
    for name, described in made[1].figures.items():
        figure = described.draw()
        assert figure.get_suptitle().splitlines()[0] == plot.literal(described.title), name
        require_fit_for_a_talk(figure)


def test_the_overview_is_made_again_byte_for_byte(tmp_path: Path) -> None:
    """With the findings, and with the blocks of the pages that hold them."""
    root, beside = tmp_path / "results", RESULTS.parent
    for folder in POOLS:
        shutil.copytree(folder, root.joinpath(*folder.parts[-2:]))
    shutil.copytree(RESULTS / "conformance", root / "conformance")
    (tmp_path / "docs").mkdir()
    for name in findings.PAGES:
        text = (beside / name).read_text(encoding="utf-8")
        emptied = findings.BLOCK.sub(r"<!-- \1 -->\n<!-- /\1 -->", text)
        (tmp_path / name).write_text(emptied, encoding="utf-8")
    index.write(root)
    for name in ("README.md", "claims.jsonl"):
        assert (root / name).read_bytes() == (RESULTS / name).read_bytes(), name
    for name in findings.PAGES:
        assert (tmp_path / name).read_bytes() == (beside / name).read_bytes(), name


def test_a_tracked_file_belongs_to_a_page_to_a_pool_or_to_a_measurement(tracked: set[Path]) -> None:
    of_pools = {*pool.FILES, pool.SUMS_FILE, pool.VERDICTS_FILE, pool.NUMBERS_FILE}
    known = {RESULTS / name for name in ("README.md", "claims.jsonl", "claims.parquet")}
    known |= {place / name for place in POOLS for name in of_pools}
    others = {
        path
        for path in tracked - known
        if path.parent not in PAGES and path.relative_to(RESULTS).parts[0] not in MEASURED
    }
    assert others == set()
    assert {folder / "table.md" for folder in PAGES} <= tracked


@pytest.mark.slow
def test_a_page_is_made_of_one_seed_and_of_one_row(made: tuple[Path, Page]) -> None:
    folder, whole = made
    paper, scale, artifact = folder.parts[-3:]
    module, runs = publish.artifact_of(paper, artifact), whole.runs
    first = min(run.seed for run in runs)
    page = module.page([run for run in runs if run.seed == first], scale)
    assert "nan" not in markdown(page).partition("## Verdicts")[0].lower().split()
    for verdict in page.verdicts:
        if verdict.word in ("agrees", "differs") and not verdict.modelled:
            assert verdict.n >= MIN_SEEDS, verdict.claim.id  # repeats of a timing
    try:
        alone = module.page([run for run in runs if run.row == runs[0].row], scale)
    except UserError:
        return  # it says which run is missing
    assert markdown(alone)
