"""What was claimed: each paper's printed numbers, claims and contradictions, as data with a source.

Nothing here measures, trains or imports torch. ``dgc_repro.report`` puts these numbers beside what
was measured.
"""
