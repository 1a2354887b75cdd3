"""The game of sender and receiver: its loss, its success, what it costs, and how it travels."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lit_sparse.callbacks import CountLogger, LanguageLogger, SuccessPlot, SupportSizePlot, TemperatureAnnealing
from lit_sparse.data import DigitsDataModule, ReferentialGameDataModule
from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.estimators import (
    Estimator,
    GumbelSoftmax,
    LeaveOneOut,
    Marginalize,
    ScoreFunction,
    SumAndSample,
    TopKMarginalize,
)
from lit_sparse.mappings import Softmax, SparseMapping, Sparsemax
from lit_sparse.models import SignalingGame, Stage
from lit_sparse.nn import MLP, Receiver, Sender


def game(mapping: SparseMapping | None = None, estimator: Estimator | None = None, **options: object) -> SignalingGame:
    torch.manual_seed(0)
    parts = {"in_features": 6, "vocabulary": 5, **options}
    return SignalingGame(mapping or Sparsemax(), estimator or Marginalize(), **parts)  # type: ignore[arg-type]


def batch(size: int = 7) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    candidates = torch.rand(size, 4, 6, generator=generator)
    position = torch.randint(4, (size,), generator=generator)
    index = torch.arange(size)
    return {"target": candidates[index, position], "candidates": candidates, "position": position, "index": index}


def players(model: SignalingGame) -> list[nn.Parameter]:
    return [*model.sender.parameters(), *model.receiver.parameters()]


def test_published_architecture_is_the_default() -> None:
    model = SignalingGame(Sparsemax(), Marginalize())
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes == {
        "sender.embed.weight": (256, 4096),
        "sender.widen.weight": (512, 1),
        "sender.widen.bias": (512,),
        "sender.narrow.weight": (1, 512),
        "sender.narrow.bias": (1,),
        "sender.score.weight": (256, 256),
        "sender.score.bias": (256,),
        "receiver.see.weight": (256, 4096),
        "receiver.hear.weight": (256, 256),
    }
    assert abs(float(model.receiver.hear.weight.detach().std()) - 1) < 0.02  # type: ignore[union-attr]


def test_the_published_sender_has_no_biases() -> None:
    assert not [name for name, _ in game(sender_bias=False).named_parameters() if name.endswith("bias")]


def test_sender_equals_its_convolutions() -> None:
    """However the features are cut into parts."""
    sender = Sender(9, vocabulary=4, embedding=300, filters=600).double()
    wide, narrow = nn.Conv1d(1, 600, 1).double(), nn.Conv1d(600, 1, 1).double()
    with torch.no_grad():
        wide.weight.copy_(sender.widen.weight.unsqueeze(-1))
        wide.bias.copy_(sender.widen.bias)  # type: ignore[union-attr]
        narrow.weight.copy_(sender.narrow.weight.unsqueeze(-1))
        narrow.bias.copy_(sender.narrow.bias)  # type: ignore[union-attr]
    images = torch.randn(11, 9, dtype=torch.float64)
    embedded = images @ sender.embed.weight.mT
    hidden = torch.sigmoid(narrow(torch.sigmoid(wide(embedded.unsqueeze(1)))).squeeze(1))
    expected = (hidden @ sender.score.weight.mT + sender.score.bias) / 10
    torch.testing.assert_close(sender(images), expected)
    assert sender(images[:0]).shape == (0, 4)


@pytest.mark.parametrize("most", [1, 6, 200])
def test_receiver_equals_inner_products(most: int) -> None:
    """Whether few or many symbols are sent, both ways to compute it."""
    receiver = Receiver(6, vocabulary=5, embedding=40).double()
    candidates = torch.randn(3, 4, 6, dtype=torch.float64)
    rows = torch.repeat_interleave(torch.tensor([0, 2]), torch.tensor([most, 1]))
    messages = torch.rand(len(rows), 5, dtype=torch.float64, requires_grad=True)
    got = receiver(candidates, messages, rows)
    heard, seen = messages @ receiver.hear.weight.mT, candidates @ receiver.see.weight.mT
    expected = torch.einsum("re,rne->rn", heard, seen[rows])
    torch.testing.assert_close(got, expected)
    parameters = [messages, *receiver.parameters()]
    weights = torch.randn_like(got)
    ours, theirs = (torch.autograd.grad((value * weights).sum(), parameters) for value in (got, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert receiver(candidates, messages[:0], rows[:0]).shape == (0, 4)


@pytest.mark.parametrize("mapping", [Sparsemax(gamma=0.02), Softmax(gamma=0.1)])
def test_loss_and_successes_equal_those_of_a_loop(mapping: SparseMapping) -> None:
    model, games = (
        game(mapping, entropy_weight=0.3).double(),
        {k: v.double() if v.is_floating_point() else v for k, v in batch().items()},
    )
    output = model.run_step(games, 0, "val")
    probs = mapping(model.sender(games["target"]))
    for i in range(len(probs)):
        nll = success = expected = 0.0
        for symbol, p in enumerate(probs[i].tolist()):
            message = nn.functional.one_hot(torch.tensor([symbol]), 5).double()
            picks = model.receiver(games["candidates"][i : i + 1], message, torch.tensor([0]))[0].log_softmax(-1)
            right = float(picks.argmax() == games["position"][i])
            nll -= p * float(picks[games["position"][i]].detach())
            expected += p * right
            success = right if symbol == int(probs[i].argmax()) else success
        entropy = -float(torch.special.xlogy(probs[i], probs[i]).sum().detach())
        found = {name: float(values[i]) for name, values in output["per_example"].items()}
        assert found == pytest.approx(
            {"loss": nll - 0.3 * entropy, "nll": nll, "entropy": entropy, "success": success}
            | {"expected_success": expected, "sent_success": expected}
        )
    assert torch.equal(output["decoder_calls"], (probs > 0).sum(-1))
    assert torch.equal(output["artifacts"]["messages"], probs.argmax(-1))


@pytest.mark.parametrize("estimator", [Marginalize(decode="all"), ScoreFunction(), ScoreFunction("self_critic")])
def test_the_gradient_of_drawn_picks_is_that_of_the_expected_error(estimator: Estimator) -> None:
    """Over 30,000 draws for each of two games; the first batch has no baseline, the second has one."""
    torch.manual_seed(2)
    small = {"sender": Sender(6, 5, embedding=3, filters=2, scale=0.5), "receiver": Receiver(6, 5, embedding=3)}
    model = game(Softmax(gamma=0.3), estimator, entropy_weight=0.0, loss="success", **small).double().train()
    games = {name: value[:2].double() if value.is_floating_point() else value[:2] for name, value in batch().items()}
    games["candidates"] *= 8  # so that the gradient is larger than its noise
    probs = model.mapping(model.sender(games["target"]))
    symbols, rows = torch.eye(5, dtype=torch.float64).repeat(2, 1), torch.arange(2).repeat_interleave(5)
    picks = model.receiver(games["candidates"], symbols, rows).softmax(-1)
    wrong = 1 - picks.gather(-1, games["position"][rows].unsqueeze(-1)).view(2, 5)
    wanted = torch.autograd.grad((probs * wrong).sum(-1).mean(), players(model))
    many = {name: value.repeat_interleave(30_000, 0) for name, value in games.items()}
    for seed in (0, 1):
        torch.manual_seed(seed)
        output = model.run_step(many, 0, "train")
        found = torch.autograd.grad(output["loss"], players(model))
        for one, other in zip(found, wanted, strict=True):
            assert float((one - other).norm()) < 0.12 * float(other.norm())
        error = float((probs * wrong).detach().sum(-1).mean())
        assert float(output["per_example"]["error"].detach().mean()) == pytest.approx(error, abs=0.01)
    assert model.mean_error is not None
    assert float(model.mean_error.count) == 120_000


def test_the_entropy_of_drawn_picks_is_weighted() -> None:
    gradients = []
    games = batch()
    for weight in (0.0, 0.5):
        model = game(Softmax(), Marginalize(decode="all"), entropy_weight=weight, loss="success").train()
        torch.manual_seed(3)
        loss = 7 * model.run_step(games, 0, "train")["loss"]
        gradients.append(torch.autograd.grad(loss, list(model.receiver.parameters())))
    probs = model.mapping(model.sender(games["target"])).detach().flatten()
    rows = torch.arange(7).repeat_interleave(5)
    picks = model.receiver(games["candidates"], torch.eye(5).repeat(7, 1), rows).softmax(-1)
    entropy = (probs * torch.special.entr(picks).sum(-1)).sum()
    wanted = torch.autograd.grad(-0.5 * entropy, list(model.receiver.parameters()))
    for without, with_entropy, change in zip(*gradients, wanted, strict=True):
        torch.testing.assert_close(with_entropy - without, change, rtol=1e-3, atol=1e-5)


def test_the_error_of_evaluation_is_that_of_the_best_pick() -> None:
    output = game(loss="success").eval().run_step(batch(), 0, "val")
    torch.testing.assert_close(output["per_example"]["error"], 1 - output["per_example"]["expected_success"])


def test_symbols_that_are_equally_probable_count_alike() -> None:
    """For an undecided sender, success is the fraction of its symbols that are understood."""
    model = game(sender=_Undecided())
    found = model.run_step(batch(), 0, "val")["per_example"]
    messages, rows = torch.eye(5).repeat(7, 1), torch.arange(7).repeat_interleave(5)
    right = model.receiver(batch()["candidates"], messages, rows).argmax(-1) == batch()["position"][rows]
    torch.testing.assert_close(found["success"], right.view(7, 5).float().mean(-1))
    torch.testing.assert_close(found["expected_success"], found["success"])
    assert 0 < float(found["success"].mean()) < 1


class _Undecided(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return torch.zeros(len(images), 5)


SAMPLERS = [
    ScoreFunction(),
    ScoreFunction("self_critic"),
    ScoreFunction("learnt"),
    LeaveOneOut(3),
    SumAndSample(2),
    GumbelSoftmax(),
    GumbelSoftmax(straight_through=True),
]


@pytest.mark.parametrize("estimator", SAMPLERS, ids=repr)
def test_any_estimator_plays(estimator: Estimator) -> None:
    model = game(Softmax(), estimator)
    output = model.run_step(batch(), 0, "train")
    output["loss"].backward()
    assert bool(output["loss"].isfinite())
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if name.startswith(("sender", "rec")))
    assert set(output["per_example"]) == set(model.stage_metrics("train"))
    model.eval()
    first, second = (model.run_step(batch(), 0, "val")["per_example"] for _ in range(2))
    for name, values in first.items():
        assert torch.equal(values, second[name])
    assert torch.equal(first["success"], first["expected_success"]), "one symbol is decoded"


@pytest.mark.parametrize("loss", ["nll", "success"])
@pytest.mark.parametrize("estimator", [ScoreFunction(), GumbelSoftmax(straight_through=True), GumbelSoftmax(0.4)], ids=repr)
def test_the_success_of_sent_symbols_is_that_of_training(estimator: Estimator, loss: str) -> None:
    """Over 20,000 games, alike on training's way to draw symbols, and whatever the batches are."""
    model = game(Softmax(gamma=0.5), estimator, loss=loss).eval()
    games = {name: value[:2].repeat_interleave(10_000, 0) for name, value in batch().items()} | {"index": torch.arange(20_000)}

    def played(stage: Stage, name: str, starts: Iterable[int] = range(0, 20_000, 2_000), size: int = 2_000) -> Tensor:
        parts = ({key: value[start : start + size] for key, value in games.items()} for start in starts)
        return torch.cat([model.run_step(part, 0, stage)["per_example"][name].detach() for part in parts])

    state = torch.get_rng_state()
    sent = played("val", "sent_success")
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(played("val", "sent_success", [100], 150), sent[100:250])
    model.train()
    drawn = 1 - played("train", "error") if loss == "success" else played("train", "success")
    for some in (slice(10_000), slice(10_000, None)):
        assert float(sent[some].mean()) == pytest.approx(float(drawn[some].mean()), abs=0.02)


