"""The one error that is shown as a line and not as a traceback."""

from __future__ import annotations

from collections.abc import Mapping


class UserError(ValueError):
    """Something only the user can mend: a setting, a file, a missing device.

    The message is one line that begins with the config key (``dataset.root: ...``) and ends with
    the likely fix. The entry points print it and exit with code 2.
    """


def refuse_first_of(problems: Mapping[str, bool]) -> None:
    """Raise UserError with the first problem that applies."""
    for text, applies in problems.items():
        if applies:
            raise UserError(text)
