"""No reader of a file unpickles: each is given one that makes a folder when it is unpickled."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from lit_sparse.coresets import Coreset
from lit_sparse.coresets.last_layer import LastLayerGradients
from lit_sparse.data import LabelsFromFile, TableDataModule
from lit_sparse.data.images.label_noise import _kept
from lit_sparse.data.readers.arrays import open_arrays
from lit_sparse.data.readers.word_vectors import _from_arrays, read_vectors
from lit_sparse.data.transport_samples import _from_file
from lit_sparse.errors import DataError, LitSparseError
from lit_sparse.models.loaded_weights import read_weights
from lit_sparse.models.text import _kept_vocabularies
from lit_sparse.runs.torch_files import read_torch_file
from lit_sparse.text import Vocabulary

from .conftest import ROOT


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, ("unpickled",)


def objects() -> np.ndarray[Any, Any]:
    return np.array([Evil()], dtype=object)


def npy(path: Path) -> str:
    np.save(path, objects(), allow_pickle=True)
    return str(path)


def npz(path: Path) -> str:
    np.savez(path, **dict.fromkeys(("indices", "weights", "objective", "trace", "size", "labels", "X", "Y"), objects()))
    return str(path)


def pt(path: Path) -> str:
    torch.save({"state_dict": {}, "vocabularies": {}, "hyper_parameters": {"a": Evil()}}, path)
    return str(path)


def vocabulary(path: Path) -> str:
    path.write_text("cos\nsystem\n(S'mkdir unpickled'\ntR.")
    return str(path)


def labels(path: str) -> Any:
    return LabelsFromFile(path)(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64), 2)


def arrays_of(path: str) -> Any:
    with open_arrays(Path(path)) as arrays:
        return [arrays[name] for name in arrays]


def carried(path: str) -> Any:
    return _from_arrays(Path(path), Path(path), mock.Mock())


#: Module -> its readers, and the file that each is given.
LOADERS: dict[str, list[tuple[Callable[[str], Any], Callable[[Path], str], str]]] = {
    "runs/torch_files.py": [
        (lambda path: read_torch_file(path, path), pt, "a.ckpt"),
        (lambda path: LastLayerGradients(path)._read(), pt, "a.ckpt"),
        (read_weights, pt, "a.ckpt"),
        (_kept_vocabularies, pt, "a.ckpt"),
    ],
    "coresets/coreset.py": [(Coreset.load, npz, "a.npz")],
    "data/images/label_noise.py": [(labels, npy, "a.npy"), (labels, npz, "a.npz")],
    "data/transport_samples.py": [(_from_file, npy, "a.npy")],
    "data/readers/arrays.py": [(arrays_of, npy, "a.npy"), (arrays_of, npz, "a.npz")],
    "data/regression/tables.py": [(lambda path: TableDataModule(path, features="X", target="Y").load(), npz, "a.npz")],
    "data/readers/word_vectors.py": [(lambda path: read_vectors(path, ["a"]), pt, "a.pt"), (carried, npy, "a.npy")],
    "text/vocabulary.py": [(Vocabulary.load, vocabulary, "a.json")],
}
CASES = [(module, *case) for module, cases in LOADERS.items() for case in cases]


@pytest.mark.parametrize(("module", "read", "make", "name"), CASES, ids=[f"{case[0]}-{case[3]}" for case in CASES])
def test_no_loader_unpickles(
    module: str, read: Callable[[str], Any], make: Callable[[Path], str], name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    path = make(tmp_path / name)
    with pytest.raises(LitSparseError):
        read(path)
    assert not Path("unpickled").exists()


def test_a_broken_cache_of_noisy_labels_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _kept(Path(npz(tmp_path / "a.npz")), torch.zeros(1), 2, 1) is None
    assert not Path("unpickled").exists()


def test_every_loader_is_tested_and_none_may_unpickle() -> None:
    """Each call that could unpickle forbids it, and is in a module whose readers are listed."""
    for path in (ROOT / "lit_sparse").rglob("*.py"):
        module = str(path.relative_to(ROOT / "lit_sparse"))
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            said = {one.arg: ast.unparse(one.value) for one in call.keywords}
            assert name not in ("yaml.load", "yaml.full_load", "yaml.unsafe_load", "joblib.load", "pd.read_pickle")
            own = module.startswith("testing/") or module == "kernels/cpu/cache.py"  # from a folder of the user alone
            assert own or name not in ("pickle.load", "pickle.loads"), module
            if name == "np.load":
                assert said["allow_pickle"] == "False"
                assert module in LOADERS
            if name == "torch.load":
                assert "'weights_only': True" in ast.unparse(call) or said["weights_only"] == "True"
                assert module in LOADERS


@pytest.mark.parametrize("change", [{"language": "../../etc/passwd"}, {"language": 3}, {"kind": "shell"}, {"kind": ["bpe"]}])
def test_a_vocabulary_names_no_file(change: dict[str, Any]) -> None:
    described = json.loads(Vocabulary.from_tokens(["a"]).to_json()) | change
    with pytest.raises(DataError, match=r"language|kind"):
        Vocabulary.from_json(json.dumps(described))
