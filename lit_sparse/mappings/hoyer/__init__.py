"""HoyerProjection: the layer, and the algorithm on rows with its derivative."""

from lit_sparse.mappings.hoyer.layer import HoyerProjection, hoyer_projection

__all__ = ["HoyerProjection", "hoyer_projection"]
