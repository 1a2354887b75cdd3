"""Vectors of a trained network's examples: gradients of the last layer, in the metric of a Bayesian last layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_sparse.checks import INTEGERS, POSITIVE, Number, check_tensor, ranges
from lit_sparse.coresets.examples import Examples
from lit_sparse.coresets.projections import Projection, entry, fitted
from lit_sparse.errors import CheckpointError, ConfigurationError, DataError, full_name
from lit_sparse.ground.evaluation import evaluating
from lit_sparse.runs.checkpoint_files import load_module

__all__ = ["LastLayerGradients"]


@ranges(temperature=POSITIVE, damping=Number(0.0, 1e6, open_low=True))
class LastLayerGradients(Projection):
    r"""Projection to whitened gradients of the cross-entropy in the weights of a trained classifier's last linear layer.

    Let h (H + 1,) be the layer's input with a one appended, and p (C,) the softmax of the scores divided by the temperature.
    An example of class y, with the one-hot vector e_y, has the gradient

    .. math:: (p - e_y) h^T

    Multiplying it by the inverse root of the second moment of h over all examples, the input factor of a Laplace
    approximation, makes inner products the covariances of linearized log-likelihoods under that Bayesian last layer. A
    temperature above 1 keeps examples that the network already classifies with confidence from having near-zero gradients.

    Batches hold ``label`` (B,) int64. The network is called by its method ``class_scores(batch)``, if it has one, else by
    ``predict_step(batch, 0)``.

    Args:
        checkpoint: path of a checkpoint of a trained LightningModule.
        model: trained module, in place of a checkpoint.
        layer: name of the layer within the module, as in ``named_modules``; None for its last ``torch.nn.Linear``.
        temperature: divisor of the scores.
        damping: multiple of the identity added to the second moment, as a fraction of its mean eigenvalue; None for no
            whitening.
        true_class: whether to keep only the gradient's row of the example's class, ``(1 - p_y) h``: vectors of dimension H + 1
            in place of C (H + 1), for selection within classes.
        label: key of the labels in a batch.

    Raises:
        ConfigurationError: for an argument outside its range, or unless exactly one of ``checkpoint`` and ``model`` is
            given.

    Source: Ritter, Botev & Barber (2018), A Scalable Laplace Approximation for Neural Networks, for the factors.
    """

    batch_size = 1024

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        model: nn.Module | None = None,
        layer: str | None = None,
        temperature: float = 1.0,
        damping: float | None = 0.01,
        true_class: bool = False,
        label: str = "label",
    ) -> None:
        if (checkpoint is None) == (model is None):
            raise ConfigurationError("Expected either `checkpoint` or `model` of a trained classifier but got both or neither.")
        self.checkpoint, self.model, self.layer, self.temperature = checkpoint, model, layer, temperature
        self.damping, self.true_class, self.label = damping, true_class, label
        self._network: nn.Module | None = None
        self._whitening: Tensor | None = None

    @torch.no_grad()
    def fit(self, examples: Examples) -> None:
        """Load the network, and compute the second moment of the last layer's input over all examples.

        Raises:
            DataError: if there are no examples.
        """
        self._network = self._read() if self.model is None else self.model
        self._whitening = None
        if self.damping is None:
            return
        moment: Tensor | None = None
        for batch in examples.batches(self.batch_size):
            hidden = self._seen(batch)[0].double()
            moment = hidden.mT @ hidden + (0.0 if moment is None else moment)
        if moment is None:
            raise DataError("Expected at least one example but got none.")
        values, turns = torch.linalg.eigh(moment / len(examples))
        values = values.clamp_min(0) + self.damping * values.mean()
        self._whitening = ((turns * values.rsqrt()) @ turns.mT).float()

    @torch.no_grad()
    @override
    def project(self, batch: Any) -> Tensor:
        hidden, scores = self._seen(batch)
        label = entry(batch, self.label).to(scores.device)
        what = f"integers as labels ({len(scores)},)"
        check_tensor(label, what, shape=scores.shape[:1], dtypes=(*INTEGERS, torch.bool), error=DataError)
        label = label.long()  # integers of 8 bits would be a mask
        wrong = (label < 0) | (label >= scores.shape[1])
        if bool(wrong.any()):
            raise DataError(
                f"Expected a label in 0 .. {scores.shape[1] - 1} for each example but got {int(label[wrong][0])}."
                " These gradients require a label for every example; for images, set `labelled: 1.0`."
            )
        if self._whitening is not None:
            hidden = hidden @ self._whitening
        errors = (scores / self.temperature).softmax(-1)
        if self.true_class:
            return (1 - errors.gather(1, label.unsqueeze(1))) * hidden
        errors[torch.arange(len(label)), label] -= 1
        return (errors.unsqueeze(2) * hidden.unsqueeze(1)).flatten(1)

    def _seen(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the layer's input with a one appended, (B, H + 1), and its output (B, C)."""
        network = fitted(self._network)
        if not hasattr(network, "class_scores") and not hasattr(network, "predict_step"):
            raise ConfigurationError(
                f"Expected a model with a method `class_scores` or `predict_step` but got {full_name(network)}. Add one."
            )
        entry(batch, self.label)  # raises the error for batches that are not dicts
        seen: list[tuple[Tensor, Tensor]] = []
        with (
            evaluating(network),
            self._found(network).register_forward_hook(
                lambda layer, inputs, output: seen.append((inputs[0].detach().float(), output.detach().float()))
            ),
        ):
            device = next(network.parameters()).device
            call = getattr(network, "class_scores", None) or (lambda some: network.predict_step(some, 0))  # type: ignore[operator]
            moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
            try:
                call(moved)
            except Exception as error:
                if self.checkpoint is None:
                    raise
                raise CheckpointError(
                    f"Expected the model in {self.checkpoint!r} to take batches of {', '.join(map(str, batch))} but"
                    f" {full_name(network)} raised {type(error).__name__}: {error}. Use another checkpoint."
                ) from error
        if len(seen) != 1 or seen[0][0].ndim != 2:
            raise ConfigurationError(
                f"Expected the layer to be called once with inputs (B, H) but it was called {len(seen)} times"
                + (f" with inputs {tuple(seen[0][0].shape)}." if seen else ". Name another layer by `layer`.")
            )
        hidden, scores = seen[0]
        if not bool(hidden.isfinite().all() and scores.isfinite().all()):
            raise DataError("Expected finite outputs of the network but got NaN or infinity. Use another checkpoint or model.")
        return torch.cat([hidden, hidden.new_ones(len(hidden), 1)], 1), scores

    def _found(self, network: nn.Module) -> nn.Linear:
        layers = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
        if not layers or (self.layer is not None and self.layer not in layers):
            raise ConfigurationError(
                f"Expected argument `layer` to name a torch.nn.Linear of {type(network).__name__} but got"
                f" {self.layer!r}. Available: {', '.join(layers) or 'none'}."
                " These vectors need a classifier."
            )
        return layers[list(layers)[-1] if self.layer is None else self.layer]

    def _read(self) -> nn.Module:
        from lit_sparse.lightning.choice import pl

        try:
            return load_module(pl.LightningModule, str(self.checkpoint))
        except CheckpointError as error:
            raise CheckpointError(f"The checkpoint {self.checkpoint!r} cannot be read: {error}") from error
