"""The command line: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import yaml
from pytorch_lightning.utilities import rank_zero_only

from lit_sparse.cli import build_cli, main
from lit_sparse.cli.app import LitSparseCLI
from lit_sparse.errors import ConfigurationError, LitSparseError
from lit_sparse.version import __version__
from tests.conftest import CONFIGS, metrics_of

DIGITS = ("-c", str(CONFIGS / "ssvae" / "digits.yaml"))
ONE = ("--trainer.devices=1", "--trainer.strategy=auto", "--trainer.accelerator=cpu")
GAME = ("-c", str(CONFIGS / "signaling_game" / "digits.yaml"))
VECTORS = CONFIGS / "bitvector_vae"
BITS = ("-c", str(VECTORS / "fashion_mnist.yaml"), "-c", str(VECTORS / "estimator" / "sparsemap_budget.yaml"))
SHORT = ("--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=1", "--trainer.accelerator=cpu")
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a short training with gamma = 0.05."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = ["fit", *DIGITS, *SHORT, *QUIET, "--output_dir", str(folder), "--model.init_args.mapping.init_args.gamma=0.05"]
    assert main(arguments) == 0
    return folder / "ssvae" / "digits" / "0"


@pytest.mark.gate
def test_help_and_version_load_nothing_heavy() -> None:
    for option, words in (("--help", "predict"), ("--version", __version__)):
        code = f"import sys; from lit_sparse.cli import main; main(['{option}']); print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert words in done.stdout
        assert done.stdout.strip().endswith("False")


@pytest.mark.parametrize(("node", "nodes", "first"), [("0", 2, True), ("1", 2, False), ("1", 1, True)])
def test_a_machine_started_by_its_number_alone_is_not_the_first(
    node: str, nodes: int, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number does not count in a run on one machine."""
    monkeypatch.setenv("NODE_RANK", node)
    monkeypatch.setattr(rank_zero_only, "rank", 0)
    options = {"trainer": {"num_nodes": nodes}}
    assert LitSparseCLI._is_first(cast(LitSparseCLI, SimpleNamespace(_options=lambda: options))) is first


@pytest.mark.filterwarnings("ignore")
def test_a_run_with_a_saver_of_the_user_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saver = ("--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.dirpath=copies")
    assert (
        main(["fit", *DIGITS, *SHORT, *QUIET, *saver, "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1"]) == 0
    )
    written = sorted(Path("copies").iterdir())
    for command, which in (("validate", "last"), ("test", "best"), ("predict", "best")):
        assert main([command, "-c", "runs/ssvae/digits/0/config.yaml", "--ckpt_path", which]) == 0
    assert sorted(Path("copies").iterdir()) == written != []


def test_a_run_folder_holds_everything(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {str(path.relative_to(trained)) for path in trained.rglob("*") if path.is_file()}
    pictures = {f"pictures/{name}.png" for name in ("decoder_calls", "reconstructions", "samples_by_class")}
    assert {"config.yaml", "metrics.csv", "checkpoints/best.ckpt", "checkpoints/last.ckpt"} | pictures <= names
    assert any("tfevents" in name for name in names)
    logged = metrics_of(trained)
    for stage in ("train", "val"):
        for count in ("support_size", "decoder_calls"):
            for statistic in ("mean", "p10", "median", "p90", "total"):
                assert len(logged[f"{stage}/{count}_{statistic}"]) == 1
    assert "val/accuracy" in logged


@pytest.mark.gate
def test_the_last_lines_say_where_and_what_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *DIGITS, *SHORT, *QUIET]) == 0
    *_, hint, last = capsys.readouterr().out.strip().splitlines()
    assert last == "run folder: runs/ssvae/digits/0"
    assert len(hint) <= 80
    command = hint.removeprefix("test with: lit-sparse ").split()
    assert main([*command, *QUIET]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1] == "run folder: runs/ssvae/digits/0/test/0"
    assert "test/accuracy" in metrics_of(Path("runs/ssvae/digits/0/test/0"))


