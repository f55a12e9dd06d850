"""From a config to a finished run: the only package that knows Hydra."""
