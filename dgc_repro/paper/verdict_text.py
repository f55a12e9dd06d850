"""The verdicts of a page in words: what was found, a table of the claims, and what chance would give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from dgc_repro.paper.claims import EXPECTED, OURS
from dgc_repro.paper.effect import Effect
from dgc_repro.paper.markdown import inert, markdown_table
from dgc_repro.paper.verdict import UNTESTED, WORDS, Verdict, by_chance, tally

DECIDED, OPEN = WORDS[:4], WORDS[4:7]
UNDECIDED = {
    "open": OPEN,
    "not tested": UNTESTED,
    "true by construction": ("by construction",),
    "contradicted by the paper's own numbers": ("cannot follow",),
}
"""How the first paragraph calls the other verdicts."""
LEAST = 0.05
"""Claims that are worth a word about chance."""
NAMED = 6
"""How many claims the first paragraph names for each of the decided verdicts."""


def found_text(found: str, verdicts: Sequence[Verdict]) -> str:
    """The first paragraph: what the runs show, how many claims have each verdict, and the decided ones in
    words. Repeated claims are not counted."""
    own = [verdict for verdict in verdicts if not verdict.repeats]
    counts, words = tally(own), [found]
    if own:
        count = f"{len(own)} claims" if len(own) > 1 else "one claim"
        agree, differ = (
            _counted(counts, DECIDED[::2], "agree"),
            _counted(counts, DECIDED[1::2], "differ"),
        )
        rest = {
            name: sum(counts.get(word, 0) for word in group) for name, group in UNDECIDED.items()
        }
        others = [f"{n} {'is' if n == 1 else 'are'} {name}" for name, n in rest.items() if n]
        words.append(
            f"Of {count} {agree} with these runs and {differ}{''.join(f'; {one}' for one in others)}."
        )
        expected = sum(verdict.claim.where == EXPECTED for verdict in own)
        if expected == len(own):
            words.append("All are this project's own expectations.")
        elif expected:
            words.append(
                f"{expected} of them {'is' if expected == 1 else 'are'} this project's own."
            )
    text = " ".join(word for word in words if word)
    lines = []
    for title, side in (("Agrees", 0), ("Differs", 1)):
        texts = [v.claim.text.rstrip(".") for v in own if v.word in DECIDED[side::2]]
        if texts:
            more = f"; and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
            lines.append(f"- *{title}*: {'; '.join(texts[:NAMED])}{more}.")
    return "\n\n".join([f"**Found.** {text}", "\n".join(lines)]).strip() if text else ""


def _counted(counts: Mapping[str, int], words: Sequence[str], verb: str) -> str:
    """How many verdicts of these words, with the verb: "none agrees", "2 agree"."""
    count = sum(counts.get(word, 0) for word in words)
    return f"{count or 'none'} {verb}{'s' * (count < 2)}"


def claims_text(verdicts: Sequence[Verdict]) -> list[str]:
    """The claims, a check a row, with what keeps them open as lettered notes, and how each is read."""
    if not verdicts:
        return []
    ordered = sorted(verdicts, key=lambda verdict: WORDS.index(verdict.word))
    letters: dict[str, str] = {}
    rows = []
    for verdict in ordered:
        claim = verdict.claim
        note = letters.setdefault(verdict.why, _letter(len(letters))) if verdict.why else ""
        word = f"**{verdict.text}**" if verdict.word in DECIDED else verdict.text
        head = (f"{claim.id}. {claim.text} ({claim.where})", f"{word} ({note})" if note else word)
        effects = [(f"{e.what}: {e.measured}", _range(verdict, e), e.n) for e in verdict.effects]
        for place, effect in enumerate(effects or [("no runs", "", 0)]):
            again = (f"{claim.id}, check {place + 1}", "")
            rows.append((*(again if place else head), *effect))
    columns = ["claim", "verdict", "measured (95 % interval)", "agrees if", "n"]
    parts = ["## Claims", markdown_table(pd.DataFrame(rows, columns=columns))]
    parts.append(
        "\n".join(f"- ({letter}) {inert(_sentence(why))}" for why, letter in letters.items())
    )
    parts += [count_text(verdicts), prior_text(verdicts)]
    readings: dict[str, list[str]] = {}
    for verdict in verdicts:
        readings.setdefault(verdict.claim.reading, []).append(verdict.claim.id)
    lines = [f"- {', '.join(ids)}: {text}" for text, ids in readings.items() if text]
    return [*parts, "How the claims are read:\n\n" + "\n".join(lines) if lines else ""]


def _range(verdict: Verdict, effect: Effect) -> str:
    """The claimed range, with the printed number, and whether this project chose the range. A claim that
    cannot follow has none."""
    ours = "our range" if verdict.claim.margin == OURS else ""
    printed = f"printed: {effect.printed}" if effect.printed else ""
    if verdict.word == "cannot follow":
        return printed
    more = ", ".join(part for part in (printed, ours) if part)
    claimed = effect.claimed.replace("e +0", "e 0")  # above 0
    return f"{claimed} ({more})" if more else claimed


def _letter(place: int) -> str:
    """a to z, then aa, ab, ..."""
    more, last = divmod(place, 26)
    return (_letter(more - 1) if more else "") + chr(ord("a") + last)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def tally_text(counts: Mapping[str, int]) -> str:
    """How many claims have each verdict, in a fixed order: "2 agree, 1 differs, 3 inconclusive"."""
    verbs = {"agrees": "agree", "differs": "differ"}
    parts = []
    for word in (word for word in WORDS if counts.get(word)):
        verb, *given = word.partition(" (")
        said = verbs.get(verb, verb) if counts[word] > 1 else verb
        parts.append(f"{counts[word]} {said}{''.join(given)}")
    return ", ".join(parts)


def count_text(verdicts: Sequence[Verdict]) -> str:
    """How many verdicts of each word, and how many agreements and differences chance would give."""
    counts = tally(verdicts)
    repeated = sum(bool(v.repeats) for v in verdicts)
    more = f" {repeated} more compare the same trainings again." if repeated else ""
    judged, excluding, agreements, differences = by_chance(verdicts)
    if excluding:
        more += (
            f" Of the {judged} judged claims {excluding} have a range without 'no effect'. If no row "
            f"differed from another, at most {agreements:.1f} of these {excluding} would agree by chance."
        )
    if differences >= LEAST:
        more += f" If all claims were true, at most {differences:.1f} of the {judged} would differ by chance."
    count = sum(counts.values())
    return f"Of {count} claim{'s' * (count != 1)}: {tally_text(counts)}.{more}"


def prior_text(verdicts: Sequence[Verdict]) -> str:
    """Where intervals are moderated, and the degrees of freedom of each prior; empty where none is."""
    found = {}
    for effect in (effect for verdict in verdicts for effect in verdict.effects):
        if (prior := effect.prior) is not None:
            quantity, setting, kind, model = effect.check.group
            what = ", ".join(part for part in (quantity, setting, f"{kind}s", model) if part)
            df = "infinitely many" if math.isinf(prior.df) else f"{prior.df:.2g}"
            found[what] = f"{what}: {df} from {prior.rows} comparisons"
    if not found:
        return ""
    return (
        "Intervals of these comparisons are moderated (statistics.py); degrees of freedom of the prior of "
        f"their variances: {'; '.join(found.values())}. All others are Student's."
    )
