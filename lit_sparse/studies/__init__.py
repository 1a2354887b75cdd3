"""Studies: grids of runs as data, their rows, tables and figures."""
