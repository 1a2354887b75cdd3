"""The version of the package, readable without importing anything."""

__version__ = "0.2.0"
