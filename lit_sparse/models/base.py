"""The base class of all models: what a step returns, what is logged, and what makes a killed run go on as if it were not."""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Literal, TypeAlias

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from pytorch_lightning.core.mixins.hparams_mixin import _given_hyperparameters
from pytorch_lightning.plugins.precision import Precision
from pytorch_lightning.utilities import rank_zero_info
from pytorch_lightning.utilities.enums import GradClipAlgorithmType
from torch import Tensor
from typing_extensions import Self

from lit_sparse.checkpoint_files import check_finite, load_trusted, read_torch_file
from lit_sparse.distributed import is_first
from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.estimators import Sampler
from lit_sparse.metrics import MeanOverExamples
from lit_sparse.models.hyperparameters import describe_arguments, describe_parts
from lit_sparse.models.optimizers import build_optimizer, clips_by_itself, renew_dual_rates, warn_of_other_rates
from lit_sparse.models.progress import continue_training, describe_progress, settle_counters
from lit_sparse.models.schedulers import check_end, describe_scheduler
from lit_sparse.nn import seed_generator
from lit_sparse.risks import BrokenLossError, Mean, Risk

__all__ = ["LitSparseModule", "Stage", "StepOutput", "check_features", "restored_checkpoint"]

Stage: TypeAlias = Literal["train", "val", "test"]
Batch: TypeAlias = dict[str, Any]


#: Where the state of an estimator is kept, and that of a risk.
ESTIMATOR, RISK = "estimator.", "risk."
#: What the progress bar shows of validation.
SHOWN = ("loss", "accuracy")
#: Steps between what it shows of training; logging costs about as much as a small layer.
SHOWN_EVERY = 10


class StepOutput(dict[str, Any]):
    """What a step returns to Lightning and to the callbacks.

    Args:
        loss: scalar to minimize.
        examples: name -> (B,) a number of each example; its mean over all examples is logged as ``{stage}/{name}``.
        support_size: (N,) int64, number of values with probability above zero, one a decision.
        decoder_calls: (N,) int64, number of decoder rows evaluated, one a decision.
        sizes: (N,) int64, number of allowed entries of each decision.
        artifacts: tensors to draw, in validation and test.
    """

    def __init__(
        self,
        loss: Tensor,
        *,
        examples: dict[str, Tensor] | None = None,
        support_size: Tensor | None = None,
        decoder_calls: Tensor | None = None,
        sizes: Tensor | None = None,
        artifacts: dict[str, Tensor] | None = None,
    ) -> None:
        super().__init__(
            loss=loss,
            examples={name: values.detach() for name, values in (examples or {}).items()},
            support_size=support_size,
            decoder_calls=decoder_calls,
            sizes=sizes,
            artifacts=artifacts or {},
        )


