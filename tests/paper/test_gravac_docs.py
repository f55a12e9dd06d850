"""docs/gravac.md names the rows of the pool and the artifacts that exist; silent choices are settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgc_repro.names import papers_in
from dgc_repro.paper import gravac


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "gravac.md").read_text(encoding="utf-8")


def test_the_letters_of_the_notes_are_all_there() -> None:
    letters = [c.silent[1] for c in gravac.CHOICES if c.silent.startswith("(")]
    assert list(dict.fromkeys(letters)) == list("abcdefghij")


def test_the_methods_and_artifacts_are_in_the_page(page: str, repository: Path) -> None:
    sizes = {f"{name}{factor}" for name in gravac.COMPRESSORS for factor in gravac.FACTORS}
    missing = [
        f"`{name}`" for name in gravac.LOOKS if name not in sizes and f"`{name}`" not in page
    ]
    assert missing == []
    for name in papers_in(repository / "conf")["gravac"]["artifact"]:
        assert f"`{name}`" in page or f"`{name.partition('/')[2]}`" in page


def test_every_choice_names_a_setting_of_a_run(repository: Path) -> None:
    """A key's last part stands in a YAML of its group, or in the config itself."""
    conf = repository / "conf"
    for choice in gravac.CHOICES:
        group, _, rest = choice.key.partition(".")
        files = [
            *(conf / group).rglob("*.yaml"),
            conf / "config.yaml",
            conf / "paper" / "gravac.yaml",
        ]
        text = "\n".join(path.read_text(encoding="utf-8") for path in files)
        assert f"{rest or group}" in text, choice.key
