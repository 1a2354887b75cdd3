"""A checkpoint runs no code: what it may name, through every route by which one is read."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
import zipfile
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch
from torch import Tensor, nn

import lit_sparse
from lit_sparse.cli import build_cli, main
from lit_sparse.cli.messages import explained, misfit
from lit_sparse.cli.parser import StoredParser
from lit_sparse.coresets.last_layer import LastLayerGradients
from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import CheckpointError
from lit_sparse.estimators import Estimator
from lit_sparse.mappings import Softmax
from lit_sparse.models import SemiSupervisedVAE
from lit_sparse.runs import checkpoint_files
from tests.conftest import CONFIGS, ROOT

QUIET = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu")
SHORT = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--trainer.log_every_n_steps=1")
DIGITS = ("-c", str(CONFIGS / "ssvae" / "digits.yaml"), *QUIET)
Content = dict[str, Any]
#: Form of the payload -> what the message says.
REFUSED = {
    "dict": "names 'torch.fx.graph_module.reduce_graph_module' at `mapping.omega.class_path`",
    "text": "Expected the class path of a SparseMapping",
    "text in a dict": "Expected the class path of a Module",
    "file": "names 'part.yaml' at `mapping`",
    "dict_kwargs": "`mapping.dict_kwargs` but got a dict",
    "dotted keys": "`mapping.init_args.omega` but got a dict",
    "a list": "at `optimizer.betas` but got a list",
    "an unknown argument": "has no argument 'nothing'",
}
#: Texts of which the parser, or fsspec behind it, makes more than a word.
READABLE = ["data", "base64", "file address", "chained", "home", "parent folder", "bad date", "tab", "a list from a file"]


class OwnModule(nn.Module):
    """A user's module, which squares."""

    def forward(self, p: Tensor) -> Tensor:
        return p.square().sum(-1)


