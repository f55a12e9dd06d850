"""Pages of the docs site that are made when it is built (mkdocs-gen-files runs this file; see mkdocs.yml).

The README, the changelog and the results join the pages of docs/, with the files that they link. A page of
results gets a link to all results, and its facts are folded. One more page lists all claims by verdict. The
navigation lists the results by paper. Each method gets a page of its docstring, settings, laws and speed.
The API pages name what mkdocstrings reads from the sources.
"""

from __future__ import annotations

import ast
import csv
import html
import os
import re
import struct
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import mkdocs_gen_files as site
import pandas as pd
import yaml

from dgc_repro.paper import index, pool
from dgc_repro.paper.index import Entry
from dgc_repro.paper.markdown import markdown_table, plain
from dgc_repro.paper.page import HOW, PAGE_FILE
from dgc_repro.paper.verdict import WORDS

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "results"
LAWS = REPOSITORY / "build" / "laws.xml"  # of `make docs`
PAPERS = {  # in the navigation; another paper has the name of its folder
    "dynamic": "Dynamic gradient compression",
    "gravac": "GraVAC",
    "lecture": "Lecture",
    "mlsbench": "MLS-Bench",
    "benchmark": "Benchmark",
}
TITLE_LENGTH = 80  # in the navigation
FACTS = re.compile(rf"(?<=\n## {HOW}\n\n)(?:- .*\n)+")  # the list at a page's end
TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
# a figure, the text below it, and the table below that
ANSWER = re.compile(r"^!\[.*\n(?:(?!#|!\[|\|).*\n)*(?:\|.*\n)+", re.M)
HEADINGS = "Paper|Papers|Source|Asks|Keeps|Differs|Letters|Needs|Scheme"
API = {
    "dgc_repro": (
        "Your own loop and records",
        ["dgc_repro.exchange.door", "dgc_repro.exchange.attached", "dgc_repro.results"],
    ),
    "compressor": (
        "Compressors",
        [
            "dgc_repro.compressor.interface",
            "dgc_repro.kernel.batch",
            "dgc_repro.compressor.sparsifier",
        ],
    ),
    "policy": ("Policies", ["dgc_repro.policy.interface"]),
    "exchange": (
        "Workers and payloads",
        ["dgc_repro.exchange.world", "dgc_repro.payload.interface"],
    ),
    "paper": (
        "Papers",
        [f"dgc_repro.paper.{name}" for name in ("claims", "verdict", "frame", "page", "plot")],
    ),
}


class Method(NamedTuple):
    """A file of conf/compressor and the class that it names."""

    name: str
    settings: str
    module: str
    class_name: str

    @property
    def docstring(self) -> str:
        source = REPOSITORY / f"{self.module.replace('.', '/')}.py"
        return ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""


def main() -> None:
    """Write all pages."""
    for page in (REPOSITORY / "docs").glob("*.md"):
        write_file(page, page.read_text(encoding="utf-8"))
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        write_file(REPOSITORY / name, (REPOSITORY / name).read_text(encoding="utf-8"))
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    write_file(REPOSITORY / "README.md", answer_first(readme, "[navigation, toc]"))
    write_results(index.entries(RESULTS))
    for name, (title, modules) in API.items():
        is_stable = name == "dgc_repro"
        parts = [api_of(module, public_of(module) if is_stable else ()) for module in modules]
        names = stable_names() if is_stable else ""
        write(f"api/{name}.md", f"# {title}\n\n{names}" + "\n\n".join(parts))
    methods = list(every_method())
    laws, speeds = law_results(), speed_lines()
    rows = []
    for method in methods:
        write(f"methods/{method.name}.md", page_of(method, laws, speeds))
        rows.append(f"| [`{method.name}`]({method.name}.md) | {method.docstring.splitlines()[0]} |")
    table = "\n".join(["| `compressor=` | what it does |", "|---|---|", *rows])
    write("methods/README.md", f"# Methods\n\n[All settings](../methods.md).\n\n{table}\n")


def answer_first(text: str, hide: str) -> str:
    """A page with its first figure beside the table that follows. ``hide``: columns whose place they take."""
    beside = r'<div class="answer" markdown>\n\n\g<0>\n</div>\n'
    return f"---\nhide: {hide}\n---\n{ANSWER.sub(beside, text, count=1)}"


