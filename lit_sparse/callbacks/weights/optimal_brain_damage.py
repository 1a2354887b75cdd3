"""Prunes connections that the classification hardly depends on (LeCun, Denker & Solla 1990)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lit_sparse.callbacks.weights.named_weights import find_weights
from lit_sparse.checks import Count, Number, ranges
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.distributed import is_first, reduce
from lit_sparse.ground.state_checks import OneOf
from lit_sparse.lightning.choice import pl, rank_zero_info

__all__ = ["OptimalBrainDamage"]

#: Added to probabilities, so that there is something to draw in rows of NaN.
TINY = 1e-30
SHARE = Number(0.0, 1.0, open_low=True, open_high=True)


@ranges(every=Count(), keep=SHARE, target=SHARE, sample_every=Count())
class OptimalBrainDamage(pl.Callback):
    """Prune the least important connections of a linear layer, permanently and at regular intervals (optimal brain damage).

    A connection's importance is ``1/2 h w^2``, the second-order change of the cross-entropy when its weight w becomes zero.
    Here h is the diagonal of the Gauss-Newton approximation of the Hessian, which is nonnegative. It is the mean square of
    the derivative of log p(y|x) by w, over examples x and classes y sampled from p(y|x). It is accumulated over one of
    ``sample_every`` batches in each epoch that ends with a removal.

    Every ``every`` epochs a fraction ``1 - keep`` of the connections is removed, until a fraction ``target`` is left.
    Removed connections stay zero. All processes remove the same connections, and checkpoints hold the masks.

    The model needs a method ``class_scores(batch) -> (B, C)``, whose softmax gives the class probabilities.

    To use it in a config::

        trainer:
          callbacks:
            - class_path: OptimalBrainDamage
              init_args: {module: encoder, every: 10, target: 0.125}

    Args:
        module: path of a ``torch.nn.Linear`` in the model, used once in a forward pass on inputs (B, ..., D).
        every: number of epochs before and between removals, >= 1.
        keep: fraction of the connections that one removal leaves, in (0, 1); 0.5 in the paper.
        target: fraction of all connections that is left at the end, in (0, 1).
        sample_every: interval, in batches, at which the importance is measured.

    Raises:
        ConfigurationError: for an argument outside its range. At the start of training, for a path that is not a linear
            layer, or a model without class scores.

    Source: LeCun, Denker & Solla (1990), Optimal Brain Damage; as in MLP-OBD of Thom & Palm (2013).
    """

    def __init__(self, module: str, every: int = 10, keep: float = 0.5, target: float = 0.125, sample_every: int = 10) -> None:
        super().__init__()
        self.module, self.every, self.keep, self.target = module, every, keep, target
        self.sample_every = sample_every
        self._mask: Tensor | None = None
        self._squares: Tensor | None = None
        self._every_n_train_steps = 1  # as in Lightning's ModelCheckpoint: removed connections stay zero after each step

    @property
    def share(self) -> float:
        """Fraction of the connections that is left."""
        return 1.0 if self._mask is None else float(self._mask.float().mean())

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Discard the state of another run; a resumed run is restored after this."""
        self._mask, self._squares = None, None

    @property
    def state_key(self) -> str:
        """Key of this callback in a checkpoint; it differs between layers."""
        return self._generate_state_key(module=self.module)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that the model has the layer and class scores.

        Raises:
            ConfigurationError: if the model lacks the layer, or a method ``class_scores``.
        """
        weight = self._layer(pl_module).weight
        self._squares = None if self._squares is None else self._squares.to(weight.device)
        if not callable(getattr(pl_module, "class_scores", None)):
            raise ConfigurationError(
                f"OptimalBrainDamage needs a method `class_scores(batch)`, which {type(pl_module).__name__} does not have."
            )

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        """Measure the connections' importance in an epoch that ends with a removal."""
        if self._removes(trainer) and batch_idx % self.sample_every == 0:
            self._measure(pl_module, batch, trainer.global_step * trainer.world_size + trainer.global_rank)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep removed connections at zero; remove more at the end of an epoch, before its validation."""
        weight = self._layer(pl_module).weight
        if trainer.is_last_batch and self._removes(trainer):
            self._remove(trainer, weight)
        if self._mask is not None:
            with torch.no_grad():
                weight.masked_fill_(~self._mask.to(weight.device), 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the mask, and the importance sums of all processes in this epoch; call it on all processes."""
        return {"mask": self._mask, "squares": _summed(self._squares)}

    def state_example(self, model: pl.LightningModule) -> dict[str, Any]:
        """Return an example of this callback's state, with the types and shapes that a stored state must have."""
        weight = self._layer(model).weight.detach()
        return {"mask": OneOf(torch.ones_like(weight, dtype=torch.bool)), "squares": OneOf(torch.zeros_like(weight))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state; the first process gets the sums of all processes, the others start from zero."""
        self._mask, squares = state_dict["mask"], state_dict["squares"]
        self._squares = squares if squares is None or is_first() else torch.zeros_like(squares)

    def _removes(self, trainer: pl.Trainer) -> bool:
        """Return whether connections are removed at the end of this epoch, which is never the last one."""
        epoch = trainer.current_epoch + 1
        return epoch % self.every == 0 and epoch != trainer.max_epochs and not self._is_done()

    def _is_done(self) -> bool:
        return self._mask is not None and int(self._mask.sum()) <= self._least(self._mask)

    def _least(self, weight: Tensor) -> int:
        """Return the number of connections that are left at the end."""
        return max(1, round(self.target * weight.numel()))

    @torch.enable_grad()
    def _measure(self, model: Any, batch: dict[str, Any], seed: int) -> None:
        met: dict[str, Tensor] = {}
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

        def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            met["input"], met["output"] = inputs[0].detach(), output
            return output.clone()  # which may be changed in place

        called: nn.Module = dict(model.named_modules())[self.module]
        handle = called.register_forward_hook(keep)
        try:
            log_probs = model.class_scores(batch).log_softmax(-1)
        finally:
            handle.remove()
        if not met:
            raise ConfigurationError(
                f"OptimalBrainDamage cannot measure {self.module!r}, which {type(model).__name__}.class_scores does not call:"
                " the classes do not depend on it, or its weight is used directly, as with `sparse_gradient`."
            )
        generator = torch.Generator(log_probs.device).manual_seed(seed)
        drawn = torch.multinomial(log_probs.detach().float().exp().nan_to_num(0.0) + TINY, 1, generator=generator)
        chosen = log_probs.gather(-1, drawn).sum()
        (slopes,) = torch.autograd.grad(chosen, met["output"])
        with torch.no_grad():  # running means of normalization count each batch once
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers.get(name, buffer))
        slopes, inputs = slopes.float(), met["input"].float()
        if slopes.dim() > 2:  # an example's derivative is the sum over its positions
            pairs = zip(slopes.flatten(1, -2), inputs.flatten(1, -2), strict=True)
            squares = sum(((s.T @ x).square() for s, x in pairs), slopes.new_zeros(()))
        else:
            squares = slopes.square().T @ inputs.square()
        self._squares = squares if self._squares is None else self._squares.to(squares.device) + squares

    def _remove(self, trainer: pl.Trainer, weight: Tensor) -> None:
        squares = _summed(self._squares)
        self._squares = None
        if squares is None:
            return
        importance = (squares.to(weight.device) * weight.detach().float().square()).nan_to_num(nan=torch.inf)
        if self._mask is not None:
            importance = importance.masked_fill(~self._mask.to(weight.device), -torch.inf)
        left = max(round(self.share * self.keep * weight.numel()), self._least(weight))
        chosen = importance.flatten().topk(left).indices
        self._mask = torch.zeros_like(importance, dtype=torch.bool).flatten().index_fill(0, chosen, True).view_as(weight)
        rank_zero_info(f"OptimalBrainDamage leaves {left} of the {weight.numel()} connections of {self.module!r}")

    def _layer(self, model: nn.Module) -> nn.Linear:
        """Return the layer."""
        find_weights(model, [self.module])
        layer = dict(model.named_modules()).get(self.module)
        layer = getattr(layer, "_orig_mod", layer)  # of torch.compile
        if not isinstance(layer, nn.Linear):
            raise ConfigurationError(
                f"Expected argument `module` to be the path of a torch.nn.Linear but {self.module!r} is"
                f" {'a parameter' if layer is None else full_name(layer)}."
            )
        return layer


def _summed(squares: Tensor | None) -> Tensor | None:
    """Return the sum over processes, which have all measured equally often."""
    return None if squares is None else reduce(squares)
