"""Experiments that repeat the papers' figures and tables and judge their claims: ``python -m experiments list``."""

from importlib.metadata import version as _version

__version__ = _version("gradient-surrogates")