class LitSparseModule(pl.LightningModule, ABC):
    """Base of the package's LightningModules; a subclass implements :meth:`step`.

    - Means over examples are exact over uneven batches and any number of processes.
    - What training draws is a function of (seed, epoch, batch, process): a resumed run draws what the killed one would have.
    - Checkpoints describe how the model was built, and load from Python and from the command line alike.

    Args:
        risk: the objective over the losses of a batch, in training; None for their mean. Validation and test give the mean.
        optimizer: builds the optimizer from the parameters.
        lr_scheduler: builds the learning rate scheduler from the optimizer; None for a constant rate.
        initial_weights: checkpoint whose weights training starts from (a warm start); not read when a run is resumed.

    Raises:
        ConfigurationError: for a risk that moves inputs, of a model whose inputs cannot be moved.
    """

    #: Names of the numbers of each example that ``step`` returns.
    example_metrics: ClassVar[tuple[str, ...]] = ("loss",)
    #: What tells the best checkpoint: a log key and whether it should be small or large.
    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/loss", "min")
    #: What those numbers are of; how many there were is logged under this name.
    counted: ClassVar[str] = "examples"
    #: Arguments that decide how a trained model is used, not what it has learnt: they may be others than in training.
    choosable: ClassVar[frozenset[str]] = frozenset()
    #: A risk may move its inputs; ``step`` then calls :meth:`perturbed`.
    perturbable: ClassVar[bool] = False

    def __init__(
        self,
        *,
        risk: Risk | None = None,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        initial_weights: str | None = None,
    ) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.initial_weights = initial_weights
        given = _given_hyperparameters.get() or {}  # by the command line, which builds optimizers in its own way
        arguments = self._arguments()
        described = {**given, **describe_arguments(self, arguments)}
        self.save_hyperparameters(described, logger=False)
        self._undescribed = [
            name for name, value in arguments.items() if isinstance(value, torch.nn.Module) and name not in described
        ]
        if risk is not None and not isinstance(risk, Risk):
            raise ConfigurationError(f"Expected argument `risk` to be a lit_sparse.risks.Risk or None but got {risk!r}.")
        if risk is not None and risk.perturbs and not self.perturbable:
            raise ConfigurationError(
                f"{type(risk).__name__} moves inputs, and those of {type(self).__name__} cannot be moved. Use a risk that does"
                " not, such as SafeKLDRO, or a model of images or features, such as RobustClassifier."
            )
        self.risk = Mean() if risk is None else risk
        self.train_means = self._means()
        if not isinstance(self.risk, Mean):
            self.train_means["risk"] = MeanOverExamples()
        self.val_means = self._means()
        self.test_means = self._means()
        self._training_seed: int | None = None
        self._progress: dict[str, Any] | None = None

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: Any, *args: Any, trust: Collection[str] = (), weights_only: bool | None = None, **options: Any
    ) -> Self:
        """Build a model from a checkpoint, as Lightning does, once the names in it were checked.

        Args:
            checkpoint_path: path, or an open file.
            args: of Lightning's method: ``map_location``, ``hparams_file``, ``strict``.
            trust: import paths that the checkpoint may name besides those of this package, of ``torch.nn`` and ``torch.optim``,
                and of modules that are imported already.
            weights_only: False to unpickle the file, which may run any code, without these checks.
            options: of Lightning's method; arguments of the model in place of the checkpoint's.

        Raises:
            CheckpointError: if it is not a checkpoint, does not fit, or names what may not be used.
        """
        options |= dict(zip(("map_location", "hparams_file", "strict"), args, strict=False))
        load = super().load_from_checkpoint
        return load_trusted(load, checkpoint_path, trust=trust, model=cls, weights_only=weights_only, **options)

    @abstractmethod
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        """Return loss and measurements of one batch.

        Args:
            batch: what the data module's ``fetch`` makes.
            batch_idx: number of the batch in its epoch.
            stage: ``"train"``, ``"val"`` or ``"test"``.
        """

    @staticmethod
    def weighted(losses: Tensor, batch: Batch, rows: Tensor | None = None) -> Tensor:
        """Return losses times the weights of their examples, those of a coreset; as they are where the data have none.

        Their mean, over the same number of losses as without weights, is what is logged as ``train/loss``.

        Args:
            losses: (B,), or (R,) with ``rows``.
            batch: its entry ``weight`` (B,) is the weights.
            rows: (R,) the example of each loss, where that is not its place.
        """
        weights = _weights_of(losses, batch, rows)
        return losses if weights is None else losses * weights

    def objective(
        self, losses: Tensor, batch: Batch, stage: Stage, rows: Tensor | None = None, shares: Tensor | None = None
    ) -> Tensor:
        """Return what is minimized: the risk of losses in training, elsewhere their mean, with the weights of the examples.

        Args:
            losses: (B,), or (R,) with ``rows``.
            batch: its entry ``weight`` (B,), where there is one, is the weights, those of a coreset.
            stage: which the step is of.
            rows: (R,) the example of each loss, where that is not its place.
            shares: (R,) a weight beside that of its example.

        Raises:
            BrokenLossError: if a loss is NaN, or infinite and the risk is not the mean; it names the example.
        """
        if stage != "train":
            return self.weighted(losses, batch, rows).mean()
        try:
            weights = _weights_of(losses, batch, rows)
            if shares is not None:
                weights = shares.to(losses.dtype) if weights is None else shares.to(losses.dtype) * weights
            found: Tensor = self.risk(losses, weights)
        except BrokenLossError as error:
            row = error.row if rows is None else int(rows[error.row])
            raise error.located(row, _place(row, batch)) from None
        return found

    def perturbed(self, loss_fn: Callable[[Tensor], Tensor], inputs: Tensor, stage: Stage) -> tuple[Tensor, Tensor | None]:
        """Return inputs as the risk moves them in training, and what each loses for that (B,); None for nothing.

        Args:
            loss_fn: from inputs (B, ...) to losses (B,).
            inputs: (B, ...) floating.
            stage: which the step is of; inputs are moved in training alone.
        """
        if stage != "train" or not self.risk.perturbs:
            return inputs, None
        moved, cost = self.risk.perturb(loss_fn, inputs)
        return moved, self.risk.lam * cost

    def training_step(self, batch: Batch, batch_idx: int) -> StepOutput:  # noqa: D102
        output = self._measured(batch, batch_idx, "train")
        if self._shows(batch_idx):
            self.log("train/loss_step", output["loss"].detach(), prog_bar=True, on_step=True, on_epoch=False, batch_size=1)
        return output

    def validation_step(self, batch: Batch, batch_idx: int) -> StepOutput:  # noqa: D102
        return self._measured(batch, batch_idx, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> StepOutput:  # noqa: D102
        return self._measured(batch, batch_idx, "test")

    def configure_optimizers(self) -> Any:  # noqa: D102
        optimizer = build_optimizer(self.optimizer, self, self.risk)
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        warn_of_other_rates(optimizer, scheduler, self.risk)
        return {"optimizer": optimizer, "lr_scheduler": describe_scheduler(scheduler, self._trainer)}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip gradients; also of fused optimizers in bf16-mixed."""
        precision = self.trainer.precision_plugin
        if gradient_clip_val and clips_by_itself(optimizer, precision):
            kind = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
            Precision.clip_gradients(precision, optimizer, gradient_clip_val, kind)
        else:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def setup(self, stage: str) -> None:
        """Give the loggers the hyper-parameters, and read the initial weights of a warm start."""
        if stage == "fit":
            described = describe_parts(self.hparams, getattr(self.trainer, "datamodule", None))
            for logger in self.trainer.loggers:
                logger.log_hyperparams(described)
        if stage == "fit" and self.initial_weights and self.trainer.ckpt_path is None:
            weights, own = _weights(self.initial_weights), self.state_dict()
            # What a sampler has learnt or counted is part of its run; other estimators have weights of the model.
            if isinstance(getattr(self, "estimator", None), Sampler):
                kept = {name: value for name, value in own.items() if _is_of_sampler(name)}
            else:
                kept = {name: value for name, value in own.items() if _is_of_sampler(name) and name not in weights}
            kept |= {name: value for name, value in own.items() if name.startswith(RISK)}
            read = {
                name: value
                for name, value in weights.items()
                if name in own or not (_is_of_sampler(name) or name.startswith(RISK))
            }
            try:
                self.load_state_dict({**read, **kept})
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:300]
                raise CheckpointError(f"The weights of {self.initial_weights!r} do not fit this model: {reason}") from error
            rank_zero_info(f"Training starts from the weights of {self.initial_weights}")

    def on_train_start(self) -> None:  # noqa: D102
        if self._training_seed is None:
            self._training_seed = torch.initial_seed() % 2**63
        for config in self.trainer.lr_scheduler_configs:
            check_end(config.scheduler, config.interval, self.trainer)
        if not self.trainer.lr_scheduler_configs:
            renew_dual_rates(self.trainer.optimizers, self.risk)
        if self._progress is not None:
            continue_training(self.trainer, self._progress)
            self._progress = None

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed torch for this batch, and begin the means anew with the first batch of an epoch."""
        place = f"{self._training_seed} {self.current_epoch} {batch_idx} {self.global_rank}"
        seed_generator(int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "big"), self.device)
        if batch_idx == 0:
            self._reset("train")

    def on_train_epoch_end(self) -> None:  # noqa: D102
        self._log_means("train")
        for name, value in self.risk.measurements().items():
            self.log(f"train/{name}", value, sync_dist=True)

    def on_validation_epoch_start(self) -> None:  # noqa: D102
        self._reset("val")

    def on_validation_epoch_end(self) -> None:  # noqa: D102
        self._log_means("val")

    def on_test_epoch_start(self) -> None:  # noqa: D102
        self._reset("test")

    def on_test_epoch_end(self) -> None:  # noqa: D102
        self._log_means("test")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the seed of training, the place in it, and the means of the epoch so far, summed over processes."""
        checkpoint["training_seed"] = self._training_seed
        if self._fits():
            settle_counters(self.trainer, checkpoint["loops"]["fit_loop"])
            checkpoint["progress"] = describe_progress(self.trainer)
        checkpoint["undescribed"] = self._undescribed
        sums = {}
        for name, metric in self.train_means.items():
            with metric.sync_context():  # type: ignore[operator]
                sums[name] = {"total": metric.total.clone(), "count": metric.count.clone()}  # type: ignore[operator]
        checkpoint["train_means"] = sums

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the seed of training and the means of the epoch so far.

        Raises:
            CheckpointError: if a part was built in Python in a way that the checkpoint cannot tell, and is not given here.
        """
        self._match_risk(checkpoint)
        unknown = [name for name in checkpoint.get("undescribed", ()) if name not in self._undescribed]
        if unknown:
            raise _not_given(type(self), unknown)
        self._training_seed = checkpoint.get("training_seed")
        self._progress = checkpoint.get("progress") if self._fits() else None
        means = dict(self.train_means.items())
        for name, sums in checkpoint.get("train_means", {}).items():
            metric = means.get(name)
            if isinstance(metric, MeanOverExamples):
                metric.update(torch.zeros(0))
                metric.total += (
                    sums["total"].to(metric.device) * is_first()
                )  # the sums are those of all processes: one takes them
                metric.count += sums["count"].to(metric.device) * is_first()

    def _match_risk(self, checkpoint: dict[str, Any]) -> None:
        """Leave out what another risk has learnt, of a model that is loaded; a run that goes on keeps its risk."""
        state = checkpoint["state_dict"]
        theirs = {name for name in state if name.startswith(RISK)}
        own = {name: value for name, value in self.state_dict().items() if name.startswith(RISK)}
        if theirs == own.keys():
            return
        if self._fits():
            raise CheckpointError(
                f"The run was trained with another risk than {type(self.risk).__name__}, and goes on with its own alone. Start"
                " a new run from its weights: --model.init_args.initial_weights CHECKPOINT"
            )
        checkpoint["state_dict"] = {name: value for name, value in state.items() if name not in theirs} | own

    def _fits(self) -> bool:
        """Return whether a trainer is training this model."""
        return self._trainer is not None and self._trainer.state.fn == "fit"

    def _shows(self, batch_idx: int) -> bool:
        """Tell whether the loss of this step is shown: where the logger is due, and often enough for a progress bar."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        return batch_idx % SHOWN_EVERY == 0 or (every > 0 and (self.global_step + 1) % every == 0)

    def _means(self) -> torch.nn.ModuleDict:
        return torch.nn.ModuleDict({name: MeanOverExamples() for name in self.example_metrics})

    def _measured(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        output = self.step(batch, batch_idx, stage)
        whole = output["loss"].detach().reshape(1)
        examples = {"loss": whole, "risk": whole, **output["examples"]}
        for name, metric in getattr(self, f"{stage}_means").items():
            if name in examples:
                metric.update(examples[name])
        return output

    def _reset(self, stage: Stage) -> None:
        for metric in getattr(self, f"{stage}_means").values():
            metric.reset()
            metric.update(torch.zeros(0, device=self.device))  # a process may get no batch at all

    def _log_means(self, stage: Stage) -> None:
        means = getattr(self, f"{stage}_means")
        for name, metric in means.items():
            with metric.sync_context():
                if not int(metric.count):  # nothing of the kind in these data
                    continue
            self.log(f"{stage}/{name}", metric.compute(), prog_bar=stage != "train" and name in SHOWN, sync_dist=True)
        if stage != "train":
            with means["loss"].sync_context():
                self.log(f"{stage}/{self.counted}", means["loss"].count.double(), sync_dist=True)

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the outermost constructor that is running on this object."""
        frame, found = inspect.currentframe(), {}
        while frame is not None:
            if frame.f_code is type(self).__init__.__code__ and frame.f_locals.get("self") is self:
                names = inspect.signature(type(self).__init__).parameters
                found = {name: frame.f_locals[name] for name in names if name in frame.f_locals and name != "self"}
                for name, parameter in names.items():
                    if parameter.kind is parameter.VAR_KEYWORD:
                        found |= found.pop(name, {})
            frame = frame.f_back
        return found


