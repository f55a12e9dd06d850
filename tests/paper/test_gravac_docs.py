"""docs/gravac.md says what the package says: every silent choice, every row of the pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgc_repro.paper import gravac_training as printed
from dgc_repro.paper.claim import SilentChoice


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "gravac.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("choice", printed.SILENT_CHOICES, ids=lambda c: c.silent[:30])
def test_every_silent_choice_is_in_the_page_as_reports_print_it(
    page: str, choice: SilentChoice
) -> None:
    assert f"| {choice.silent} | {choice.chosen} | `{choice.key}` |" in page


def test_the_letters_of_the_notes_are_all_there() -> None:
    letters = [c.silent[1] for c in printed.SILENT_CHOICES if c.silent.startswith("(")]
    assert list(dict.fromkeys(letters)) == list("abcdefghij")


def test_the_rows_of_the_tables_are_in_the_page(page: str) -> None:
    for method in (printed.DENSE, printed.GRAVAC, printed.GRAVAC_STRICT, printed.ACCORDION):
        assert f"`{method}`" in page


def test_every_choice_names_a_setting_of_a_run(repository: Path) -> None:
    """A key's last part stands in a YAML of its group, or in the config itself."""
    conf = repository / "conf"
    for choice in printed.SILENT_CHOICES:
        group, _, rest = choice.key.partition(".")
        files = [*(conf / group).rglob("*.yaml"), conf / "config.yaml"]
        text = "\n".join(path.read_text(encoding="utf-8") for path in files)
        assert f"{rest or group}" in text, choice.key
