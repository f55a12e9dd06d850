"""``python -m dgc_repro selfcheck``: whether this machine computes, exchanges and counts as it should.

`command.py` has the rows and the report; a module makes one kind of row. The laws that a user's own
compressor is held to run over `law_settings/`.
"""
