"""``python -m dgc_repro selfcheck``: whether this machine computes, exchanges and counts what it should."""
