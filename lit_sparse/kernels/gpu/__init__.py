"""Programs for GPUs: the launch of functions that numba-cuda translates, and Triton's programs."""
