"""``python -m dgc_repro.kernel``: compile the C kernels for this processor, unless the cache has them."""

from __future__ import annotations

import sys

from dgc_repro.kernel import native


def main() -> int:
    """Print where the kernels are; the exit code is 1 where they cannot be had."""
    if native.library() is None:  # a line has said why, but for DGC_REPRO_COMPILE=0
        print("no C kernels: tensor operations serve the CPU", file=sys.stderr)
        return 1
    print(f"C kernels: {native.compiled()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