def data(**options: object) -> ReferentialGameDataModule:
    digits = DigitsDataModule(binarize=False, val_size=60, test_size=60)
    return ReferentialGameDataModule(digits, candidates=8, **options)  # type: ignore[arg-type]


def small(estimator: Estimator | None = None, mapping: SparseMapping | None = None) -> SignalingGame:
    adam = functools.partial(torch.optim.Adam, lr=3e-3)
    torch.manual_seed(0)
    parts = {"in_features": 64, "vocabulary": 16, "sender": MLP([64, 64, 16]), "entropy_weight": 0.03, "optimizer": adam}
    return SignalingGame(mapping or Sparsemax(), estimator or Marginalize(), **parts)  # type: ignore[arg-type]


def trainer(folder: Path, **options: object) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return pl.Trainer(default_root_dir=folder, **{**quiet, "enable_checkpointing": False, **options})  # type: ignore[arg-type]


@pytest.mark.gate
def test_players_come_to_understand_each_other(tmp_path: Path) -> None:
    success = SuccessPlot(folder=str(tmp_path))
    pictures = [LanguageLogger(folder=str(tmp_path)), SupportSizePlot(folder=str(tmp_path)), success]
    fitting = trainer(tmp_path, max_epochs=6, callbacks=[CountLogger(), *pictures])
    model, games = small(), data()
    fitting.fit(model, games)
    assert len(success.history) == 6
    assert success.history[-1]["val/success"] == pytest.approx(float(fitting.callback_metrics["val/success"]))
    logged = fitting.callback_metrics
    assert float(logged["val/success"]) > 0.4, "chance is 1 in 8"
    assert float(logged["train/decoder_calls_mean"]) < 8
    assert 0 < float(logged["val/message_entropy"]) <= math.log(float(logged["val/used_vocabulary"])) + 1e-6
    assert 0 < float(logged["val/class_information"]) <= float(logged["val/message_entropy"])
    assert 0 < float(logged["val/topographic_similarity"]) < 1
    assert "val/posdis" not in logged
    for name in ("messages_by_class", "support_size", "success"):
        assert (tmp_path / "pictures" / f"{name}.png").stat().st_size > 2000
    (tested,) = fitting.test(model, data(eval_batch_size=7), verbose=False)
    (again,) = fitting.test(model, data(), verbose=False)
    assert tested == pytest.approx(again, rel=1e-5), "results do not depend on batches"


