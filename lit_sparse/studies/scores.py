"""Numbers of trained runs that ``lit-sparse test`` does not give: functions of a checkpoint, for ``scores`` of a study."""

from __future__ import annotations

from pathlib import Path

import torch

__all__ = ["marginalized", "zeros"]


def marginalized(checkpoint: Path) -> dict[str, float]:
    """Test a latent-variable model with the variable summed out, whatever estimator trained it.

    Args:
        checkpoint: a checkpoint in a run folder.

    Returns:
        The numbers of a test.
    """
    from lit_sparse.cli import build_cli
    from lit_sparse.estimators import Marginalize

    config = str(checkpoint.parents[1] / "config.yaml")
    cli = build_cli(["test", "-c", config, "--ckpt_path", str(checkpoint), "--trainer.logger=false"])
    cli.model.estimator = Marginalize().bind(cli.model.mapping)
    (found,) = cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    return {name.removeprefix("test/"): value for name, value in found.items()}


def zeros(checkpoint: Path) -> dict[str, float]:
    """Return the share of exact zeros in each weight matrix of a model."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    return {name: float((weight == 0).double().mean()) for name, weight in state.items() if weight.ndim == 2}
