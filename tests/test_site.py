"""The docs site is built without a warning, with a page for each method."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dgc_repro

REPOSITORY = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=REPOSITORY,
        env=os.environ | {"DISABLE_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for config in (REPOSITORY / "conf" / "compressor").glob("*.yaml"):
        page = (tmp_path / "methods" / config.stem / "index.html").read_text(encoding="utf-8")
        assert all(f'id="{part}"' in page for part in ("settings", "class", "laws", "speed"))
    api = (tmp_path / "api" / "compressor" / "index.html").read_text(encoding="utf-8")
    assert "dgc_repro.compressor.interface.Compressor.exchange" in api
    own = (tmp_path / "api" / "dgc_repro" / "index.html").read_text(encoding="utf-8")
    public = set(dgc_repro.__all__) - {"__version__"}
    assert public == set(re.findall(r"<code>(\w+)</code>", own)) & public