def test_attributes_of_a_file_give_disentanglement(shared: Path, tmp_path: Path) -> None:
    file = shared / "data" / "visa_attributes" / "visa_us.npz"
    games = ReferentialGameDataModule(path=str(file), features="attributes", attributes="attributes", candidates=8)
    model = game(in_features=638, vocabulary=16)
    (tested,) = trainer(tmp_path, callbacks=[LanguageLogger(folder=str(tmp_path))]).test(model, games, verbose=False)
    by_attributes = LanguageLogger(folder=str(tmp_path), input_distance="hamming")
    (other,) = trainer(tmp_path, callbacks=[by_attributes]).test(model, games, verbose=False)
    assert other["test/posdis"] == pytest.approx(tested["test/posdis"], nan_ok=True)
    if tested["test/used_vocabulary"] > 1:
        assert 0 <= tested["test/posdis"] <= 1
        assert 0 <= tested["test/bosdis"] <= 1
        assert other["test/topographic_similarity"] != tested["test/topographic_similarity"]
    else:
        assert math.isnan(tested["test/posdis"])


def test_without_classes_nothing_is_said_of_them(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).random((80, 6)))
    games = ReferentialGameDataModule(path=str(tmp_path / "vectors.npy"), candidates=4)
    testing = trainer(tmp_path, callbacks=[LanguageLogger(folder=str(tmp_path))])
    (tested,) = testing.test(game(), games, verbose=False)
    assert {"test/message_entropy", "test/used_vocabulary", "test/topographic_similarity"} <= set(tested)
    assert "test/class_information" not in tested
    assert not (tmp_path / "pictures").exists()


