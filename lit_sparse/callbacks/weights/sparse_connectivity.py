"""Keeps weights at a given sparseness while a model is trained."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from lit_sparse.callbacks.weights.named_weights import find_weights
from lit_sparse.checks import POSITIVE, Count, Number, check_integer, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.state_checks import COUNT, OneOf
from lit_sparse.lightning.choice import pl, rank_zero_warn
from lit_sparse.mappings.functional import hoyer_projection

__all__ = ["SparseConnectivity"]


@ranges(sparseness=Number(0.0, 1.0), norm=POSITIVE, every=Count())
class SparseConnectivity(pl.Callback):
    """Project weights of any model to a Hoyer sparseness, before training and then every few epochs or steps.

    Each vector is projected separately by :func:`lit_sparse.mappings.functional.hoyer_projection`. Weights are projected
    before the validation at the end of an epoch, and when training ends, also when it stops early. Between projections they
    are dense. The projection depends only on the weights, so all processes compute the same. The optimizer keeps its state.
    A resumed run projects at the same steps as an uninterrupted one. Several of these callbacks may act on different
    weights.

    To use it in a config::

        trainer:
          callbacks:
            - class_path: SparseConnectivity
              init_args: {module: encoder, sparseness: 0.75}

    Args:
        module: path of a parameter in the model (``body.decoder.weight_hh_l0``), or of a module that has a ``weight``
            (``encoder``); or a list of paths.
        sparseness: Hoyer sparseness of each vector, in [0, 1]: 0 for equal magnitudes, 1 for one nonzero weight.
        dim: dimension, or list of dimensions, of the vectors: -1 for the inputs of each unit of ``torch.nn.Linear``, [1, 2,
            3] for the filters of ``torch.nn.Conv2d``.
        norm: Euclidean norm of each vector, > 0; None to keep its norm.
        every: number of intervals between projections, >= 1. Weights are also projected at the end of training.
        interval: ``"epoch"``, or ``"step"`` of the optimizer.

    Raises:
        ConfigurationError: for an argument outside its range. At the start of training, for a path that the model does not
            have, a weight with one dimension, vectors with one entry, or a zero vector, which has no unique projection.

    Source: Thom & Palm (2013), Sparse Activity and Sparse Connectivity in Supervised Learning, section 4.
    """

    def __init__(
        self,
        module: str | list[str],
        sparseness: float,
        dim: int | list[int] = -1,
        norm: float | None = 1.0,
        every: int = 1,
        interval: Literal["epoch", "step"] = "epoch",
    ) -> None:
        super().__init__()
        self.module = module
        self.paths = [module] if isinstance(module, str) else list(module)
        if not self.paths or not all(isinstance(path, str) and path for path in self.paths):
            raise ConfigurationError(
                f"Expected argument `module` to be a path in the model or a list of paths but got {module!r}."
            )
        self.sparseness, self.dim = sparseness, dim
        self.dims = tuple(check_integer("dim", one) for one in (dim if isinstance(dim, list | tuple) else [dim]))
        if not self.dims:
            raise ConfigurationError("Expected argument `dim` to be a dimension or a list of them but got [].")
        self.norm, self.every, self.interval = norm, every, interval
        self._every_n_train_steps = self.every if interval == "step" else 0  # as in Lightning's ModelCheckpoint
        #: Optimizer step of the last projection; None before the first.
        self._projected: int | None = None
        self._warned = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Discard the state of another run; a resumed run is restored after this."""
        self._projected = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Project the weights, unless the run is resumed.

        Raises:
            ConfigurationError: if a vector is zero, or too short, or there is no such weight.
        """
        for path, weight in find_weights(pl_module, self.paths).items():
            if weight.dim() > 2 and self.dim == -1:
                rank_zero_warn(
                    f"The vectors of {path!r}, which is of shape {tuple(weight.shape)}, have {weight.shape[-1]} entries, along"
                    f" its last dimension. For whole filters give dim={list(range(1, weight.dim()))}."
                )
            zero = self._last(weight, path).flatten(-len(self.dims)).eq(0).all(-1).flatten()
            empty = zero.nonzero().flatten().tolist()
            if empty:
                raise ConfigurationError(
                    f"Expected the vectors of {path!r} along dim={self.dim!r} to be nonzero, but {len(empty)} of"
                    f" {len(zero)} are zero, starting with number {empty[0]}. A zero vector has no nearest point of"
                    f" sparseness {self.sparseness}. Initialize them, or choose another `dim`."
                )
        if self._projected is None:
            self._project(trainer, pl_module)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Project the weights if it is due; an epoch ends with its last batch, before its validation."""
        if self.interval == "epoch":
            due = trainer.is_last_batch and (trainer.current_epoch + 1) % self.every == 0
        else:  # with several optimizers a batch is several steps
            due = trainer.global_step // self.every > (self._projected or 0) // self.every
        last = 0 <= trainer.max_steps <= trainer.global_step or (
            trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
        )
        if due or last:
            self._project(trainer, pl_module)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Project the weights before the last validation of a run that stops early; warn if others see dense weights."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if trainer.should_stop:
            self._project(trainer, pl_module)
        elif self._projected != trainer.global_step and not self._warned:
            self._warned = True
            rank_zero_warn(
                f"{self.module!r} is validated, and the best checkpoint may be written, between two projections, when it is not"
                " sparse. Validate after each epoch and project then (every: 1), or project more often (interval: step)."
            )

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Project the weights before the last checkpoint of a run that stops early.

        The checkpoint shares the model's tensors, so it then holds projected weights.
        """
        if trainer.should_stop:
            self._project(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Project the weights at the end of training."""
        self._project(trainer, pl_module)

    @property
    def state_key(self) -> str:
        """Key of this callback in a checkpoint; it differs between weights."""
        return self._generate_state_key(module=self.module, dim=self.dim)

    def state_dict(self) -> dict[str, Any]:
        """Return the step of the last projection."""
        return {"projected": self._projected}

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of this callback's state, with the types and shapes that a stored state must have."""
        return {"projected": OneOf(COUNT)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the step of the last projection."""
        self._projected = state_dict["projected"]

    @torch.no_grad()
    def _project(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Project, unless that was done after this step."""
        if self._projected == trainer.global_step:
            return
        for path, weight in find_weights(module, self.paths).items():
            view = self._last(weight, path)
            vectors = view.flatten(-len(self.dims))
            vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
            found = hoyer_projection(vectors, self.sparseness, norm=1.0 if self.norm is None else self.norm)
            if self.norm is None:
                found = found * vectors.norm(dim=-1, keepdim=True)
            view.copy_(found.view(view.shape))
        self._projected = trainer.global_step

    def _last(self, weight: Tensor, path: str) -> Tensor:
        """Return a view of a weight in which the dimensions of the vectors are the last ones."""
        if hasattr(weight, "placements"):
            raise ConfigurationError(
                f"The weight at {path!r} is split over processes, none of which has whole vectors. Use DDP."
            )
        try:
            view = weight.detach().movedim(self.dims, tuple(range(-len(self.dims), 0)))
        except (IndexError, RuntimeError) as error:
            raise ConfigurationError(
                f"Expected argument `dim` to be dimensions of {path!r}, which is of shape {tuple(weight.shape)}, but got"
                f" {self.dim!r}."
            ) from error
        size = math.prod(view.shape[view.dim() - len(self.dims) :])
        if size < 2 or len(self.dims) == view.dim():
            raise ConfigurationError(
                f"Expected {path!r}, of shape {tuple(weight.shape)}, to contain several vectors with several entries along"
                f" dim={self.dim!r} but there are {weight.numel() // max(size, 1)} of length {size}."
            )
        return view
