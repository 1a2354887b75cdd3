"""Numbers of trained runs that ``lit-sparse test`` does not give: functions of a checkpoint, for ``scores`` of a study."""

from __future__ import annotations

from pathlib import Path

import torch

from lit_sparse.runs.torch_files import read_torch_file

__all__ = ["activity", "marginalized", "resampled", "zeros"]


def activity(checkpoint: Path) -> dict[str, float]:
    """Count the active hidden units of a supervised online auto-encoder for each training example.

    Args:
        checkpoint: a checkpoint in a run folder.

    Returns:
        ``mean`` and ``std`` of the numbers, and their sum and difference ``high`` and ``low``.

    Source: Thom & Palm (2013), Sparse Activity and Sparse Connectivity in Supervised Learning, section 5.
    """
    from lit_sparse.cli import build_cli

    cli = build_cli(["test", "-c", str(checkpoint.parents[1] / "config.yaml"), "--ckpt_path", str(checkpoint)])
    cli.datamodule.setup("fit")
    batches = (cli.datamodule.fetch("train", 0, some)["pixels"] for some in cli.datamodule.train_indices().split(1000))
    with torch.inference_mode():
        active = torch.cat([cli.model.encode(pixels).ne(0).sum(-1) for pixels in batches]).double()
    mean, std = float(active.mean()), float(active.std(correction=0))
    return {"mean": mean, "std": std, "low": mean - std, "high": mean + std}


def marginalized(checkpoint: Path) -> dict[str, float]:
    """Test a latent-variable model with the variable summed out, for every estimator.

    Args:
        checkpoint: a checkpoint in a run folder.

    Returns:
        The numbers of a test; ``sent_success`` of a game comes from its own estimator.
    """
    from lit_sparse.cli import build_cli
    from lit_sparse.estimators import Marginalize
    from lit_sparse.models import SignalingGame

    config = str(checkpoint.parents[1] / "config.yaml")
    cli = build_cli(["test", "-c", config, "--ckpt_path", str(checkpoint), "--trainer.logger=false"])
    own = cli.trainer.test(cli.model, cli.datamodule, verbose=False)[0] if isinstance(cli.model, SignalingGame) else {}
    cli.model.estimator = Marginalize().bind(cli.model.mapping)
    (found,) = cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    kept = {name: value for name, value in own.items() if name == "test/sent_success"}
    return {name.removeprefix("test/"): value for name, value in {**found, **kept}.items()}


def resampled(checkpoint: Path) -> dict[str, list[float]]:
    """Let a model predict the test inputs, and return its BLEU for them and for resamples of them.

    Args:
        checkpoint: a checkpoint in a run folder.

    Returns:
        Name of each BLEU of the model -> scores, as :func:`lit_sparse.metrics.bleu.resampled_scores` gives them.
    """
    from lit_sparse.cli import build_cli
    from lit_sparse.data.readers.text_files import read_lines
    from lit_sparse.metrics import Bleu
    from lit_sparse.metrics.bleu import resampled_scores
    from lit_sparse.runs.folders import numbered

    run = checkpoint.parents[1]
    cli = build_cli(["predict", "-c", str(run / "config.yaml"), "--ckpt_path", str(checkpoint)], run=True)
    hypotheses = read_lines(numbered(run / "predict")[-1] / "predictions.txt")
    texts = cli.datamodule.texts("test")
    references = texts["references"] if "references" in texts else [[text] for text in texts["target"]]
    metrics = [metric for metric in cli.model.metrics if isinstance(metric, Bleu)]
    return {metric.name: resampled_scores(metric, hypotheses, references[: len(hypotheses)]) for metric in metrics}


def zeros(checkpoint: Path) -> dict[str, float]:
    """Return the share of exact zeros in each weight matrix of a model."""
    state = read_torch_file(checkpoint, str(checkpoint))["state_dict"]
    return {name: float((weight == 0).double().mean()) for name, weight in state.items() if weight.ndim == 2}