def _weights_of(losses: Tensor, batch: Batch, rows: Tensor | None) -> Tensor | None:
    """Return the weight of each loss, or None where the data have none."""
    if "weight" not in batch:
        return None
    weights: Tensor = batch["weight"].to(losses.dtype)
    return weights if rows is None else weights[rows]


def _place(row: int, batch: Batch) -> str:
    """Say which example of its split one of a batch is, where batches tell."""
    index = batch.get("index")
    return f" (number {int(index[row])} of the training data)" if isinstance(index, Tensor) else ""


def _is_of_sampler(name: str) -> bool:
    """Tell whether a name in a state stands for what an estimator keeps beside its mapping."""
    return name.startswith(ESTIMATOR) and not name.startswith(f"{ESTIMATOR}mapping.")


def _not_given(model: type, names: list[str]) -> CheckpointError:
    parts = ", ".join(f"{name}=..." for name in names)
    return CheckpointError(
        f"This model was built with {' and '.join(f'`{name}`' for name in names)} of your own, which the checkpoint cannot"
        f" build: give them again, as in {model.__name__}.load_from_checkpoint(path, {parts}). A module that keeps its"
        " arguments as attributes of their names is built by itself."
    )


def check_features(pixels: Tensor, in_features: int) -> None:
    """Check that images (B, D) are of the size that a model was made for.

    Raises:
        ConfigurationError: if D is not ``in_features``.
    """
    if pixels.shape[-1] != in_features:
        raise ConfigurationError(
            f"Expected images of in_features={in_features} features but the data have {pixels.shape[-1]}."
            f" Train a model with in_features={pixels.shape[-1]}, or give this one the data it was made for."
        )


def restored_checkpoint(trainer: pl.Trainer) -> str | None:
    """Return the checkpoint that a run restores, in ``setup`` too; ``trainer.ckpt_path`` is set only after it.

    Args:
        trainer: which is setting up a module.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "_run" and frame.f_locals.get("self") is trainer:
            path = frame.f_locals.get("ckpt_path")
            return None if path is None else str(path)
        frame = frame.f_back
    return None if trainer.ckpt_path is None else str(trainer.ckpt_path)


def _weights(path: str) -> dict[str, Tensor]:
    checkpoint = read_torch_file(path, f"{path!r} of `initial_weights`")
    state = checkpoint.get("state_dict") if isinstance(checkpoint, dict) else None
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise CheckpointError(f"Expected {path!r} of `initial_weights` to be a checkpoint but it holds no state_dict.")
    check_finite(f"{path!r} of `initial_weights`", {"state_dict": state})
    return state