def test_checkpoints_keep_players_and_baselines(tmp_path: Path) -> None:
    model = small(ScoreFunction("learnt"), Softmax())
    fitting = trainer(tmp_path, max_epochs=1, limit_train_batches=3)
    fitting.fit(model, data())
    fitting.save_checkpoint(tmp_path / "game.ckpt")
    loaded = SignalingGame.load_from_checkpoint(tmp_path / "game.ckpt", weights_only=True)
    assert isinstance(loaded.sender, MLP)
    assert float(loaded.estimator.mean.count) == 3 * 64  # type: ignore[union-attr]
    games = data()
    games.setup()
    images = games.fetch("test", 0, torch.arange(9))
    predicted, expected = (one.eval().predict_step(images, 0) for one in (loaded, model))
    for name, values in expected.items():
        assert torch.equal(predicted[name], values)
    assert torch.equal(images["candidates"][torch.arange(9), predicted["position"]], images["target"])


def test_players_that_cannot_be_described_are_asked_for(tmp_path: Path) -> None:
    own = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5))
    for sender, players in ((own, {"sender": own}), (Sender(6, 5, embedding=3, filters=2, scale=0.5), {})):
        model = game(sender=sender)
        fitting = trainer(tmp_path)
        fitting.strategy.connect(model)
        fitting.save_checkpoint(tmp_path / "game.ckpt")
        loaded = SignalingGame.load_from_checkpoint(tmp_path / "game.ckpt", weights_only=True, **players)
        assert type(loaded.sender) is type(sender)
        if players:
            with pytest.raises(CheckpointError, match=r"load_from_checkpoint\(path, sender=\.\.\.\)"):
                SignalingGame.load_from_checkpoint(tmp_path / "game.ckpt", weights_only=True)


