"""Pages of the docs site that are made when it is built (mkdocs-gen-files runs this file; see mkdocs.yml).

The README, the changelog and the results join the pages of docs/; each method gets a page of its docstring,
settings, laws and speed; the API pages name what mkdocstrings reads from the sources.
"""

from __future__ import annotations

import ast
import csv
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import mkdocs_gen_files as site
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
LAWS = REPOSITORY / "build" / "laws.xml"  # of `make docs`
SHOWN = {".md", ".png", ".svg", ".csv", ".json"}  # of results/
HEADINGS = "Paper|Papers|Source|Asks|Keeps|Differs|Letters|Needs|Scheme"
API = {
    "dgc_repro": (
        "Your own loop and records",
        ["dgc_repro.exchange.attached", "dgc_repro.exchange.comm_hook", "dgc_repro.results"],
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
        "Payloads and requests",
        ["dgc_repro.payload.requests", "dgc_repro.payload.interface"],
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
        write(page.name, page.read_text(encoding="utf-8").replace("](../", "]("))
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        text = (REPOSITORY / name).read_text(encoding="utf-8").replace("](docs/", "](")
        write("index.md" if name == "README.md" else name, text)
    write("CITATION.cff", (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    for file in (REPOSITORY / "results").rglob("*"):
        if file.suffix in SHOWN:
            with site.open(str(file.relative_to(REPOSITORY)), "wb") as to:
                content = file.read_bytes()
                if file.suffix == ".md":  # docs/ is the site's root
                    content = content.replace(b"](../docs/", b"](../")
                to.write(content)
    for name, (title, modules) in API.items():
        names = stable_names() if name == "dgc_repro" else ""
        write(f"api/{name}.md", f"# {title}\n\n{names}" + "\n\n".join(map(api_of, modules)))
    methods = list(every_method())
    laws, speeds = law_results(), speed_lines()
    rows = []
    for method in methods:
        write(f"methods/{method.name}.md", page_of(method, laws, speeds))
        rows.append(f"| [`{method.name}`]({method.name}.md) | {method.docstring.splitlines()[0]} |")
    table = "\n".join(["| `compressor=` | what it does |", "|---|---|", *rows])
    write("methods/README.md", f"# Methods\n\n[All settings](../methods.md).\n\n{table}\n")


def api_of(module: str) -> str:
    """What mkdocstrings reads as a module."""
    return f"::: {module}\n    options:\n      show_root_full_path: true"


def stable_names() -> str:
    """The table of `dgc_repro._PUBLIC` by package, without importing anything."""
    tree = ast.parse((REPOSITORY / "dgc_repro" / "__init__.py").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = defaultdict(list)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_PUBLIC":
            for name, module in ast.literal_eval(node.value).items():
                found[module.split(".")[0]].append(f"`{name}`")
    rows = [f"| {package} | {', '.join(names)} |" for package, names in found.items()]
    table = "\n".join(["| package | names |", "|---|---|", *rows])
    return (
        "These names can be imported from `dgc_repro`. They are [stable](../own-loop.md#stable-names) from "
        f"0.2.0 on.\n\n{table}\n\n"
    )


def write(path: str, text: str) -> None:
    """A page of the site."""
    with site.open(path, "w", encoding="utf-8") as to:
        to.write(text)


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
