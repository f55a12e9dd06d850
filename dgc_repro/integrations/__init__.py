"""`attach` in the training loops of frameworks, a module for each (docs/frameworks.md).

A module imports its framework, and only its user imports the module.
"""