class _Loud(Sender):
    """Differs from its base in what it does, not in what it keeps."""

    def __init__(self, features: int, volume: float) -> None:
        super().__init__(features, 5)
        self.by = volume

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image) * self.by


def test_players_that_look_like_others_are_asked_for_too(tmp_path: Path) -> None:
    model = game(sender=_Loud(6, 3.0))
    fitting = trainer(tmp_path)
    fitting.strategy.connect(model)
    fitting.save_checkpoint(tmp_path / "game.ckpt")
    with pytest.raises(CheckpointError, match="sender="):
        SignalingGame.load_from_checkpoint(tmp_path / "game.ckpt", weights_only=True)
    loaded = SignalingGame.load_from_checkpoint(tmp_path / "game.ckpt", weights_only=True, sender=_Loud(6, 3.0))
    assert torch.equal(loaded(torch.ones(1, 6)), model(torch.ones(1, 6)))


def test_temperatures_fall_are_kept_and_go_on(tmp_path: Path) -> None:
    annealing = TemperatureAnnealing(rate=0.01, every=4, minimum=0.2)
    assert [round(annealing.temperature(step), 4) for step in (0, 3, 4, 1000)] == [1.0, 1.0, round(math.exp(-0.04), 4), 0.2]
    model = small(GumbelSoftmax(), Softmax())
    fitting = trainer(tmp_path, max_steps=10, callbacks=[annealing])
    fitting.fit(model, data())
    fitting.save_checkpoint(tmp_path / "game.ckpt")
    assert float(fitting.callback_metrics["train/temperature"]) == pytest.approx(math.exp(-0.08))
    loaded = SignalingGame.load_from_checkpoint(tmp_path / "game.ckpt", weights_only=True)
    assert float(loaded.estimator.temperature) == pytest.approx(math.exp(-0.08))  # type: ignore[arg-type]
    resumed = small(GumbelSoftmax(), Softmax())
    trainer(tmp_path, max_steps=13, callbacks=[TemperatureAnnealing(rate=0.01, every=4, minimum=0.2)]).fit(
        resumed, data(), ckpt_path=tmp_path / "game.ckpt", weights_only=True
    )
    assert float(resumed.estimator.temperature) == pytest.approx(math.exp(-0.12))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match=r"left the temperature at 1 after 2 steps\. It reaches 0\.5 after 69315 steps"):
        trainer(tmp_path, max_steps=2, callbacks=[TemperatureAnnealing()]).fit(small(GumbelSoftmax(), Softmax()), data())
    with pytest.raises(ConfigurationError, match="no GumbelSoftmax"):
        trainer(tmp_path, max_steps=1, callbacks=[annealing]).fit(small(), data())


