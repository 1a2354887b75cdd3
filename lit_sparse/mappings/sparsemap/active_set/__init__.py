"""The active-set method of SparseMAP: of a row, of a batch, on GPUs, and in torch operations."""