@pytest.mark.gate
def test_options_override_configs_wherever_they_stand(tmp_path: Path) -> None:
    before = ["--seed_everything=7", *QUIET, "--trainer.max_epochs", "1", "--trainer.limit_train_batches=2"]
    before += ["--trainer.log_every_n_steps=1"]
    assert main(["fit", *before, *DIGITS, "--config", str(CONFIGS / "trainer" / "ddp_cpu.yaml"), *ONE]) == 0
    resolved = yaml.safe_load(Path("runs/ssvae/digits/0/config.yaml").read_text())
    assert resolved["seed_everything"] == 7
    assert (resolved["trainer"]["max_epochs"], str(resolved["trainer"]["devices"])) == (1, "1")
    assert main(["fit", *before, *DIGITS, *ONE, "--model.init_args.mapping=Softmax"]) == 0
    own = ["test", "-c", "runs/ssvae/digits/0/config.yaml", *QUIET, *ONE, "--ckpt_path", "last"]
    assert main(own) == 0
    assert Path("runs/ssvae/digits/0/test").is_dir(), "the run whose config is given, not the newest"
    assert main(["test", *DIGITS, *QUIET, *ONE, "--ckpt_path", "last"]) == 0
    assert Path("runs/ssvae/digits/1/test").is_dir()