def write_results(entries: Sequence[Entry]) -> None:
    """Write the overview, the claims, the page of each artifact and the speed tables, and list them in the
    navigation."""
    overview = RESULTS / "README.md"
    text = below_title(overview.read_text(encoding="utf-8"), "[All claims, by verdict](claims.md)")
    write_file(overview, answer_first(text, "[toc]"))
    write_file(RESULTS / "claims.md", claims_page(entries))
    pages = {entry.folder / PAGE_FILE: title_of(entry) for entry in entries}
    groups = {page: name_of(entry.paper) for page, entry in zip(pages, entries, strict=True)}
    for page in sorted(set(RESULTS.rglob("*.md")) - {overview, *pages}):
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        if page.parent.name == "conformance":
            pages[page], groups[page] = title, "Conformance"
        else:
            pages[page], groups[page] = f"{title}, {page.parent.name}", "Speed tables"
    listed: list[dict[str, Any]] = [
        {"All results": placed(overview)},
        {"All claims": "results/claims.md"},
    ]
    for name, group in groupby(pages, key=groups.__getitem__):
        listed.append({name: [{pages[page]: placed(page)} for page in group]})
    for page in pages:
        links = f"[All results]({os.path.relpath(overview, page.parent)})"
        if (page.parent.parent / pool.NUMBERS_FILE).is_file():
            links += f" · [numbers (CSV)](../{pool.NUMBERS_FILE})"
        write_file(page, results_page(page.read_text(encoding="utf-8"), links))
    (section,) = (one for one in site.config.nav if "Results" in one)
    section["Results"] = listed


def name_of(paper: str) -> str:
    """A paper's name in the navigation."""
    return PAPERS.get(paper, paper)


def title_of(entry: Entry) -> str:
    """A page's title and scale, without the name of its paper. The artifact's name replaces a long title."""
    title = entry.record["title"].removeprefix(name_of(entry.paper)).lstrip(",: ")
    title = entry.artifact if len(title) > TITLE_LENGTH else title
    return plain(f"{title[:1].upper()}{title[1:]}, {entry.scale}")


def below_title(text: str, line: str) -> str:
    """A page with a line more below its title."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{line}\n{rest}"


def results_page(text: str, links: str) -> str:
    """A page of results with links at its top. The search leaves facts and tables out, and ranks the page
    below those of docs/."""
    title = html.unescape(text.partition("\n")[0].removeprefix("# "))
    for part in (TABLE, FACTS):
        text = part.sub(r"<div data-search-exclude markdown>\n\n\g<0>\n</div>\n", text)
    meta = yaml.safe_dump({"title": title, "search": {"boost": 0.5}}, allow_unicode=True)
    return f"---\n{meta}---\n{below_title(text, links)}"


def claims_page(entries: Sequence[Entry]) -> str:
    """The claims of all papers by verdict."""
    parts = ["# All claims\n\n[What the verdicts mean](../docs/reading-a-result.md#verdicts)"]
    for word in WORDS:
        rows = [
            (f"[{name}]({link})", plain(claim["text"]), plain(claim["detail"]))
            for entry in entries
            for name in [f"{name_of(entry.paper)}: {title_of(entry)}"]
            for link in [(entry.folder / PAGE_FILE).relative_to(RESULTS).as_posix()]
            for claim in entry.record["verdicts"]
            if claim["verdict"] == word
        ]
        if rows:
            table = pd.DataFrame(rows, columns=["page", "claim", "measured"])
            parts += [f"## {word} ({len(rows)})", markdown_table(table, links=True)]
    return results_page("\n\n".join(parts) + "\n", "[All results](README.md)")


def api_of(module: str, members: Sequence[str] = ()) -> str:
    """What mkdocstrings reads as a module: its ``members``, or all that have public names."""
    chosen = f"\n      members: [{', '.join(members)}]" if members else ""
    return f"::: {module}\n    options:\n      show_root_full_path: true{chosen}"


def public_of(module: str) -> list[str]:
    """The names of a module that can be imported from `dgc_repro`."""
    return [name for name, of in public_names().items() if f"dgc_repro.{of}" == module]


def public_names() -> dict[str, str]:
    """`dgc_repro._PUBLIC`: modules by name, without importing anything."""
    tree = ast.parse((REPOSITORY / "dgc_repro" / "__init__.py").read_text(encoding="utf-8"))
    (found,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_PUBLIC"
    )
    names: dict[str, str] = ast.literal_eval(found)
    return names


def stable_names() -> str:
    """The table of `dgc_repro._PUBLIC` by package."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, module in public_names().items():
        found[module.split(".")[0]].append(f"`{name}`")
    rows = [f"| {package} | {', '.join(names)} |" for package, names in found.items()]
    table = "\n".join(["| package | names |", "|---|---|", *rows])
    return (
        "These names can be imported from `dgc_repro`. They are [stable](../own-loop.md#stable-names) from "
        f"0.2.0 on.\n\n{table}\n\n"
    )


def write(path: str, text: str) -> None:
    """Write a page of the site."""
    with site.open(path, "w", encoding="utf-8") as to:
        to.write(text)


