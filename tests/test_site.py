"""The docs site is built without a warning, is whole, and shows all results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

import dgc_repro

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "results"
PAGES = sorted(path.relative_to(REPOSITORY) for path in RESULTS.glob("*/*/*/table.md"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Tag(NamedTuple):
    """An opening tag, and the tags that are open around it."""

    name: str
    attributes: dict[str, str]
    inside: tuple[Tag, ...]


class Page(HTMLParser):
    """The opening tags of a page, and its text by the tag around it."""

    VOID = ("br", "hr", "img", "input", "link", "meta", "col", "source", "wbr")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[Tag] = []
        self.open: list[Tag] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.ids = {value for key in ("id", "name") for value in self.values(key)}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = Tag(tag, {key: value or "" for key, value in attrs}, tuple(self.open))
        self.tags.append(found)
        if tag not in self.VOID:
            self.open.append(found)

    def handle_endtag(self, tag: str) -> None:
        names = [one.name for one in self.open]
        if tag in names:
            del self.open[len(names) - 1 - names[::-1].index(tag) :]

    def values(self, attribute: str, *names: str) -> list[str]:
        """An attribute of all tags, or of those with these names."""
        return [
            tag.attributes[attribute]
            for tag in self.tags
            if attribute in tag.attributes and (not names or tag.name in names)
        ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, as it is built."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env=os.environ | {"DISABLE_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """All pages by file."""
    return {path: Page(path) for path in site.rglob("*.html")}


def target_of(page: Path, link: str) -> Path:
    """The file that a link of a page leads to, where it is opened without a server."""
    path = unquote(urlsplit(link).path)
    return Path(os.path.normpath(page.parent / path)) if path else page


def html_of(page: Path, site: Path) -> Path:
    """The file of a Markdown page in the site."""
    return site / page.with_suffix(".html")


def test_each_method_and_each_public_class_has_its_page(site: Path) -> None:
    for config in (REPOSITORY / "conf" / "compressor").glob("*.yaml"):
        page = (site / "methods" / f"{config.stem}.html").read_text(encoding="utf-8")
        assert all(f'id="{part}"' in page for part in ("settings", "class", "laws", "speed"))
    api = (site / "api" / "compressor.html").read_text(encoding="utf-8")
    assert "dgc_repro.compressor.interface.Compressor.step" in api
    own = (site / "api" / "dgc_repro.html").read_text(encoding="utf-8")
    public = set(dgc_repro.__all__) - {"__version__"}
    assert public <= set(re.findall(r"<code>(\w+)</code>", own))
    shown = set(re.findall(r'id="dgc_repro\.(?:exchange\.\w+|results)\.(\w+)"', own))
    assert {"attach", "Attached", "load_runs"} <= shown <= public


def test_every_link_of_every_page_leads_to_a_page_or_a_file_that_is_there(
    pages: dict[Path, Page], site: Path
) -> None:
    dead, followed = [], 0
    for path, page in pages.items():
        for link in [*page.values("href"), *page.values("src")]:
            if urlsplit(link).scheme or link.startswith("//") or path.name == "404.html":
                continue
            target, heading = target_of(path, link), unquote(urlsplit(link).fragment)
            found = target.is_file() and target.suffix != ".md"
            if target in pages and heading:
                found = heading in pages[target].ids
            if not found:
                dead.append(f"{path.relative_to(site)}: {link}")
            followed += 1
    assert dead == []
    assert followed > 5000


def test_no_page_requests_another_host(pages: dict[Path, Page], site: Path) -> None:
    asked = set()
    for page in pages.values():
        asked |= {*page.values("src"), *page.values("srcset"), *page.values("href", "link")}
        assert not any("mermaid" in one.split() for one in page.values("class"))  # loads a script
    for style in site.rglob("*.css"):
        asked |= set(re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]+)", style.read_text("utf-8")))
    assert len(asked) > 50
    assert [one for one in asked if re.match(r"(https?:)?//", one)] == []


def test_each_page_of_results_is_read_in_the_site(pages: dict[Path, Page], site: Path) -> None:
    overview = site / "results" / "index.html"
    listed = {target_of(overview, link) for link in pages[overview].values("href", "a")}
    assert len(PAGES) > 40
    for source in PAGES:
        path = html_of(source, site)
        page = pages[path]
        assert path in listed, source
        links = [target_of(path, link) for link in page.values("href", "a")]
        assert overview in links
        assert path.parents[1] / "numbers.csv" in links
        figures = [tag.attributes for tag in page.tags if tag.name == "img"]
        assert {target_of(path, one["src"]).name for one in figures} == {
            figure.name for figure in (REPOSITORY / source).parent.glob("*.png")
        }
        assert all(one["loading"] == "lazy" and int(one["width"]) > 100 for one in figures)
        assert "how-it-was-run" in page.values("id", "h2")


def test_the_navigation_lists_the_pages_of_a_paper_by_their_titles(site: Path) -> None:
    page = html_of(Path("results/gravac/small/table2/table.md"), site).read_text(encoding="utf-8")
    shown = re.findall(r'class="md-ellipsis">\s*(.*?)\s*</span>', page, re.S)
    assert "GraVAC" in shown
    assert "Table II: final quality and speedup, small" in shown
    # names of artifacts replace long titles
    assert not [one for one in shown if "/" in one or re.match(r"Fig\d", one)]


def test_the_page_of_claims_has_each_verdict(pages: dict[Path, Page], site: Path) -> None:
    path = site / "results" / "claims.html"
    rows = Counter(
        target_of(path, tag.attributes["href"])
        for tag in pages[path].tags
        if tag.name == "a" and "td" in [around.name for around in tag.inside]
    )
    for source in PAGES:
        text = (REPOSITORY / source).read_text(encoding="utf-8").partition("\n## Claims\n")[2]
        claims = re.findall(
            r"^\| [\w.-]+\. ", text.partition("\n## ")[0], re.M
        )  # not a further check
        assert rows[html_of(source, site)] == len(claims), source


@pytest.mark.parametrize("name", ["README.md", "results/README.md"])
def test_a_first_page_shows_its_figure_beside_its_table(
    name: str, pages: dict[Path, Page], site: Path
) -> None:
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    section = text.partition("benchmark/small/methods/headline.png)")[2].partition("\n## ")[0]
    page = pages[site / name.replace("README.md", "index.html")]
    answers = [tag for tag in page.tags if tag.attributes.get("class") == "answer"]
    assert len(answers) == ("\n|" in section)
    for answer in answers:
        inside = [tag for tag in page.tags if answer in tag.inside]
        (image,) = (tag for tag in inside if tag.name == "img")
        assert image.attributes["src"].endswith("headline.png")
        assert [tag.name for tag in inside].count("table") == 1


def test_the_search_leaves_out_the_numbers_of_results(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "Table II: final quality and speedup" in index
    page = (RESULTS / "dynamic" / "small" / "table1" / "table.md").read_text(encoding="utf-8")
    for fact_or_cell in (r"^- code: (\w+)", r"^\| .*?(\d+\.\d+ points \(.*?\)) \|"):
        (found, *_) = re.findall(fact_or_cell, page, re.M)
        assert found not in index
