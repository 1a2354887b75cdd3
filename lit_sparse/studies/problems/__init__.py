"""The problems of papers on which the studies of the package compare methods."""
