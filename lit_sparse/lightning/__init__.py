"""Lightning, whichever of its two packages is installed, and its private parts."""
