"""Networks of the reproduced papers, one a file, built from public blocks.

Each is a frozen dataclass that checks its own settings and builds a module with ``build``. A reduced model
never has the name of the full one.
"""