def test_weights_of_another_estimator_start_a_run(tmp_path: Path) -> None:
    """A warm start leaves an estimator's own state as it is, and reads the rest."""
    first = trainer(tmp_path, max_steps=2)
    model = small()
    first.fit(model, data())
    first.save_checkpoint(tmp_path / "exact.ckpt")
    for estimator in (ScoreFunction("learnt"), GumbelSoftmax(0.7)):
        warm = small(estimator, Softmax())
        warm.initial_weights = str(tmp_path / "exact.ckpt")
        trainer(tmp_path, max_steps=0).fit(warm, data())
        torch.testing.assert_close(warm.receiver.see.weight, model.receiver.see.weight)  # type: ignore[union-attr]
        second = trainer(tmp_path, max_steps=1)
        second.fit(warm, data())
        second.save_checkpoint(tmp_path / "sampled.ckpt")
        back = small()
        back.initial_weights = str(tmp_path / "sampled.ckpt")
        trainer(tmp_path, max_steps=0).fit(back, data())
        torch.testing.assert_close(back.receiver.see.weight, warm.receiver.see.weight)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: game(vocabulary=0), "`vocabulary`"),
        (lambda: game(in_features=0), "`in_features`"),
        (lambda: game(estimator=TopKMarginalize(3)), "takes no mapping"),
        (lambda: game(estimator=Marginalize(Softmax())), "Give the mapping only to the model"),
        (lambda: game(in_features=5).run_step(batch(), 0, "train"), "in_features=6"),
        (
            lambda: game().run_step({name: value for name, value in batch().items() if name != "position"}, 0, "train"),
            "the entry 'position' in a batch for SignalingGame but got",
        ),
        (lambda: game(torch.nn.Tanh()), "Expected `mapping` to be a SparseMapping"),
        (
            lambda: game(receiver=_Deaf()).run_step(batch(), 0, "train"),
            r"to scores \(\d+, 4\) but got scores \(\d+,\)",
        ),
        (
            lambda: game(sender=MLP([6, 4])).run_step(batch(), 0, "train"),
            r"to scores \(7, 5\) but got scores \(7, 4\)",
        ),
        (
            lambda: game(sender=MLP([7, 5])).run_step(batch(), 0, "train"),
            r"MLP to map images \(7, 6\) for vocabulary=5 .* Expected inputs \(\.\.\., 7\) but got shape \(7, 6\)",
        ),
        (
            lambda: game(receiver=Receiver(6, vocabulary=4)).run_step(batch(), 0, "val"),
            r"Receiver to map candidates .* Expected messages \(R, 4\)",
        ),
    ],
)
def test_mistakes_are_explained(make: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()  # type: ignore[operator]


class _Deaf(nn.Module):
    def forward(self, candidates: Tensor, messages: Tensor, rows: Tensor) -> Tensor:
        return candidates.sum((1, 2))[rows]


@pytest.mark.parametrize(("loss", "name"), [("nll", "nll"), ("success", "error")])
def test_a_broken_image_breaks_its_own_game_alone(loss: str, name: str) -> None:
    model, games = game(loss=loss), batch()
    games["target"] = games["target"].clone()
    games["target"][2, 0] = torch.nan
    output = model.run_step(games, 0, "val")
    assert bool(output["per_example"][name][2].isnan())
    assert bool(output["per_example"][name][[0, 1, 3, 4, 5, 6]].isfinite().all())
