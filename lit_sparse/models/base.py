"""Base class of all models: the objective, the logged means, and the state for exact resume."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import Self, override

from lit_sparse.checks import check_indices
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.distributed import shard
from lit_sparse.lightning.choice import (
    NAME,
    DoublePrecision,
    LRSchedulerCallable,
    ModelCheckpoint,
    OptimizerCallable,
    check_pairing,
    pl,
)
from lit_sparse.lightning.internals import after_restore, given_hyperparameters, number_of_loaders, sets_rates
from lit_sparse.lightning.limits import limits_of
from lit_sparse.lightning.states import is_tuning, unmask
from lit_sparse.models.data_protocols import Batch, first_update, rows_of, size_of, updates_of
from lit_sparse.models.loaded_weights import load_initial_weights, match_risk, not_given
from lit_sparse.models.objective import ObjectiveModule, Stage, StepOutput, column_of
from lit_sparse.models.optimizers import build_optimizer, check_updates, clip_fused, joined, make_update, renew_dual_rates
from lit_sparse.models.restoring import guard_restoring, prepare_to_continue, start_training, store_training
from lit_sparse.models.schedulers import check_end, describe_scheduler
from lit_sparse.models.stage_metrics import StageMetrics, group_metrics, mean_metrics
from lit_sparse.random import seed_generator
from lit_sparse.risks import Mean, Risk
from lit_sparse.runs.checkpoint_files import check_kinds, load_module
from lit_sparse.runs.descriptions import class_path, describe_all, describe_run

__all__ = ["Batch", "LitSparseModule", "Stage", "StepOutput", "mean_metrics"]

#: Number of steps between updates of the progress bar's loss; logging costs about as much as a small layer.
SHOWN_EVERY = 10
#: Largest count that is logged as it is.
MOST_COUNTED = 4096
#: Entry of a batch with the group of each example, whose scores are logged, unless the risk names another.
GROUP = "group"


class LitSparseModule(ObjectiveModule):
    """Base class of the package's LightningModules; a subclass implements :meth:`step`.

    - Means over examples are exact for uneven batches and any number of processes.
    - Random numbers in training are a function of (seed, epoch, batch, process), so a resumed run continues the same
      sequence.
    - Checkpoints describe the model's arguments, and load from Python and from the command line.
    - An epoch logs ``{stage}/{name}`` for each metric of :meth:`configure_metrics`, a stage being ``train``, ``val`` or
      ``test``, ``train/{name}`` for measurements of the risk, and ``{stage}/{count_name}``; every tenth batch logs
      ``train/loss_step``.

    Args:
        risk: training objective over the losses of a batch; None for their mean. Validation and test use the mean.
        optimizer: constructor of the optimizer.
        lr_scheduler: constructor of the scheduler; None for a constant rate.
        initial_weights: checkpoint with the initial weights (a warm start); not read when a run is resumed.

    Raises:
        ConfigurationError: for a risk that perturbs inputs, if the model does not support it.
    """

    #: Log key that selects the best checkpoint, and whether smaller or larger is better.
    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/loss", "min")
    #: Unit of the logged loss; the number of units is logged under this name.
    count_name: ClassVar[str] = "examples"
    #: Inference arguments; they may differ from training.
    inference_arguments: ClassVar[frozenset[str]] = frozenset()
    #: Whether validation and test skip the empty batch of a process without examples.
    skips_empty_batches: ClassVar[bool] = True
    #: Learning rate in place of the optimizer's own.
    _rate: float | None = None
    #: Loader of validation or test whose batch is measured.
    _loader: int = 0

    def __init__(
        self,
        *,
        risk: Risk | None = None,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        initial_weights: str | None = None,
    ) -> None:
        super().__init__(risk)
        check_pairing()
        self.optimizer, self.lr_scheduler, self.initial_weights = optimizer, lr_scheduler, initial_weights
        # In the form of Lightning's command line, also for a model that is built in Python: Lightning would store the objects.
        kind = {"_class_path": class_path(type(self)), "_instantiator": f"{NAME}.cli.instantiate_module"}
        described = {**given_hyperparameters(), **kind, **describe_all(self._arguments)}
        self.save_hyperparameters(described, logger=False)
        modules = [name for name, value in self._arguments.items() if isinstance(value, nn.Module)]
        self._undescribed = [name for name in modules if name not in described]
        del self._arguments  # parts of the model are stored only as its modules
        self._training_seed: int | None = None
        self._resumed: dict[str, Any] | None = None
        self._limits: dict[str, Any] = {}

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: Any, *args: Any, trust: Collection[str] = (), weights_only: bool | None = None, **options: Any
    ) -> Self:
        """Return a model built from a checkpoint, as in Lightning, after a check of the class names in it.

        Args:
            checkpoint_path: path, or an open file.
            args: positional arguments of Lightning's method: ``map_location``, ``hparams_file``, ``strict``.
            trust: additional import paths that the checkpoint may name. Names of this package, ``torch.nn``,
                ``torch.optim`` and imported modules are always allowed.
            weights_only: False to unpickle the file without these checks, which may run any code.
            options: options of Lightning's method, and arguments of the model in place of the checkpoint's.

        Raises:
            CheckpointError: if the file is not a checkpoint, does not match the model, or names a class that is not
                allowed.
        """
        options |= dict(zip(("map_location", "hparams_file", "strict"), args, strict=False))
        if weights_only is False:
            return super().load_from_checkpoint(checkpoint_path, weights_only=False, **options)
        return load_module(cls, checkpoint_path, trust=trust, **options)

    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        """Return the metrics of a stage by name, which are logged at the end of each epoch.

        This base class updates each :class:`lit_sparse.metrics.MeanOverExamples` with ``StepOutput.per_example`` of its
        name. The step updates all other metrics, through :meth:`stage_metrics`. A metric that computes a dict is logged by
        its keys.

        Args:
            stage: ``"train"``, ``"val"`` or ``"test"``.
        """
        return mean_metrics("loss")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the model with the same constructors, whose arguments may belong to the command line that parsed them."""
        memo.update({id(build): build for build in (self.optimizer, self.lr_scheduler)})
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))  # type: ignore[no-untyped-call]
        return copied

    def stage_metrics(self, stage: Stage) -> StageMetrics:
        """Return the metrics of a stage, as declared by :meth:`configure_metrics`, on the model's device.

        Each data loader has its own.
        """
        name = f"{stage}_metrics_{self._loader}".removesuffix("_0")
        if name not in self._modules:
            declared: Any = self.configure_metrics(stage)
            if not isinstance(declared, dict) or not all(isinstance(metric, Metric) for metric in declared.values()):
                raise ConfigurationError(
                    f"Expected `configure_metrics` of {full_name(self)} to return a dict of metrics but got {declared!r}."
                )
            if stage != "train":
                declared |= group_metrics(declared)
            elif not isinstance(self.risk, Mean):
                declared |= mean_metrics("risk")
            setattr(self, name, StageMetrics(declared).to(self.device))
        metrics: StageMetrics = getattr(self, name)
        return metrics

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        outputs: list[dict[str, Any]] = []
        for number, examples in updates_of(batch, batch_idx):
            if outputs:
                make_update(self, outputs[-1])
                self._seed(number)
            if (rows := self.risk.draw_rows(size_of(examples))) is not None:
                examples = rows_of(examples, check_indices(rows, size_of(examples)))
            outputs.append(self.run_step(examples, number, "train"))
            outputs[-1]["per_example"]["risk"] = outputs[-1]["loss"].detach().reshape(1)
        output = outputs[0] if len(outputs) == 1 else joined(outputs)
        self.stage_metrics("train").measure(output["per_example"])
        if self._shows(batch_idx):
            self.log("train/loss_step", output["loss"].detach(), prog_bar=True, on_step=True, on_epoch=False, batch_size=1)
        return output

    @override
    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        return self._measured(batch, batch_idx, "val", dataloader_idx)

    @override
    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        return self._measured(batch, batch_idx, "test", dataloader_idx)

    @property
    def lr(self) -> float:
        """Learning rate of the optimizer, which ``Tuner.lr_find`` changes; a dual variable with its own rate keeps that."""
        if self._rate is not None:
            return self._rate
        rate = self.optimizer([nn.Parameter(torch.zeros(1))]).defaults.get("lr")
        if rate is None:
            raise AttributeError("the optimizer has no learning rate `lr`")
        return float(rate)

    @lr.setter
    def lr(self, value: float) -> None:
        self._rate = float(value)
        described = self.hparams.get("optimizer")
        if described is not None:  # so that a model of the checkpoint has this rate, too
            named = described if isinstance(described, dict) else {"class_path": described}
            self.hparams["optimizer"] = {**named, "init_args": {**named.get("init_args", {}), "lr": self._rate}}

    @property
    def configure_model(self) -> Callable[[], None]:
        """Shard the weights over the processes of a ``ModelParallelStrategy``; do nothing with other strategies.

        With other strategies, this attribute is Lightning's own hook, since Lightning warns models that override it without
        sharding.
        """
        if self.device_mesh is None:
            return super().configure_model
        return partial(shard, self, self.device_mesh, ("training_step", "validation_step", "test_step", "predict_step"))

    @override
    def configure_callbacks(self) -> list[pl.Callback]:
        """Return callbacks that the trainer lacks: a logger of counts, and a checkpoint callback that uses ``monitor``."""
        from lit_sparse.callbacks import CountLogger

        present: list[pl.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        added: list[pl.Callback] = []
        if not any(isinstance(callback, CountLogger) for callback in present):
            added.append(CountLogger(max_count=MOST_COUNTED))
        default = vars(ModelCheckpoint())
        if self._is_fitting and self.trainer.enable_validation and any(vars(callback) == default for callback in present):
            key, mode = self.monitor
            added.append(ModelCheckpoint(monitor=key, mode=mode, save_last=True))
        return added

    @override
    def configure_optimizers(self) -> Any:
        optimizer = build_optimizer(self, self.risk, self._rate)
        if self.lr_scheduler is None:
            return optimizer
        scheduler = describe_scheduler(self.lr_scheduler, optimizer, self.risk, self._trainer)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip gradients, also for fused optimizers in bf16-mixed, which Lightning refuses."""
        if not clip_fused(self.trainer.precision_plugin, optimizer, gradient_clip_val, gradient_clip_algorithm):
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def setup(self, stage: str) -> None:
        """Log the hyperparameters, and prepare the initial weights of a new run."""
        if self._trainer is not None:
            guard_restoring(self._trainer)
        if stage == "fit":
            self._limits = limits_of(self.trainer)
            for logger in self.trainer.loggers:
                logger.log_hyperparams(describe_run(self, getattr(self.trainer, "datamodule", None)))
            for kind in ("train", "val"):  # a run that has ended is not validated again, but prints its table
                self.stage_metrics(kind)
            after_restore(self.trainer, self._begin_weights)

    def _begin_weights(self) -> None:
        if self.initial_weights:
            load_initial_weights(self, self.initial_weights)
        elif self._training_seed is None:
            self.initialize(getattr(self.trainer, "datamodule", None))

    def initialize(self, data: Any) -> None:
        """Initialize weights from the training data in a new run without ``initial_weights``; by default do nothing.

        Args:
            data: the training data module, or None.
        """

    @property
    def _is_fitting(self) -> bool:
        """Whether a trainer is training this model."""
        return self._trainer is not None and self._trainer.state.fn == "fit"

    @override
    def on_train_start(self) -> None:
        if self._training_seed is None:
            self._training_seed = torch.initial_seed() % 2**63
        for config in self.trainer.lr_scheduler_configs:
            check_end(config.scheduler, config.interval, self.trainer)
        check_updates(self.trainer)
        if not sets_rates(self.trainer):
            renew_dual_rates(self.trainer.optimizers, self.risk)
        resumed, self._resumed = self._resumed, None
        start_training(self.trainer, resumed, self._limits)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed torch for this batch, and reset the means at the first batch of an epoch."""
        self._seed(first_update(batch, batch_idx))
        if batch_idx == 0:
            self.stage_metrics("train").reset()

    def _seed(self, update: int) -> None:
        """Seed torch for an update, by its number in the epoch."""
        place = f"{self._training_seed} {self.current_epoch} {update} {self.global_rank}"
        seed_generator(int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "big"), self.device)

    @override
    def on_train_epoch_end(self) -> None:
        self._log_metrics("train")
        for name, value in self.risk.measurements().items():
            if not isinstance(value, int | float | Tensor):
                raise ConfigurationError(
                    f"Expected `measurements` of {full_name(self.risk)} to return numbers but got {value!r} as {name!r}."
                )
            self.log(f"train/{name}", value, sync_dist=True)

    @override
    def on_validation_epoch_end(self) -> None:
        self._log_loaders("val")

    @override
    def on_test_epoch_end(self) -> None:
        self._log_loaders("test")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the training seed, the position, and the means of the epoch so far, summed over processes."""
        checkpoint["training_seed"] = self._training_seed
        if self._is_fitting:
            store_training(self.trainer, checkpoint, self._limits)
        checkpoint["undescribed"] = self._undescribed
        checkpoint["train_means"] = self.stage_metrics("train").sums()
        weights = checkpoint.get("state_dict", {})
        for name, value in weights.items():
            if type(value) is Tensor and vars(value):  # FSDP notes something on tensors; a checkpoint holds plain ones
                weights[name] = value.detach()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the training seed and the means of the epoch so far.

        Raises:
            CheckpointError: if the checkpoint cannot describe a part that was built in Python, and the part is not given.
        """
        match_risk(self, checkpoint, continues=self._is_fitting)
        if self.initial_weights == checkpoint.get("hyper_parameters", {}).get("initial_weights"):
            self.initial_weights = None  # a file that the checkpoint names, whose weights it already replaces
        unknown = [name for name in checkpoint.get("undescribed", ()) if name not in self._undescribed]
        if unknown:
            raise not_given(type(self), unknown)
        if self._trainer is not None and isinstance(self._trainer.precision_plugin, DoublePrecision):
            self.double()  # Lightning restores weights before it converts the model
        self._training_seed = checkpoint.get("training_seed")
        unmask(checkpoint)
        check_kinds(self, checkpoint)
        self._resumed = None
        if self._is_fitting and not is_tuning(self.trainer):
            prepare_to_continue(self.trainer, checkpoint, self._limits)
            self._resumed = checkpoint
        self.stage_metrics("train").restore(checkpoint.get("train_means", {}))

    def _shows(self, batch_idx: int) -> bool:
        """Return whether this step logs its loss, for the logger or for the progress bar."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        logged = every > 0 and ((self.global_step + 1) % every == 0 or self.trainer.should_stop)  # as Lightning decides it
        return batch_idx % SHOWN_EVERY == 0 or logged

    def _measured(self, batch: Batch, batch_idx: int, stage: Stage, loader: int) -> dict[str, Any]:
        """Run the step and update the means; a process without examples has one batch, and this batch is empty."""
        self._loader = loader
        try:
            metrics = self.stage_metrics(stage)
            if batch_idx == 0:
                metrics.reset()
            output = self.run_step(batch, batch_idx, stage) if batch else {}
            if output:
                groups = column_of(self.risk.group_key or GROUP, batch, output["example_index"])
                metrics.measure(output["per_example"], groups, batch.get("label"))
            return output
        finally:
            self._loader = 0

    def _log_loaders(self, stage: Literal["val", "test"]) -> None:
        for loader in range(number_of_loaders(self.trainer, stage)):
            self._loader = loader
            self._log_metrics(stage)
        self._loader = 0

    @override
    def log(self, name: str, *args: Any, **options: Any) -> None:
        if self._loader:
            name, options["add_dataloader_idx"] = f"{name}/dataloader_idx_{self._loader}", False
        super().log(name, *args, **options)

    def _log_metrics(self, stage: Stage) -> None:
        self.stage_metrics(stage).log(self, stage, self.count_name)