def own_function(p: Tensor) -> Tensor:
    return p.square().sum(-1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert main(["fit", *DIGITS, *SHORT, "--output_dir", str(folder)]) == 0
    return folder / "ssvae" / "digits" / "0"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def payload(mark: Path) -> Content:
    """A payload that once ran a command: a function of torch that executes text."""
    block = f"import pathlib; pathlib.Path({str(mark)!r}).touch(); "
    return {
        "class_path": "torch.fx.graph_module.reduce_graph_module",
        "init_args": {"body": {"_code": "pass"}, "import_block": block},
    }


def argmax(omega: Any) -> Content:
    return {"class_path": "lit_sparse.mappings.RegularizedArgmax", "init_args": {"omega": omega}}


def hidden(mark: Path) -> dict[str, Content]:
    """The payload in the places and forms that the parser understands, as arguments of a model."""
    evil = payload(mark)
    (Path.cwd() / "part.yaml").write_text(json.dumps(argmax(evil)))
    return {
        "dict": {"mapping": argmax(evil)},
        "text": {"mapping": json.dumps(argmax(evil))},
        "text in a dict": {"mapping": argmax(json.dumps(evil))},
        "file": {"mapping": "part.yaml"},
        "dict_kwargs": {"mapping": {"class_path": "lit_sparse.mappings.RegularizedArgmax", "dict_kwargs": {"omega": evil}}},
        "dotted keys": {"mapping": {"class_path": "lit_sparse.mappings.RegularizedArgmax", "init_args.omega": evil}},
        "a list": {"optimizer": {"class_path": "torch.optim.Adam", "init_args": {"betas": [evil]}}},
        "an unknown argument": {"nothing": evil},
    }


def readable(mark: Path, home: Path) -> dict[str, Content]:
    """The payload in texts that one reader of YAML, or a search for a file, does not see."""
    evil, part = json.dumps(payload(mark)), json.dumps(argmax(payload(mark)))
    (Path.cwd() / "part.yaml").write_text(part)
    (home / "part.yaml").write_text(part)
    up = "../" * 8 + str(Path.cwd() / "part.yaml").lstrip("/")
    return {
        "data": {"mapping": f"data://,{quote(part)}"},
        "base64": {"mapping": f"data://text/plain;base64,{b64encode(part.encode()).decode()}"},
        "file address": {"mapping": f"file://{Path.cwd() / 'part.yaml'}"},
        "chained": {"mapping": f"simplecache::file://{Path.cwd() / 'part.yaml'}"},
        "home": {"mapping": "~/part.yaml"},
        "parent folder": {"mapping": up},
        "bad date": {"mapping": argmax(evil.replace('"pass"', '"pass", "z": 2001-99-99'))},
        "tab": {"mapping": argmax(evil.replace('"pass"', '"pass",\t"zz":\t0'))},
        "a list from a file": {"classifier_hidden": "part.yaml"},
    }


def changed(origin: Path, target: Path, **arguments: Any) -> str:
    """Write a copy of a run folder's last checkpoint with other hyper-parameters."""
    content = torch.load(origin / "checkpoints" / "last.ckpt", weights_only=True)
    content["hyper_parameters"] |= arguments
    torch.save(content, target)
    return str(target)


@pytest.mark.parametrize("form", list(REFUSED))
def test_no_form_of_the_payload_runs(form: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "mark"
    evil = changed(trained, tmp_path / "evil.ckpt", **hidden(mark)[form])
    assert main(["test", *DIGITS, "--ckpt_path", evil]) == 2
    message = capsys.readouterr().err
    assert REFUSED[form] in message
    with pytest.raises(CheckpointError, match=re.escape(REFUSED[form])):
        SemiSupervisedVAE.load_from_checkpoint(evil, weights_only=True)
    assert not mark.exists()


@pytest.mark.parametrize("form", READABLE)
def test_no_text_that_a_parser_reads_runs(
    form: str,
    trained: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mark, home = tmp_path / "mark", tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    evil = changed(trained, tmp_path / "evil.ckpt", **readable(mark, home)[form])
    assert main(["test", *DIGITS, "--ckpt_path", evil]) == 2
    assert "Expected" in (message := capsys.readouterr().err)
    assert "but got" in message
    with pytest.raises(CheckpointError, match="but got"):
        lit_sparse.load(evil)
    assert not mark.exists()


def test_no_message_imports_what_a_checkpoint_names(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_parts_8.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")
    for arguments in (
        {"mapping": "No module named own_parts_8.Foo"},
        {"classes": "No module named own_parts_8.Foo"},
        {"No module named own_parts_8.Foo": 1},
        {"estimator": "Problem with given class_path own_parts_8.Foo"},
    ):
        assert main(["test", *DIGITS, "--ckpt_path", changed(trained, tmp_path / "evil.ckpt", **arguments)]) == 2
    assert not StoredParser.imports
    explained(StoredParser(), "No module named own_parts_8.Foo", None, None, imports=False)
    assert misfit("mapping", Softmax, "own_parts_8.Foo", imports=False)
    assert not (tmp_path / "imported").exists()
    assert misfit("mapping", Softmax, "own_parts_8.Foo", imports=True)
    assert (tmp_path / "imported").exists()


def test_what_is_built_is_what_was_checked(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced while it is checked."""
    mark, read = tmp_path / "mark", checkpoint_files.check_finite
    good = changed(trained, tmp_path / "good.ckpt")
    evil = changed(trained, tmp_path / "evil.ckpt", mapping=argmax(payload(mark)))

    def swap(*args: Any) -> None:
        Path(evil).replace(good)
        read(*args)

    monkeypatch.setattr(checkpoint_files, "check_finite", swap)
    assert isinstance(SemiSupervisedVAE.load_from_checkpoint(good), SemiSupervisedVAE)
    assert not mark.exists()


class TakesHparams(SemiSupervisedVAE):
    """A user's model with an argument of the name of an old entry."""

    def __init__(self, mapping: Softmax, estimator: Estimator, in_features: int = 64, hparams: Content | None = None) -> None:
        super().__init__(mapping, estimator, in_features=in_features)


def test_an_argument_hides_no_description(trained: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    content["hparams"] = {"mapping": argmax(payload(mark))}
    del content["hyper_parameters"]["mapping"]
    torch.save(content, tmp_path / "evil.ckpt")
    with pytest.raises(CheckpointError, match="unsupported version"):
        TakesHparams.load_from_checkpoint(tmp_path / "evil.ckpt", hparams={})
    assert not mark.exists()


@pytest.mark.parametrize("path", ["local://{}", "simplecache::{}", "file:{}", "../victim", 4])
def test_resuming_removes_nothing_that_a_checkpoint_names(
    path: str | int, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    (key,) = (key for key in content["callbacks"] if "'monitor': None" in key)
    named = path.format(victim) if isinstance(path, str) else path
    content["callbacks"][key] |= {"dirpath": "x://", "best_model_path": named}
    torch.save(content, tmp_path / "evil.ckpt")
    fit = ("--trainer.max_epochs=2", "--trainer.limit_train_batches=2")
    assert main(["fit", *DIGITS, *fit, "--ckpt_path", str(tmp_path / "evil.ckpt")]) == 2
    assert victim.is_dir()
    assert "evil.ckpt" in capsys.readouterr().err


def test_the_page_about_trust_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "explanation" / "trust.md").read_text(), re.DOTALL)
    exec(compile(snippet, "trust.md", "exec"), {"__name__": "page"})
    assert "names 'torch.linalg.norm' at `mapping.omega`" in (printed := capsys.readouterr().out)
    assert "--trust torch.linalg.norm" in printed


@pytest.mark.parametrize("command", ["fit", "validate", "predict"])
def test_no_command_runs_the_payload(command: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "mark"
    evil = changed(trained, tmp_path / "evil.ckpt", mapping=argmax(payload(mark)))
    assert main([command, *DIGITS, "--ckpt_path", evil]) == 2
    assert "torch.fx.graph_module.reduce_graph_module" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="reduce_graph_module"):
        build_cli([command, *DIGITS, "--ckpt_path", evil])
    assert not mark.exists()


def test_a_proxy_runs_nothing(trained: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = changed(trained, tmp_path / "evil.ckpt", mapping=argmax(payload(mark)))
    data = DigitsDataModule()
    data.setup()
    with pytest.raises(CheckpointError, match="reduce_graph_module"):
        LastLayerGradients(evil)._read()
    assert not mark.exists()
    assert isinstance(LastLayerGradients(str(trained / "checkpoints" / "last.ckpt"))._read(), SemiSupervisedVAE)


def test_a_data_module_runs_nothing(trained: Path, tmp_path: Path) -> None:
    content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    content["datamodule_hyper_parameters"] = {"_class_path": "os.system", "_instantiator": "os.system"}
    torch.save(content, tmp_path / "evil.ckpt")
    with pytest.raises(CheckpointError, match=r"os\.system"):
        DigitsDataModule.load_from_checkpoint(tmp_path / "evil.ckpt")


def test_old_places_of_hyperparameters_are_refused(trained: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for key in ("hparams", "module_arguments"):
        content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
        content[key] = {"mapping": argmax(payload(mark))}
        torch.save(content, tmp_path / "evil.ckpt")
        with (tmp_path / "evil.ckpt").open("rb") as file, pytest.raises(CheckpointError, match="unsupported version"):
            SemiSupervisedVAE.load_from_checkpoint(file)
    assert not mark.exists()


def test_no_builder_is_taken_from_a_checkpoint(trained: Path, tmp_path: Path) -> None:
    evil = changed(trained, tmp_path / "evil.ckpt", _instantiator="os.system")
    assert isinstance(SemiSupervisedVAE.load_from_checkpoint(evil), SemiSupervisedVAE)
    assert build_cli(["test", *DIGITS, "--ckpt_path", evil]).model is not None


def test_a_part_of_the_package_stands_only_in_its_place(trained: Path, tmp_path: Path) -> None:
    """A class that reads a file into a database, in an argument of torch.nn without an annotation."""
    (tmp_path / "credentials").write_text("api_key: hunter2\n")
    sweep = {
        "configs": [str(tmp_path / "credentials")],
        "space": {"a.b": [1, 2]},
        "metrics": ["a"],
        "directions": ["minimize"],
        "folder": "made",
        "storage": f"sqlite:///{tmp_path / 'stolen.db'}",
    }
    device = {"class_path": "lit_sparse.studies.search.sweep.Sweep", "init_args": sweep}
    linear = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2, "device": device}}
    for omega in (linear, device, {"class_path": "torch.nn.Sequential", "init_args": {"args": [device]}}):
        evil = changed(trained, tmp_path / "evil.ckpt", mapping=argmax(omega))
        with pytest.raises(CheckpointError):
            lit_sparse.load(evil)
        assert main(["test", *DIGITS, "--ckpt_path", evil]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"credentials", "evil.ckpt"}


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"in_features": 9_000_000}, "a model with a tensor of 2,304,000,000 elements"),
        ({"in_features": 90_000}, "elements"),
        ({"classifier_hidden": [1] * 200_000}, "at most .* integers"),
        ({"classifier_hidden": [1] * 340}, "parameters"),
    ],
)
def test_sizes_are_compared_with_the_weights_before_layers_are_built(
    sizes: Content, text: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = changed(trained, tmp_path / "evil.ckpt", **sizes)
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=text):
        lit_sparse.load(evil)
    assert main(["test", *DIGITS, "--ckpt_path", evil]) == 2
    assert re.search(text, capsys.readouterr().err)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # kilobytes
    assert time.monotonic() - began < 60


@pytest.mark.gate
def test_an_own_class_is_allowed_and_a_function_is_not(trained: Path, tmp_path: Path) -> None:
    own = changed(trained, tmp_path / "own.ckpt", mapping=argmax({"class_path": f"{__name__}.OwnModule"}))
    for model in (
        SemiSupervisedVAE.load_from_checkpoint(own),
        build_cli(["test", *DIGITS, "--ckpt_path", own]).model,
    ):
        assert isinstance(model.mapping.omega, OwnModule)
    function = f"{__name__}.own_function"
    other = changed(trained, tmp_path / "function.ckpt", mapping=argmax(function))
    with pytest.raises(CheckpointError, match=f"function.*--trust {function}"):
        SemiSupervisedVAE.load_from_checkpoint(other)
    for model in (
        SemiSupervisedVAE.load_from_checkpoint(other, trust=[function]),
        build_cli(["test", *DIGITS, "--ckpt_path", other, f"--trust={function}"]).model,
    ):
        assert model.mapping.omega is own_function


@pytest.mark.gate
def test_what_only_the_checkpoint_names_is_not_imported(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module of the current folder, which the command line could import."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_parts_7.py").write_text(
        "import pathlib\npathlib.Path('imported').touch()\n"
        "from lit_sparse.mappings import Softmax\nclass Mine(Softmax):\n    pass\n"
    )
    mine = {"class_path": "own_parts_7.Mine"}
    named = changed(trained, tmp_path / "named.ckpt", mapping=mine)
    other = ["own_parts_7.Mine", "own_parts_7.nothing", "own_parts_7"]
    for mapping in (mine, *other[:2], '{"class_path": "own_parts_7.Mine"}'):
        evil = changed(trained, tmp_path / "evil.ckpt", mapping=mapping)
        assert main(["test", *DIGITS, "--ckpt_path", evil]) == 2
        assert "own_parts_7" in capsys.readouterr().err
    evil = changed(trained, tmp_path / "model.ckpt", _class_path="own_parts_7.Mine")
    assert main(["test", *QUIET, "--data=DigitsDataModule", "--ckpt_path", evil]) == 2
    assert not (tmp_path / "imported").exists()
    (tmp_path / "mine.yaml").write_text("model: {init_args: {mapping: {class_path: own_parts_7.Mine}}}")
    for chosen in (["-c", "mine.yaml"], ["--model.init_args.mapping=own_parts_7.Mine"], ["--trust", "own_parts_7.Mine"]):
        sys.modules.pop("own_parts_7", None)
        model = build_cli(["test", *DIGITS, "--ckpt_path", named, *chosen]).model
        assert type(model.mapping).__name__ == "Mine"
    assert (tmp_path / "imported").exists()
    assert type(SemiSupervisedVAE.load_from_checkpoint(named).mapping).__name__ == "Mine", "imported by now"
    sys.modules.pop("own_parts_7")


def content_of(trained: Path) -> Content:
    content: Content = torch.load(trained / "checkpoints" / "last.ckpt", weights_only=True)
    return content


def shared_lists(depth: int) -> Any:
    found: Any = [1.0]
    for _ in range(depth):
        found = [found, found]
    return found


def test_a_compressed_member_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.ckpt", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("archive/data.pkl", bytes(10**8))
    with pytest.raises(CheckpointError, match="compressed, which torch never does"):
        lit_sparse.load(tmp_path / "evil.ckpt")


def test_lists_that_share_their_items_are_refused(trained: Path, tmp_path: Path) -> None:
    content = content_of(trained)
    content["loops"], content["optimizer_states"] = shared_lists(50), shared_lists(50)
    torch.save(content, tmp_path / "evil.ckpt")
    with pytest.raises(CheckpointError, match="few values between places"):
        lit_sparse.load(tmp_path / "evil.ckpt")


@pytest.mark.parametrize("shared", [torch.zeros(1).expand(2**24), torch.zeros(2**20)])
def test_tensors_that_share_their_values_many_times_are_refused(shared: torch.Tensor, trained: Path, tmp_path: Path) -> None:
    content = content_of(trained)
    content["state_dict"] |= {f"more_{number}": shared[:] for number in range(2000)}
    torch.save(content, tmp_path / "evil.ckpt")
    assert (tmp_path / "evil.ckpt").stat().st_size < 2**23
    with pytest.raises(CheckpointError, match=r"tensors in .* that share few values but they unpack to"):
        lit_sparse.load(tmp_path / "evil.ckpt")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("kind", ["expanded", "meta", "sparse csr"])
@pytest.mark.parametrize("place", ["state_dict", "optimizer_states"])
def test_tensors_of_another_kind_are_refused(place: str, kind: str, trained: Path, tmp_path: Path) -> None:
    content = content_of(trained)
    tensor = {
        "expanded": lambda: torch.zeros(1).expand(10**9),
        "meta": lambda: torch.empty(3, device="meta"),
        "sparse csr": lambda: torch.ones(3, 3).to_sparse_csr(),
    }[kind]()
    if place == "state_dict":
        content[place][next(iter(content[place]))] = tensor
    else:
        content[place] = [{"state": {0: {"exp_avg": tensor}}}]
    torch.save(content, tmp_path / "evil.ckpt")
    with pytest.raises(CheckpointError, match=r"Expected .*tensors in .* but got"):
        lit_sparse.load(tmp_path / "evil.ckpt")


@pytest.mark.parametrize(
    ("omega", "text"),
    [
        ({"class_path": "torch.nn.Transformer", "init_args": {"d_model": 8, "num_encoder_layers": 10**6}}, "parameters"),
        (
            {"class_path": "torch.nn.Linear", "init_args": {"in_features": 1, "device": shared_lists(40)}},
            "few values between places",
        ),
    ],
)
def test_no_description_grows_without_end(omega: Content, text: str, trained: Path, tmp_path: Path) -> None:
    evil = changed(trained, tmp_path / "evil.ckpt", mapping=argmax(omega))
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=text):
        lit_sparse.load(evil)
    assert time.monotonic() - began < 30


def test_a_run_folder_does_not_lead_to_another_run(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "runs" / "ssvae" / "digits" / "0"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_bytes((trained / "config.yaml").read_bytes())
    (run / "checkpoints" / "last.ckpt").symlink_to(trained / "checkpoints" / "last.ckpt")
    with pytest.raises(CheckpointError, match="a link out of it"):
        lit_sparse.load(run, "last")
    assert main(["test", *DIGITS, "--ckpt_path", "last"]) == 2
    assert "a link out of it" in capsys.readouterr().err
    (run / "checkpoints" / "last.ckpt").unlink()
    os.mkfifo(run / "checkpoints" / "last.ckpt")
    with pytest.raises(CheckpointError, match="it is a pipe"):
        lit_sparse.load(run, "last")