@pytest.mark.gate
def test_every_command_scores_a_checkpoint(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = str(trained / "checkpoints" / "best.ckpt")
    for command in ("validate", "test", "predict"):
        assert main([command, *DIGITS, *QUIET, "--ckpt_path", best]) == 0
    assert f"predictions: {trained / 'predict' / '0' / 'predictions.csv'}" in capsys.readouterr().out.splitlines()
    lines = (trained / "predict" / "0" / "predictions.csv").read_text().splitlines()
    assert len(lines) == 361
    assert lines[0].startswith("index,class,probabilities_0")
    assert lines[1].startswith("0,")


@pytest.mark.gate
def test_best_and_last_mean_the_newest_run(trained: Path) -> None:
    where = ("--output_dir", str(trained.parents[2]))
    for which in ("best", "last"):
        cli = build_cli(["test", *DIGITS, *where, "--ckpt_path", which])
        assert cli.config["test"]["ckpt_path"] == str(trained / "checkpoints" / f"{which}.ckpt")


def test_build_cli_gives_the_parts_without_running() -> None:
    cli = build_cli(["fit", *DIGITS, "--trainer.max_epochs=3"])
    assert type(cli.model).__name__ == "SemiSupervisedVAE"
    assert type(cli.datamodule).__name__ == "DigitsDataModule"
    assert cli.trainer.max_epochs == 3
    assert not Path("runs").exists()


@pytest.mark.gate
def test_scoring_takes_the_mapping_of_the_checkpoint(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = str(trained / "checkpoints" / "best.ckpt")
    dense = (*DIGITS, "-c", str(CONFIGS / "mapping" / "softmax.yaml"))
    cli = build_cli(["test", *dense, "--ckpt_path", best])
    assert repr(cli.model.mapping) == "Sparsemax(gamma=0.05, dim=-1)"
    assert "the checkpoint was trained with" in capsys.readouterr().err
    assert main(["test", *dense, *QUIET, "--ckpt_path", best]) == 0
    logged = metrics_of(trained / "test" / max(p.name for p in (trained / "test").iterdir()))
    assert logged["test/support_size_mean"][0] < 10


@pytest.mark.gate
def test_an_option_beside_a_checkpoint_is_used_in_training(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = str(trained / "checkpoints" / "last.ckpt")
    for option in (
        "--model.init_args.mapping.init_args.gamma=7",
        "--model.mapping.gamma=7",
        "--model.mapping.init_args.gamma=7",
    ):
        cli = build_cli(["fit", *DIGITS, "--ckpt_path", last, option])
        assert cli.model.mapping.gamma == 7
        assert "gamma was 0.05" in capsys.readouterr().err
    optimizer = "--model.init_args.optimizer.init_args.lr=0.002"
    where = ["--output_dir", str(trained.parents[2]), "--name=other"]
    assert main(["fit", *DIGITS, *SHORT, *QUIET, *where, "--ckpt_path", last, "--trainer.max_epochs=2", optimizer]) == 0
    saved = torch.load(trained.parents[2] / "other" / "0" / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["optimizer_states"][0]["param_groups"][0]["lr"] == 0.002
    cli = build_cli(["fit", "--data=DigitsDataModule", "--ckpt_path", last])  # nothing said of the model: the checkpoint's
    assert cli.model.mapping.gamma == 0.05


@pytest.mark.gate
def test_what_a_checkpoint_cannot_continue_with_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = ["--ckpt_path", str(trained / "checkpoints" / "last.ckpt")]
    for options, words in (
        (["--model.init_args.optimizer", "torch.optim.SGD", "--model.init_args.optimizer.init_args.lr=0.1"], "start a new run"),
        (["--model.init_args.classes=12"], "does not fit the model"),
        (["--seed_everything=5"], "Expected seed_everything = "),
    ):
        message = refused(["fit", *DIGITS, *QUIET, *last, *options], capsys)
        assert words.lower() in message.lower()


@pytest.mark.gate
def test_a_temperature_that_has_fallen_is_not_set_back(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed argument whose value was learnt or annealed is refused; a warm start takes the new value."""
    folder = tmp_path_factory.mktemp("annealed")
    softened = (
        "--model.init_args.mapping=Softmax",
        "--model.init_args.estimator=GumbelSoftmax",
        "--trainer.limit_train_batches=3",
        "--trainer.log_every_n_steps=1",
    )
    arguments = ["fit", *DIGITS, *SHORT, *QUIET, *softened, "--output_dir", str(folder)]
    assert main(arguments) == 0
    last = folder / "ssvae" / "digits" / "0" / "checkpoints" / "last.ckpt"
    colder = "--model.init_args.estimator.init_args.temperature=0.3"
    assert "start a new run" in refused([*arguments, colder, "--ckpt_path", str(last)], capsys)
    assert main([*arguments, colder, "--model.init_args.initial_weights", str(last)]) == 0
    state = torch.load(folder / "ssvae" / "digits" / "1" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert float(state["estimator.temperature"]) == 0.3


def test_changed_data_are_told(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_cli(["fit", *DIGITS, "--ckpt_path", str(trained / "checkpoints" / "last.ckpt"), "--data.init_args.val_size=100"])
    assert "val_size was 180 before this continuation and is 100" in capsys.readouterr().err


@pytest.mark.gate
def test_what_a_command_changes_is_told_in_one_line_each(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = ["--ckpt_path", str(trained / "checkpoints" / "last.ckpt")]
    build_cli(["fit", *DIGITS, *SHORT, *QUIET, *last, "--trainer.gradient_clip_val=0.5", "--data.init_args.batch_size=32"])
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert "note: trainer.gradient_clip_val was None before this continuation and is 0.5 from here on" in told
    assert "note: data.init_args.batch_size was 64 before this continuation and is 32 from here on" in told
    build_cli(["test", *DIGITS, *QUIET, *last, "--data.init_args.binarize=true", "--trainer.accelerator=cpu"])
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: data")]
    assert told == ["note: data.init_args.binarize was False in training and is True here"]


@pytest.mark.gate
def test_fewer_epochs_than_done_are_named(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = ["--ckpt_path", str(trained / "checkpoints" / "last.ckpt")]
    message = refused(["fit", *DIGITS, *QUIET, *last, "--trainer.max_epochs=0"], capsys)
    assert "Expected `max_epochs` to be at least 1, the number of epochs completed in" in message


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must be refused in one message of at most 600 characters, and return it."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if "lit-sparse: error:" in line]
    assert len(lines) == 1
    assert "Traceback" not in error
    assert len(lines[0]) < 600
    return lines[0]


@pytest.mark.gate
def test_an_option_that_contradicts_the_scored_checkpoint_is_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = str(trained / "checkpoints" / "best.ckpt")
    message = refused(["test", *DIGITS, "--ckpt_path", best, "--model.init_args.mapping.init_args.gamma=7"], capsys)
    assert "with which the checkpoint was trained" in message
    assert "0.05" in message
    message = refused(["validate", *DIGITS, "--ckpt_path", best, "--model.init_args.mapping", "Softmax"], capsys)
    assert "with which the checkpoint was trained" in message


@pytest.mark.cases(quick=24, gate=99)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", *DIGITS, "--model.init_args.mapping", "Sparsmax"], "Did you mean 'Sparsemax'?"),
        (["fit", *DIGITS, "--model.init_args.mapping", "lit_sparse.mappings.Sparsmax"], "Did you mean 'Sparsemax'?"),
        (["fit", *DIGITS, "--model.init_args.estimator", "Marginalise"], "Did you mean 'Marginalize'?"),
        (["fit", *DIGITS, "--model", "SemiSupervizedVAE"], "Did you mean 'SemiSupervisedVAE'?"),
        (["fit", *DIGITS, "--data", "DigitDataModule"], "Did you mean 'DigitsDataModule'?"),
        (["fit", *DIGITS, "--model.init_args.optimizer", "torch.optim.Adm"], "Did you mean 'Adam'?"),
        (["fit", *DIGITS, "--data.init_args.batchsize", "3"], "Did you mean 'batch_size'?"),
        (["fit", *DIGITS, "--trainer.max_epchs", "3"], "Did you mean 'max_epochs'?"),
        (
            ["fit", *DIGITS, "--model.init_args.mapping.init_args.gama", "3"],
            "'gama' in Sparsemax. Did you mean 'gamma'? The options are: gamma,",
        ),
        (["fit", *DIGITS, "--model.init_args.estimator.init_args.k", "3"], "The options are: mapping, decode."),
        (
            ["fit", *DIGITS, "--model.init_args.mapping", "lit_sparse.estimators.Marginalize"],
            "to be a subclass of lit_sparse's",
        ),
        (["fit", *DIGITS, "--model.init_args.mapping", "lit_sparse.mappings.SparseMapping"], "it does not define map"),
        (["fit", *DIGITS, "--model.init_args.mapping", "nowhere.Mine"], "There is no module 'nowhere'"),
        (["fit", *DIGITS, "--model.init_args.optimizer", "lit_sparse.mappings.Sparsemax"], "to be a subclass of"),
        (["fit", *DIGITS, "--trainer.max_epochs", "abc"], "Expected `max_epochs` to be an integer or null but got 'abc'"),
        (["fit", *DIGITS, "--trainer.accelerator", "abacus"], "The trainer does not accept"),
        (["fit", *DIGITS, "--data=MNISTDataModule", "--data.init_args.source=debain"], "Did you mean 'debian'?"),
        (["fit", *BITS, "--model.estimator.structure", "Buget"], "Did you mean 'Budget'? Known: Assignment, BitVector,"),
        (["fit", *BITS, "--model.estimator.structure.bugdet", "3"], "Did you mean 'budget'? The options are: d, budget."),
        (["fit", *BITS, "--model.estimator.structure.budget", "33"], "at most 32 but got 33"),
        (["fti"], "Did you mean 'fit'?"),
        (["--output_dir", "x", "fit"], "a command first"),
        (["fit", *DIGITS, *QUIET, "--model.init_args.optimizer.init_args.lr=-1"], "The optimizer does not accept"),
        (["fit", *DIGITS, *QUIET, "--model.optimizer=SparseAdam"], "refuses this run: SparseAdam does not support dense"),
        (["fit", *DIGITS, "--trainer.gradient_clip_val=-1"], "`trainer.gradient_clip_val` to be at least 0 but got -1"),
        (["fit", *DIGITS, *QUIET, "--data.normalize=[0.5, 0.1]"], "Expected intensities in [0, 1] but got -5 .. 5"),
        (
            ["fit", *DIGITS, "--trainer.callbacks+=StochasticWeightAveraging", "--trainer.callbacks.swa_lrs=-1"],
            "Lightning refuses this run: The `swa_lrs`",
        ),
        (["fit", *DIGITS, "--output_dir", "/proc/nowhere"], "Choose another --output_dir"),
        (["fit"], "Give a config"),
        (["fit", "-c", "nowhere.yaml"], "the name of a config but got 'nowhere.yaml'."),
        (["fit", "-c", str(CONFIGS / "ssvae/digit.yaml")], "Did you mean 'digits.yaml'?"),
        (["fit", *DIGITS, "--trainer.max_epoch", "1"], "no option '--trainer.max_epoch'. Did you mean 'max_epochs'?"),
        (["fit", *GAME, "--model.init_args.sender", "MPL"], "There is no 'MPL' for `sender`. Name a module by its full path"),
        (
            ["fit", *GAME, "--model.init_args.sender", "lit_sparse.nn.MPL"],
            "no 'MPL' in 'lit_sparse.nn' for `sender`. Did you mean 'MLP'? It defines: ",
        ),
        (["fit", *GAME, *QUIET, "--model.init_args.in_features", "63"], "Train a model with in_features=64"),
        (
            ["fit", *GAME, *QUIET, "--model.init_args.sender.init_args.sizes=[63, 64]"],
            "Expected the sender MLP to map images (180, 64)",
        ),
        (
            ["fit", *GAME, "--model.init_args.estimator", "ScoreFunction", "--model.init_args.estimator.init_args.latent=bits"],
            'a sampler with latent="categorical"',
        ),
        (
            ["fit", *DIGITS, "--model.init_args.mapping.init_args.gamma=-1"],
            "`gamma` to be a positive, finite number but got -1",
        ),
        (["fit", *DIGITS, "--model.init_args.mapping.init_args.gamma=abc"], "`gamma` to be a number but got 'abc'"),
        (
            ["fit", *DIGITS, "--model.init_args.mapping=Entmax", "--model.init_args.mapping.init_args.alpha=big"],
            "`alpha` to be a number, or a class or function by its full path, but got 'big'",
        ),
        (
            [
                "fit",
                *DIGITS,
                "--model.init_args.mapping=RegularizedArgmax",
                "--model.init_args.mapping.init_args.omega=no.where",
            ],
            "`omega` to be a number, or a class or function by its full path, but got 'no.where'",
        ),
        (["fit", *DIGITS, "--model.init_args.mapping", "TopKSparsemax"], "Missing: k"),
        (["fit", *DIGITS, "--data", "MNISTDataModule"], "--data.init_args.folder=PATH"),
        (
            ["fit", *DIGITS, *QUIET, "--data", "MNISTDataModule", "--data.init_args.folder", "nowhere"],
            "'nowhere' does not exist",
        ),
        (["fit", *DIGITS, *QUIET, "--model.init_args.in_features=784"], "in_features=64"),
        (["fit", *DIGITS, *QUIET, "--model.init_args.initial_weights", "nothing.ckpt"], "'nothing.ckpt'"),
        (["fit", *DIGITS, "--ckpt_path", "last"], "holds a last checkpoint"),
        (["fit", *DIGITS, "--ckpt_path", "nothing.ckpt"], "there is no such file"),
        (["test", *DIGITS, "--ckpt_path", "nothing.ckpt"], "there is no such file"),
        (["test", *DIGITS], "needs the checkpoint of a trained model"),
        (["validate", *DIGITS], "needs the checkpoint of a trained model"),
        (["predict", *DIGITS], "needs the checkpoint of a trained model"),
    ],
    ids=lambda value: " ".join(value).replace(str(CONFIGS), "")[:70] if isinstance(value, list) else "",
)
def test_bad_input_is_refused_in_one_message(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(arguments, capsys)
    assert not [path for path in Path().rglob("*") if path.name.isdigit()], "a run that never began leaves no folder"


def test_without_a_logger_nothing_is_written_to_the_current_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "runs"
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.logger=false"]
    assert main(["fit", *DIGITS, *QUIET, *short, "--output_dir", str(elsewhere)]) == 0
    assert list(Path().iterdir()) == [elsewhere.relative_to(tmp_path)]


#: Logger of the user -> its options, and the package that it needs.
LOGGERS = {
    "CSVLogger": (["--trainer.logger.save_dir=logs"], "torch"),
    "false": ([], "torch"),
    "TensorBoardLogger": (["--trainer.logger.save_dir=logs"], "tensorboard"),
    "WandbLogger": (["--trainer.logger.save_dir=logs", "--trainer.logger.offline=true"], "wandb"),
    "MLFlowLogger": (["--trainer.logger.tracking_uri=sqlite:///logs.db"], "mlflow"),
}


@pytest.mark.cases(gate=2)
@pytest.mark.filterwarnings("ignore")  # of the loggers' packages
@pytest.mark.parametrize("logger", LOGGERS)
def test_a_logger_of_the_user_takes_nothing_from_the_run_folder(logger: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The package's csv file, the config, the pictures and the printed command are as without it."""
    options, package = LOGGERS[logger]
    pytest.importorskip(package, reason=f"{package} is not installed")
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.log_every_n_steps=1"]
    assert main(["fit", *DIGITS, *QUIET, *short, f"--trainer.logger={logger}", *options]) == 0
    run = Path("runs/ssvae/digits/0")
    assert (run / "config.yaml").is_file()
    assert (run / "pictures" / "decoder_calls.png").is_file()
    assert (run / "checkpoints" / "last.ckpt").is_file()
    assert (run / "metrics.csv").is_file() == (logger != "false")
    if logger == "CSVLogger":
        assert metrics_of(run).keys() == metrics_of(Path("logs/lightning_logs/version_0")).keys() > {"train/loss"}
    lines = capsys.readouterr().out.splitlines()
    command = next(line.partition(": lit-sparse ")[2] for line in lines if line.startswith("test with"))
    assert main(command.split()) == 0


@pytest.mark.parametrize("part", ["checkpoints", "pictures", "run_loggers"])
def test_a_fit_that_fails_after_its_parts_were_built_leaves_no_folder(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ConfigurationError("nothing can be written here")

    monkeypatch.setattr(f"lit_sparse.cli.app.{part}", failing)
    assert "nothing can be written here" in refused(["fit", *DIGITS, *QUIET], capsys)
    assert not [path for path in Path().rglob("*") if path.name.isdigit()]


def test_a_run_folder_that_tensorboard_cannot_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert r"a name in UTF-8 but got 'runs\udcff/" in refused(["fit", *DIGITS, *QUIET, "--output_dir", "runs\udcff"], capsys)


@pytest.mark.gate
def test_a_callback_that_the_config_names_stands_for_ours(tmp_path: Path) -> None:
    config = tmp_path / "own.yaml"
    config.write_text("trainer: {callbacks: [CountLogger, {class_path: SuccessPlot, init_args: {folder: here}}]}")
    short = [
        "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=2",
        "--trainer.log_every_n_steps=1",
        "--trainer.check_val_every_n_epoch=1",
    ]
    assert main(["fit", *GAME, *QUIET, *short, "-c", str(config), "--output_dir", str(tmp_path)]) == 0
    assert (tmp_path / "here" / "pictures" / "success.png").is_file()
    assert [path.name for path in tmp_path.rglob("decoder_calls.png")], "the others are ours"


def test_labels_and_files_that_are_not_what_they_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    from tests.data.images.test_mnist import idx

    for prefix in ("train", "t10k"):
        Path(f"{prefix}-images-idx3-ubyte").write_bytes(idx(np.zeros((30, 28, 28))))
        Path(f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.full(30, 10)))
    data = ["--data", "MNISTDataModule", "--data.init_args.folder=.", "--data.init_args.val_size=10"]
    arguments = ["fit", *DIGITS, *QUIET, *data, "--model.init_args.in_features=784"]
    assert "labels in 0 .. 9" in refused(arguments, capsys)
    Path("train-images-idx3-ubyte").write_bytes(b"GIF89a, not idx")
    assert "is not an idx file" in refused(arguments, capsys)


@pytest.mark.parametrize("content", [b"not a checkpoint", b"", b"PK\x03\x04 half a zip file"])
def test_a_corrupt_checkpoint(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("corrupt.ckpt").write_bytes(content)
    for command in ("fit", "test"):
        assert "cannot be read as a checkpoint" in refused([command, *DIGITS, "--ckpt_path", "corrupt.ckpt"], capsys)


def test_a_truncated_checkpoint(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (trained / "checkpoints" / "last.ckpt").read_bytes()
    Path("half.ckpt").write_bytes(whole[: len(whole) // 2])
    assert "cannot be read as a checkpoint" in refused(["test", *DIGITS, "--ckpt_path", "half.ckpt"], capsys)
    torch.save({"weights": torch.zeros(2)}, "foreign.ckpt")
    assert "is a bare state dict" in refused(["test", *DIGITS, "--ckpt_path", "foreign.ckpt"], capsys)


@pytest.mark.gate
def test_exit_status_of_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lit_sparse", "test", *DIGITS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_an_error_of_a_file_in_the_run_folder_is_one_message(tmp_path: Path) -> None:
    loggers = [SimpleNamespace(save_dir=None), SimpleNamespace(save_dir=str(tmp_path.parent / "a" / "logs"))]
    run = cast(LitSparseCLI, SimpleNamespace(run_folder=tmp_path, trainer=SimpleNamespace(loggers=loggers)))
    place = str(tmp_path / "hparams.yaml")
    assert LitSparseCLI._is_ours(run, IsADirectoryError(21, "Is a directory", place))
    assert not LitSparseCLI._is_ours(run, IsADirectoryError(21, "Is a directory", str(tmp_path.parent / "data.csv")))
    assert not LitSparseCLI._is_ours(run, FileNotFoundError(2, "No such file", place)), "it may be a callback that reads"
    in_place = NotADirectoryError(20, "Not a directory", str(tmp_path.parent / "a" / "logs"))
    assert not LitSparseCLI._is_ours(run, in_place)
    (tmp_path.parent / "a").write_text("")
    assert LitSparseCLI._is_ours(run, in_place), "a file in the place of a logger's folder"
    assert not LitSparseCLI._is_ours(run, FileExistsError(17, "File exists", str(tmp_path.parent))), "a folder"


def test_a_message_is_cut_in_its_middle() -> None:
    assert len(text := str(LitSparseError(f"Expected {'x' * 10**6}. Correct it."))) < 21_000
    assert (text[:8], text[-11:]) == ("Expected", "Correct it.")
