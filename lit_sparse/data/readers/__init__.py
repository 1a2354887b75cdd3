"""Readers of files, one module per family of formats. They check sizes first and unpickle nothing."""
