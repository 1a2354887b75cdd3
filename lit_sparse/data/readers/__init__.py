"""Readers of files, one module for each family of formats. Sizes are checked first, and nothing is unpickled."""
