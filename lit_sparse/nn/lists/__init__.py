"""Products with rows that are lists of few positions: their operations and kernels."""
