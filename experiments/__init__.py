"""The papers' figures and tables, each with a verdict on its claim: ``python -m experiments list``."""

from importlib.metadata import version as _version

__version__ = _version("gradient-surrogates")
