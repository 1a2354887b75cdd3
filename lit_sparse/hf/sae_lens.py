"""Sparse auto-encoders in the files that SAELens reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from lit_sparse.errors import ConfigurationError, full_name, needs_extra
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.files import replaced
from lit_sparse.mappings import BatchTopK, HardThreshold, JumpReLU

__all__ = ["save_for_sae_lens"]

#: Version of SAELens since which its files have this form.
VERSION = "6.0.0"


@torch.no_grad()
@checked
def save_for_sae_lens(autoencoder: Any, folder: str | Path, *, model_name: str = "", hook_name: str = "") -> None:
    """Write a sparse auto-encoder to a folder in the format of SAELens, for ``sae_lens.SAE.load_from_disk``.

    The files are ``cfg.json`` and ``sae_weights.safetensors``. The activity in SAELens is this package's activity times the
    scale of the activations.

    Args:
        autoencoder: a :class:`lit_sparse.models.SparseAutoencoder` with a ``HardThreshold`` of positive scores, a
            ``BatchTopK`` or a ``JumpReLU``. SAELens supports no other mapping of the package.
        folder: folder of the two files.
        model_name: name of the model whose activations it reconstructs.
        hook_name: name of the module there.

    Raises:
        ConfigurationError: for another model or mapping.
        MissingExtraError: without the extra ``hf``.
    """
    with needs_extra("hf", "Files of SAELens"):
        from safetensors.torch import save
    if not hasattr(autoencoder, "dictionary"):
        raise ConfigurationError(f"Expected a SparseAutoencoder of lit_sparse.models but got {full_name(autoencoder)}.")
    mapping, scale, width = autoencoder.mapping, autoencoder.scale.float(), autoencoder.width
    weights = {
        "W_enc": autoencoder.encoder.weight.mT,
        "b_enc": scale * autoencoder.encoder.bias,
        "W_dec": autoencoder.dictionary,
        "b_dec": autoencoder.bias,
    }
    if isinstance(mapping, HardThreshold) and mapping.nonneg:
        own: dict[str, Any] = {"architecture": "topk", "k": mapping.k, "rescale_acts_by_decoder_norm": False}
    elif isinstance(mapping, BatchTopK | JumpReLU):
        own = {"architecture": "jumprelu"}
        cutoff = mapping.cutoff if isinstance(mapping, BatchTopK) else mapping.thresholds
        weights["threshold"] = (scale * cutoff).expand(width)
    else:
        raise ConfigurationError(
            f"Expected HardThreshold(nonneg=True), BatchTopK or JumpReLU for SAELens but got {mapping!r}. Train one of these,"
            " or use the checkpoint."
        )
    config = {
        "d_in": autoencoder.in_features,
        "d_sae": width,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {"sae_lens_version": VERSION, "model_name": model_name, "hook_name": hook_name},
    }
    with replaced(Path(folder) / "sae_weights.safetensors", "wb") as file:
        file.write(save({name: value.detach().float().cpu().contiguous().clone() for name, value in weights.items()}))
    with replaced(Path(folder) / "cfg.json", "w") as file:
        json.dump({**config, **own}, file, indent=1)
