"""Compilation of row functions for the CPU, threads over rows, and what all of them share."""
