"""``reproduce --help``: usage, keys, and a table of all artifacts with titles and times. Needs no torch."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from dgc_repro.launch.cli_args import WIDTH, Keys, in_columns, share_of, some_text, yes_no
from dgc_repro.launch.paths import artifacts
from dgc_repro.paper import times
from dgc_repro.paper.publish import package_of
from dgc_repro.progress import duration
from dgc_repro.results import RESULTS

LIST = "list"
KEYS: Keys = {
    "published": (
        *(yes_no, False),
        "take the project's published runs where they exist, and train the others",
    ),
    "plan": (
        *(yes_no, False),
        "print hours, memory and disk for each device, and the runs that each claim needs; train nothing",
    ),
    "device": (some_text, None, "with plan=true: t4, v100, a100, h100 or cpu alone"),
    "share": (
        *(share_of, None),
        "2/3 makes the second, fifth, ... run and no page: several machines share the work",
    ),
    "publish": (yes_no, False, "for maintainers: write the page into paths.results"),
    "list": (
        *(some_text, None),
        "in place of an artifact, a list of them: queue (conf/queue.yaml), or a file of yours; "
        "plan=true prints its hours, publish=true its finished pages",
    ),
}
"""Keys of `reproduce` itself, beside ``roots.<dataset>``."""
LIST_KEYS = (LIST, "plan", "publish")
"""Those that go with a list."""
OTHERS = {
    "--config-dir=": "a folder with configs of your own, such as conf/ of your paper",
    "scale=quick": "sizes of the runs, such as quick, small or paper",
    '"scale.seeds=[0,1]"': "the seeds; seed=0 for a single one",
    "roots.<dataset>=": "where the files of a data set lie",
    "paths.reproduced=": "where the page goes",
    "measure.<key>=": "how an artifact is measured",
    "study.<part>.<key>=": "what an artifact is computed of",
    "key=value": "any other setting, for all runs",
}
TITLE, TIME = 30, 7
"""Columns of titles and of times."""


def show() -> None:
    """Print the page."""
    print("usage: python -m dgc_repro reproduce <artifact> [key=value ...]")
    print("       python -m dgc_repro reproduce list=queue [plan=true]\n")
    print("Finished runs are not made again: after a stop, give the same command.\n")
    own = [(f"{key}={'false' if d is False else ''}", said) for key, (_, d, said) in KEYS.items()]  # type: ignore[misc]
    print("\n".join(in_columns([*OTHERS.items(), *own], 21)))
    print("\n".join(_table()))


def _table() -> Iterator[str]:
    """The artifacts by paper."""
    found, (quick, machine) = times.published(RESULTS), times.reckoned(RESULTS)
    names = artifacts()
    wide = max(map(len, names)) + 2
    for paper, own in groupby(names, key=lambda name: name.partition("/")[0]):
        yield f"\n{paper:<{wide + TITLE + 2}} {'quick':>{TIME}}  published"
        for name in own:
            of_scales = found.get(name, {})
            recorded = of_scales.get(times.QUICK)
            if recorded and recorded.seconds:
                first = duration(recorded.seconds)
            else:
                first = f"~{duration(quick[name])}" if name in quick else "-"
            scale = times.best_scale(of_scales)
            seconds = of_scales[scale].seconds if scale else 0.0
            last = f"{scale} {duration(seconds) if seconds else '-'}" if scale else "-"
            lines = textwrap.wrap(
                _title(name, of_scales), TITLE, max_lines=2, placeholder=" ..."
            ) or [""]
            yield f"  {name:<{wide}}{lines[0]:<{TITLE}} {first:>{TIME}}  {last}".rstrip()
            yield from (f"  {'':<{wide}}{line}" for line in lines[1:])
    yield ""
    yield from textwrap.wrap(
        f"Times are those of all runs one after another. ~: reckoned from steps that were timed on a core of "
        f"{machine or 'no machine yet'}; the others were recorded by the published runs, whose scale "
        "stands before the time. plan=true reckons any scale on your machine.",
        WIDTH,
    )


def _title(name: str, of_scales: dict[str, times.Published]) -> str:
    """The title of an artifact's page, without that of its paper."""
    paper, _, artifact = name.partition("/")
    found = next((one.title for one in of_scales.values()), "")
    if not found and (spec := find_spec(package_of(paper))) and spec.submodule_search_locations:
        places = [Path(place) / f"{artifact}.md" for place in spec.submodule_search_locations]
        found = next(filter(None, map(times.title_in, places)), "")
    return re.sub(r"^[^,:]+[,:] ", "", found)
