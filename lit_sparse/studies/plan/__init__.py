"""Studies as data: their cells and options, read from YAML."""