def placed(file: Path) -> str:
    """Where a file of the repository lies in the site, whose root has the pages of docs/ too."""
    path = file.relative_to(REPOSITORY).as_posix()
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def write_file(file: Path, text: str) -> None:
    """Write ``text`` as the page of a file of the repository. Its links lead to pages of the site, and other
    files that it links are copied."""
    page = placed(file)

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(file.parent / found[1]))
        if not target.is_file():
            return found[0]
        if target.suffix != ".md":
            with site.open(placed(target), "wb") as to:
                to.write(target.read_bytes())
        place = os.path.relpath(placed(target), Path(page).parent)
        return f"]({place}{found[2] or ''})" + (loading(target) if target.suffix == ".png" else "")

    write(page, re.sub(r"\]\(([^)#\s]+)(#[^)\s]*)?\)", link, text))


def loading(image: Path) -> str:
    """Attributes of an image that is loaded when it is scrolled to, into a place that is kept for it."""
    width, height = struct.unpack(">II", image.read_bytes()[16:24])
    return f"{{ loading=lazy width={width} height={height} }}"


def every_method() -> Iterator[Method]:
    """By name. A file without a class of its own has that of the first file it takes its defaults from."""
    folder = REPOSITORY / "conf" / "compressor"
    for file in sorted(folder.glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        config = yaml.safe_load(text)
        while not (target := config.get("compressor", config).get("_target_")):
            config = yaml.safe_load((folder / f"{config['defaults'][0]}.yaml").read_text("utf-8"))
        module, _, class_name = target.rpartition(".")
        yield Method(file.stem, text, module, class_name)


def page_of(method: Method, laws: dict[str, dict[str, int]], speeds: list[dict[str, str]]) -> str:
    """A method in Markdown: docstring, settings, class, laws, speed."""
    first, _, rest = method.docstring.partition("\n")
    parts = [
        f"# {method.name}",
        first,
        re.sub(rf"^({HEADINGS}): (.)", headed, rest, flags=re.M).strip(),
        f"## Settings\n\n`compressor={method.name}`:\n\n```yaml\n{method.settings}```",
        f"## Class\n\n::: {method.module}.{method.class_name}\n    options:\n      heading_level: 3",
        "## Laws\n\nSettings of this method in `tests/compressor/test_laws.py`, alone and in wrappers, in "
        "worlds of 2, 3 and 5 workers, as they ended when this site was built.",
        laws_table(method.name, laws),
        "## Speed\n\nOne gradient of 44.5 M values, in multiples of a `copy_` of it (`make bench`).",
        speed_table(method.name, speeds),
    ]
    return "\n\n".join(parts) + "\n"


def headed(line: re.Match[str]) -> str:
    """A line of a docstring that begins with "Asks:" as a paragraph of its own."""
    return f"\n**{line[1]}.** {line[2].upper()}"


def is_of(method: str, setting: str) -> bool:
    """Whether a setting, as laws and benchmarks name it, is of this method."""
    return re.match(rf"(ef-)?{method}(?![a-z_])", setting) is not None


def law_results() -> dict[str, dict[str, int]]:
    """Cases by law, setting and end."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    if not LAWS.is_file():
        return found
    for case in ElementTree.parse(LAWS).iter("testcase"):
        named = re.fullmatch(r"test_([a-z]+)_(.*)\[(.*)\]", case.get("name", ""))
        if named and case.find("skipped") is None:
            failed = case.find("failure") is not None or case.find("error") is not None
            law = f"{named[1]}: {named[2].replace('_', ' ')}"
            found[law][f"{named[3]}\n{'failed' if failed else 'passed'}"] += 1
    return found


def laws_table(method: str, laws: dict[str, dict[str, int]]) -> str:
    """How many cases of each law passed and failed."""
    rows = []
    for law, cases in laws.items():
        ends = {"passed": 0, "failed": 0}
        for named, number in cases.items():
            setting, end = named.split("\n")
            ends[end] += number if is_of(method, setting) else 0
        if sum(ends.values()):
            rows.append(f"| {law} | {ends['passed']} | {ends['failed']} |")
    if not rows:
        return "No case names this method." if laws else "Not run: `make docs` runs them."
    return "\n".join(["| law | cases passed | failed |", "|---|---|---|", *rows])


def speed_lines() -> list[dict[str, str]]:
    """Rows of all committed benchmarks of methods."""
    rows = []
    for file in sorted((REPOSITORY / "results" / "bench").glob("*/methods.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            rows += list(csv.DictReader(lines))
    return rows


def speed_table(method: str, speeds: list[dict[str, str]]) -> str:
    """The committed lines of a method, of all machines."""
    rows = [
        f"| {row['setting']} | {float(row['compress_x']):.2f} | {float(row['decompress_x']):.2f} "
        f"| {float(row['sent_bits_per_value']):.2f} | {row['cpu']}, {row['cores']} cores, {row['date']} |"
        for row in speeds
        if is_of(method, row["setting"])
    ]
    if not rows:
        return "Not measured by itself."
    head = (
        "| setting | compress | decompress | bits sent a value | machine |\n|---|---|---|---|---|"
    )
    return "\n".join([head, *rows])


main()
