"""``python -m dgc_repro``: one run, a sweep (``--multirun``), or ``reproduce <paper>/<artifact>``."""

from __future__ import annotations

from dgc_repro.launch.main import main

if __name__ == "__main__":
    main()
