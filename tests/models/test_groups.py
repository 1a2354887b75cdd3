"""Models pass groups to the risk, compute the rows that it draws, and log scores by group."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from lit_sparse.data import ColoredDigitsDataModule, DigitsDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.hf import risk_loss_func
from lit_sparse.models import RobustClassifier, SupervisedOnlineAutoencoder
from lit_sparse.nn import ConvNet
from lit_sparse.risks import CVaR, GroupDRO, MultilevelCVaR, Risk


def classifier(risk: Risk | None = None, **options: Any) -> RobustClassifier:
    network = ConvNet(8, 8, outputs=2, channels=[4], hidden=8, colors=2)
    adam = functools.partial(torch.optim.Adam, lr=3e-3)
    return RobustClassifier(network=network, in_features=128, classes=2, risk=risk, optimizer=adam, **options)


def batch_of(size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    groups = torch.randint(4, (size,), generator=generator)
    pixels = torch.rand(size, 128, generator=generator)
    return {"pixels": pixels, "label": groups // 2, "group": groups, "index": torch.arange(size)}


def trained(model: pl.LightningModule, data: pl.LightningDataModule) -> pl.Trainer:
    run = pl.Trainer(
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        limit_train_batches=4,
        num_sanity_val_steps=0,
    )
    run.fit(model, datamodule=data)
    return run


def test_the_risk_gets_the_groups_of_labelled_examples_and_weights() -> None:
    model, batch = classifier(GroupDRO(4, 1.0)), batch_of(20)
    batch["weight"] = torch.rand(20)
    batch["label"][:5] = -100
    losses = torch.nn.functional.cross_entropy(model(batch["pixels"])[5:], batch["label"][5:], reduction="none")
    expected = GroupDRO(4, 1.0)(losses, batch["weight"][5:], batch["group"][5:])
    torch.testing.assert_close(model.run_step(batch, 0, "train")["loss"], expected)
    del batch["group"]
    with pytest.raises(ConfigurationError, match=r"the group of each example.*entry 'group'"):
        model.run_step(batch, 0, "train")
    model = classifier(GroupDRO(2, group_key="label"))
    assert bool(model.run_step(batch, 0, "train")["loss"].isfinite())


@pytest.mark.parametrize("risk", [None, GroupDRO(4, 1.0)], ids=["Mean", "GroupDRO"])
def test_scores_by_group_are_logged(risk: Risk | None) -> None:
    data = ColoredDigitsDataModule(labelled=1.0, binarize=False, eval_batch_size=50)
    model = classifier(risk)
    found = trained(model, data).callback_metrics
    batch = data.fetch("val", 0, torch.arange(data.size("val")))
    scores = model(batch["pixels"]).detach()
    losses = torch.nn.functional.cross_entropy(scores, batch["label"], reduction="none")
    right = (scores.argmax(1) == batch["label"]).double()
    for group in range(4):
        chosen = batch["group"] == group
        assert float(found[f"val/accuracy_group_{group}"]) == pytest.approx(float(right[chosen].mean()))
        assert float(found[f"val/loss_group_{group}"]) == pytest.approx(float(losses[chosen].mean()), rel=1e-4)
    assert float(found["val/worst_group_accuracy"]) == min(float(found[f"val/accuracy_group_{group}"]) for group in range(4))
    assert float(found["val/worst_group_loss"]) == max(float(found[f"val/loss_group_{group}"]) for group in range(4))
    assert ("train/group_weight_3" in found) == (risk is not None)


def test_scores_by_group_are_of_all_labelled_examples() -> None:
    """Also of those in a batch with unlabelled examples, whose accuracies are fewer than its groups."""
    model = SupervisedOnlineAutoencoder(None, in_features=128, width=4, classes=2)
    model.start_from(torch.rand(4, 128))
    batch = batch_of(20)
    batch["label"] = model(batch["pixels"]).argmax(1)
    batch["label"][:5] = -100
    batch["label"][8:] ^= 1  # all wrong, after a batch whose labelled examples are right
    for number, rows in enumerate((slice(0, 8), slice(8, 20))):
        model.validation_step({name: values[rows] for name, values in batch.items()}, number)
    found = model.stage_metrics("val")["group_accuracy"].compute()
    right = (model(batch["pixels"]).argmax(1) == batch["label"])[5:].double()
    for group in range(4):
        assert float(found[f"accuracy_group_{group}"]) == float(right[batch["group"][5:] == group].mean())


def test_no_scores_by_group_without_groups() -> None:
    model = RobustClassifier(network=ConvNet(8, 8, channels=[4]), in_features=64)
    found = trained(model, DigitsDataModule(labelled=1.0, binarize=False)).callback_metrics
    assert not [name for name in found if "group" in name]


def test_only_the_rows_that_the_risk_draws_are_computed() -> None:
    """Each row of a batch may be drawn, with its own label and group."""
    sizes, seen = [], set()

    class Watched(RobustClassifier):
        def step(self, batch: Any, batch_idx: int, stage: Any) -> Any:
            if stage == "train":
                sizes.append(len(batch["pixels"]))
                seen.update(batch["index"].tolist())
                assert set(batch["words"]) == {str(row) for row in batch["index"].tolist()}
                assert torch.equal(batch["group"], batch_of(64)["group"][batch["index"]])
            return super().step(batch, batch_idx, stage)

    network = ConvNet(8, 8, outputs=2, channels=[4], hidden=8, colors=2)
    model = Watched(network=network, in_features=128, classes=2, risk=MultilevelCVaR(0.5, smallest=8))
    model._shows = lambda batch_idx: False  # type: ignore[method-assign]
    torch.manual_seed(0)
    for _ in range(60):
        model.training_step({**batch_of(64), "words": [str(row) for row in range(64)], "scale": torch.ones(())}, 0)
    assert set(sizes) == {8, 16, 32, 64}
    assert sum(sizes) / 60 == pytest.approx(8 * 2.5, rel=0.4)
    assert seen == set(range(64))


def test_the_trainer_of_transformers_has_no_groups() -> None:
    with pytest.raises(ConfigurationError, match="groups"):
        risk_loss_func(GroupDRO(2))
    risk_loss_func(CVaR(0.5))
