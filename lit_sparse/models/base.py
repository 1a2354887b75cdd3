"""Base class of all models: the objective, the logged means, and the state for exact resume."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import Self, override

from lit_sparse.checks import check_choice, check_indices, check_result
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.arguments import KeepsArguments, constructor_parameters
from lit_sparse.ground.distributed import shard
from lit_sparse.lightning.choice import (
    NAME,
    DoublePrecision,
    GradClipAlgorithmType,
    LRSchedulerCallable,
    ModelCheckpoint,
    OptimizerCallable,
    Precision,
    check_pairing,
    pl,
)
from lit_sparse.lightning.internals import after_restore, given_hyperparameters, limits_of, number_of_loaders, sets_rates
from lit_sparse.lightning.states import is_tuning, unmask
from lit_sparse.models.data_protocols import Batch, check_batch, first_update, rows_of, size_of, updates_of
from lit_sparse.models.loaded_weights import load_initial_weights, match_risk, not_given
from lit_sparse.models.optimizers import DUAL, build_optimizer, clips_by_itself, renew_dual_rates, warn_of_other_rates
from lit_sparse.models.restoring import guard_restoring, prepare_to_continue, start_training, store_training
from lit_sparse.models.schedulers import built_scheduler, check_end, describe_scheduler
from lit_sparse.models.stage_metrics import StageMetrics, group_metrics, mean_metrics
from lit_sparse.models.step_output import StepOutput
from lit_sparse.models.updates import check_updates, joined, make_update
from lit_sparse.random import seed_generator
from lit_sparse.risks import BrokenLossError, Mean, Risk
from lit_sparse.runs.checkpoint_files import check_kinds, load_module
from lit_sparse.runs.descriptions import class_path, describe_all

__all__ = ["Batch", "LitSparseModule", "Stage", "StepOutput", "mean_metrics"]

Stage: TypeAlias = Literal["train", "val", "test"]

#: Number of steps between updates of the progress bar's loss; logging costs about as much as a small layer.
SHOWN_EVERY = 10
#: Largest count that is logged as it is.
MOST_COUNTED = 4096
#: Entry of a batch with the group of each example, whose scores are logged, unless the risk names another.
GROUP = "group"
#: Measurements of a step that callbacks get as they are.
REPORTED = ("example_index", "support_size", "decoder_calls", "num_allowed", "groups", "artifacts")


class LitSparseModule(KeepsArguments, pl.LightningModule, ABC):
    """Base of the package's LightningModules; a subclass implements :meth:`step`.

    - Means over examples are exact for uneven batches and any number of processes.
    - Random draws in training are a function of (seed, epoch, batch, process), so a resumed run continues the same draws.
    - Checkpoints describe the model's arguments, and load from Python and from the command line.

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
    #: Whether a risk may perturb the inputs; ``step`` then calls :meth:`perturbed`.
    adversarial: ClassVar[bool] = False
    #: Whether validation and test skip an empty batch, that of a process without examples.
    skips_empty_batches: ClassVar[bool] = True
    #: What :meth:`compile` makes of ``step``.
    _compiled_step: Callable[..., StepOutput] | None = None
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
        super().__init__()
        check_pairing()
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.initial_weights = initial_weights
        # In the form of Lightning's command line, also for a model that is built in Python: Lightning would store the objects.
        kind = {"_class_path": class_path(type(self)), "_instantiator": f"{NAME}.cli.instantiate_module"}
        described = {**given_hyperparameters(), **kind, **describe_all(self._arguments)}
        self.save_hyperparameters(described, logger=False)
        self._undescribed = [
            name for name, value in self._arguments.items() if isinstance(value, nn.Module) and name not in described
        ]
        del self._arguments  # parts of the model are stored only as its modules
        if risk is not None and not isinstance(risk, Risk):
            raise ConfigurationError(f"Expected `risk` to be a lit_sparse.risks.Risk or None but got {risk!r}. Build one.")
        if risk is not None and risk.adversary is not None and not self.adversarial:
            raise ConfigurationError(
                f"Expected a risk that does not perturb inputs for {type(self).__name__} but got {type(risk).__name__}. Use"
                " another risk, such as SafeKLDRO, or a model of images or features, such as RobustClassifier."
            )
        self.risk = Mean() if risk is None else risk
        self._training_seed: int | None = None
        self._resumed: dict[str, Any] | None = None
        self._limits: dict[str, Any] = {}

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: Any, *args: Any, trust: Collection[str] = (), weights_only: bool | None = None, **options: Any
    ) -> Self:
        """Build a model from a checkpoint, as Lightning does, after a check of the names in it.

        Args:
            checkpoint_path: path, or an open file.
            args: arguments of Lightning's method: ``map_location``, ``hparams_file``, ``strict``.
            trust: additional import paths that the checkpoint may name. Names of this package, ``torch.nn``, ``torch.optim``
                and imported modules are always allowed.
            weights_only: False to unpickle the file without these checks, which may run any code.
            options: options of Lightning's method, and arguments of the model in place of the checkpoint's.

        Raises:
            CheckpointError: if it is not a checkpoint, does not fit the model, or names a class that is not allowed.
        """
        options |= dict(zip(("map_location", "hparams_file", "strict"), args, strict=False))
        if weights_only is False:
            return super().load_from_checkpoint(checkpoint_path, weights_only=False, **options)
        return load_module(cls, checkpoint_path, trust=trust, **options)

    @abstractmethod
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        """Return the losses and measurements of one batch.

        Args:
            batch: batch of the data module.
            batch_idx: index of the batch in its epoch.
            stage: ``"train"``, ``"val"`` or ``"test"``.
        """

    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        """Return the metrics of a stage by name; the base logs them at the end of each epoch.

        The base updates each :class:`lit_sparse.metrics.MeanOverExamples` with ``StepOutput.per_example`` of its name. The
        step updates all other metrics, through :meth:`stage_metrics`. A metric that computes a dict is logged by its keys.

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
        """Return the metrics of a stage from :meth:`configure_metrics`, on the model's device; each loader has its own."""
        name = f"{stage}_metrics_{self._loader}".removesuffix("_0")
        if name not in self._modules:
            declared = self.configure_metrics(stage)
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
    def compile(self, *args: Any, **options: Any) -> None:
        """Compile :meth:`step` by ``torch.compile`` with these arguments; what Lightning does around it stays as it is."""
        self._compiled_step = torch.compile(self.step, *args, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without compiled code, which belongs to this object and process."""
        return {name: value for name, value in super().__getstate__().items() if name != "_compiled_step"}

    def configure_predictor(self) -> nn.Module:
        """Return a plain torch module that computes the model's predictions; it may share the model's parts."""
        raise ConfigurationError(
            f"Expected a model with a predictor but got {type(self).__name__}. Override `configure_predictor`, or use one of"
            " its modules."
        )

    def predictor(self) -> nn.Module:
        """Return a copy of the model for serving: a plain torch module in evaluation, without Lightning, the risk or gradients.

        Raises:
            ConfigurationError: for a model without a predictor, or one whose vocabularies are not set yet.
        """
        served = self.configure_predictor()
        if not isinstance(served, nn.Module):
            raise ConfigurationError(
                f"Expected `configure_predictor` of {full_name(self)} to return a torch module but got {full_name(served)}."
            )
        return copy.deepcopy(served).requires_grad_(False).eval()

    def exported(self) -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
        """Return the modules that ``lit-sparse export`` writes, by what follows the name of the file, with example arguments.

        By default the predictor, of two examples with ``in_features`` numbers each.
        """
        return {"": (self.predictor(), (torch.rand(2, int(getattr(self, "in_features", 1))),))}

    def run_step(self, batch: Batch, batch_idx: int, stage: Stage) -> dict[str, Any]:
        """Return the objective of a batch as ``loss``, and the measurements of the step for callbacks.

        The objective is the risk of the losses in training, and their mean in validation and test, with the weights of the
        examples.

        Args:
            batch: batch of the data module.
            batch_idx: index of the batch in its epoch.
            stage: ``"train"``, ``"val"`` or ``"test"``.

        Raises:
            BrokenLossError: if a loss is NaN, or infinite and the risk is not the mean; it names the example.
        """
        check_choice("stage", stage, get_args(Stage))
        check_batch(batch)
        try:
            output = (self._compiled_step or self.step)(batch, batch_idx, stage)
        except KeyError as error:
            if not isinstance(batch, dict) or not error.args or error.args[0] in batch:
                raise
            raise ConfigurationError(
                f"Expected the entry {error.args[0]!r} in a batch for {type(self).__name__} but got"
                f" {', '.join(map(str, batch))}. Use a data module that makes it."
            ) from error
        if not isinstance(output, StepOutput):
            raise ConfigurationError(
                f"Expected `step` of {full_name(self)} to return a StepOutput but got a {type(output).__name__}."
            )
        objective, losses, rows = output.objective, output.losses, output.example_index
        if rows is not None and (not isinstance(rows, Tensor) or rows.dim() != 1 or rows.dtype != torch.int64):
            raise ConfigurationError(f"Expected `example_index` of {full_name(self)} to be indices (R,) but got {rows!r}.")
        known = batch.get("index", losses) if rows is None else rows
        each = tuple(known.shape[:1]) if isinstance(known, Tensor) else ()
        for name, shape in (("objective", ()), ("penalty", ()), ("losses", each), ("transport_cost", each)):
            if (value := getattr(output, name)) is not None:
                check_result(self, f"step(...).{name}", value, shape)
        output.check_measurements(self)
        if losses is not None:
            logged = self.weighted(losses, batch, rows)
            if objective is None:
                minimized = losses if output.transport_cost is None else losses - output.transport_cost
                objective = self.objective(minimized, batch, stage, rows)
            if output.penalty is not None:
                objective, logged = objective + output.penalty, logged + output.penalty
        elif objective is not None:
            logged = objective.reshape(1)
        else:
            raise ConfigurationError(f"Expected `losses` or an `objective` from {full_name(self)} but got neither.")
        per_example = {name: values.detach() for name, values in ({"loss": logged} | output.per_example).items()}
        return {"loss": objective, "per_example": per_example} | {name: getattr(output, name) for name in REPORTED}

    @staticmethod
    def weighted(losses: Tensor, batch: Batch, rows: Tensor | None = None) -> Tensor:
        """Return losses times the weights of their examples, or unchanged losses for data without weights.

        Args:
            losses: (B,), or (R,) with ``rows``.
            batch: batch, whose entry ``weight`` (B,) holds the weights, those of a coreset.
            rows: (R,) position in the batch of the example that each loss belongs to.
        """
        weights = _column("weight", batch, rows)
        return losses if weights is None else losses * weights.to(losses.dtype)

    def objective(
        self, losses: Tensor, batch: Batch, stage: Stage, rows: Tensor | None = None, shares: Tensor | None = None
    ) -> Tensor:
        """Return the risk of weighted losses in training, and their weighted mean in validation and test.

        Args:
            losses: (B,), or (R,) with ``rows``.
            batch: batch, whose entry ``weight`` (B,) holds the weights, those of a coreset.
            stage: ``"train"``, ``"val"`` or ``"test"``.
            rows: (R,) position in the batch of the example that each loss belongs to.
            shares: (R,) further factor of each weight.

        Raises:
            BrokenLossError: if a loss is NaN, or infinite and the risk is not the mean; it names the example.
        """
        if stage != "train":
            return self.weighted(losses, batch, rows).mean()
        try:
            weights = _column("weight", batch, rows)
            if shares is not None:
                weights = shares if weights is None else shares * weights
            risk: Tensor = self.risk(losses, weights, _column(self.risk.group_key, batch, rows))
        except BrokenLossError as error:
            row, index = error.row if rows is None else int(rows[error.row]), batch.get("index")
            where = f" (number {int(index[row])} of the training data)" if isinstance(index, Tensor) else ""
            raise error.located(row, where) from None
        return risk

    def perturbed(self, loss_fn: Callable[[Tensor], Tensor], inputs: Tensor, stage: Stage) -> tuple[Tensor, Tensor | None]:
        """Return the inputs that the risk perturbs in training, and the transport cost (B,), or None without one.

        Args:
            loss_fn: function from inputs (B, ...) to losses (B,).
            inputs: (B, ...) floating.
            stage: ``"train"``, ``"val"`` or ``"test"``; only training perturbs inputs.
        """
        if stage != "train" or self.risk.adversary is None:
            return inputs, None
        moved, cost = self.risk.perturb(loss_fn, inputs)
        if moved.shape != inputs.shape or cost.shape != inputs.shape[:1]:
            raise ConfigurationError(
                f"Expected `adversary` of {full_name(self.risk)} to return inputs {tuple(inputs.shape)} and a cost of each but"
                f" got {tuple(moved.shape)} and {tuple(cost.shape)}."
            )
        return moved, cost

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
        """The learning rate of the optimizer, which ``Tuner.lr_find`` changes; a dual variable with its own rate keeps that."""
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
        """The hook that divides the weights over the processes of a ``ModelParallelStrategy``.

        With other strategies it is Lightning's own, which does nothing: Lightning asks whether a model overrides the hook, and
        then warns that its layers are not divided.
        """
        return super().configure_model if self.device_mesh is None else self._shard

    def _shard(self) -> None:
        mesh = self.device_mesh
        assert mesh is not None
        if (size := mesh["tensor_parallel"].size()) > 1:
            raise ConfigurationError(
                f"Expected `tensor_parallel_size` of ModelParallelStrategy to be 1 but got {size}. Set it to 1, and"
                " `data_parallel_size` to the number of processes."
            )
        shard(self, mesh["data_parallel"], ("training_step", "validation_step", "test_step", "predict_step"))

    @override
    def configure_callbacks(self) -> list[pl.Callback]:
        """Return callbacks that the trainer lacks: of counts, and of a checkpoint on ``monitor`` in place of Lightning's."""
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
        optimizer = build_optimizer(self.optimizer, self, self.risk)
        if self._rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = self.risk.dual_lr if group.get(DUAL) and self.risk.dual_lr is not None else self._rate
        if self.lr_scheduler is None:
            return optimizer
        scheduler = built_scheduler(self.lr_scheduler, optimizer)
        warn_of_other_rates(optimizer, scheduler, self.risk)
        return {"optimizer": optimizer, "lr_scheduler": describe_scheduler(scheduler, self._trainer)}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip gradients, also for fused optimizers in bf16-mixed."""
        precision = self.trainer.precision_plugin
        if gradient_clip_val and clips_by_itself(optimizer, precision):
            kind = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
            Precision.clip_gradients(precision, optimizer, gradient_clip_val, kind)
        else:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def setup(self, stage: str) -> None:
        """Log the hyper-parameters, and prepare the initial weights of a new run."""
        if stage == "fit":
            self._limits = limits_of(self.trainer)
            guard_restoring(self.trainer)
            for logger in self.trainer.loggers:
                logger.log_hyperparams(self._described())
            self.stage_metrics("train")
            after_restore(self.trainer, self._begin_weights)

    def _begin_weights(self) -> None:
        if self.initial_weights:
            load_initial_weights(self, self.initial_weights)
        elif self._training_seed is None:
            self.initialize(getattr(self.trainer, "datamodule", None))

    def initialize(self, data: Any) -> None:
        """Set weights from the data when a new model begins to train, without ``initial_weights``; by default none.

        Args:
            data: data module of the training, or None.
        """

    def _described(self) -> dict[str, Any]:
        """Describe the model and its data module for a logger, each with ``class_path`` and ``init_args``."""
        arguments = {name: value for name, value in self.hparams.items() if not name.startswith("_")}
        described = {"model": {"class_path": class_path(type(self)), "init_args": arguments}}
        data = getattr(self.trainer, "datamodule", None)
        if data is not None:
            kept = vars(data)  # not getattr: a property may compute, e.g. select a coreset
            arguments = describe_all({name: kept[name] for name in constructor_parameters(type(data)) if name in kept})
            described["data"] = {"class_path": class_path(type(data)), "init_args": arguments}
        return described

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
        with self._of_loader(loader):
            metrics = self.stage_metrics(stage)
            if batch_idx == 0:
                metrics.reset()
            if not batch:
                return {}
            output = self.run_step(batch, batch_idx, stage)
            metrics.measure(output["per_example"], _column(self.risk.group_key or GROUP, batch, output["example_index"]))
        return output

    @contextmanager
    def _of_loader(self, loader: int) -> Iterator[None]:
        """Let the block measure and log for one loader of validation or test."""
        self._loader = loader
        try:
            yield
        finally:
            self._loader = 0

    def _log_loaders(self, stage: Literal["val", "test"]) -> None:
        for loader in range(number_of_loaders(self.trainer, stage)):
            with self._of_loader(loader):
                self._log_metrics(stage)

    @override
    def log(self, name: str, *args: Any, **options: Any) -> None:
        if self._loader:
            name, options["add_dataloader_idx"] = f"{name}/dataloader_idx_{self._loader}", False
        super().log(name, *args, **options)

    def _log_metrics(self, stage: Stage) -> None:
        self.stage_metrics(stage).log(self, stage, self.count_name)


def _column(name: str | None, batch: Batch, rows: Tensor | None) -> Tensor | None:
    """Return an entry of a batch (B,) at each of the rows (R,), all without rows; None for data without it."""
    if name is None or name not in batch:
        return None
    column: Tensor = batch[name]
    return column if rows is None else column[rows]
