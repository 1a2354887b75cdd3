"""Categorical distributions that share their network: the layer and its rows."""
