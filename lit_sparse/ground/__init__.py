"""Foundations of the other subpackages: arguments, files, processes, and the private parts of torch."""
