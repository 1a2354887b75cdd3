"""Convert the image features of the published game to one file for ReferentialGameDataModule.

python scripts/convert_game_features.py FOLDER features.npz

FOLDER holds ``train`` and ``test``, or only ``train``, each with an HDF5 file ``*.h5`` of a single array of features (M, F)
and ``*single*.objects``, a pickled array or list of the M names of concepts. Only strings, lists and arrays are unpickled. The
result holds ``features`` (M, F) float32, ``label`` (M,), the names, and ``split`` (M,), 0 for ``train`` and 1 for ``test``. It
needs the extra ``h5``.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

#: Classes and functions in a pickled array of strings; `_core` is `core` in NumPy 1.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class NamesUnpickler(pickle.Unpickler):
    """Reads lists and arrays of strings, and refuses all other classes."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):  # bytes in pickles of protocol 2
            return lambda text, _: text.encode("latin1")
        raise pickle.UnpicklingError(f"Expected only strings, lists and arrays but got {module}.{name}")


def names_in(path: Path) -> np.ndarray[Any, Any]:
    """Return the names in a pickle.

    Raises:
        SystemExit: if it holds anything else than a list or an array of strings.
    """
    try:
        with path.open("rb") as file:
            names = np.asarray(NamesUnpickler(file, encoding="latin1").load())
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        sys.exit(f"Expected a pickled list of names in {str(path)!r} but got: {error}. Use another file.")
    if names.ndim == 1 and all(isinstance(name, str) for name in names.tolist()):
        return names.astype(str)
    sys.exit(f"Expected a list of strings in {str(path)!r} but got an array of {names.dtype} {names.shape}. Use another file.")


def only(folder: Path, pattern: str) -> Path:
    """Return the one file of a folder with such a name."""
    found = sorted(folder.glob(pattern))
    if len(found) == 1:
        return found[0]
    sys.exit(f"Expected one file {pattern} in {str(folder)!r} but got {len(found)}. Correct the folder.")


def read(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the features (M, F) float32 and the names (M,) of a split."""
    import h5py

    names = names_in(only(folder, "*single*.objects"))
    with h5py.File(only(folder, "*.h5"), "r") as file:
        arrays = list(file)
        if len(arrays) != 1 or not isinstance(file[arrays[0]], h5py.Dataset):
            sys.exit(f"Expected one array in the HDF5 file of {str(folder)!r} but got {arrays}. Use another file.")
        features = np.asarray(file[arrays[0]], dtype=np.float32)
    if features.ndim != 2 or len(features) != len(names):
        sys.exit(
            f"Expected features ({len(names)}, F), a row for each name, in {str(folder)!r} but got {features.shape}. Use other"
            " files."
        )
    return features, names


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="folder of train and test")
    parser.add_argument("output", type=Path, help="file .npz to write")
    arguments = parser.parse_args(words)
    splits = [folder for folder in (arguments.folder / "train", arguments.folder / "test") if folder.is_dir()]
    if not splits:
        sys.exit(f"Expected a folder 'train' in {str(arguments.folder)!r} but there is none. Give another folder.")
    parts = [read(folder) for folder in splits]
    if len({features.shape[1] for features, _ in parts}) > 1:
        sys.exit(f"Expected equally many features in both splits but got {[f.shape[1] for f, _ in parts]}. Use other files.")
    np.savez_compressed(
        arguments.output,
        features=np.concatenate([features for features, _ in parts]),
        label=np.concatenate([names for _, names in parts]),
        split=np.repeat([int(folder.name == "test") for folder in splits], [len(names) for _, names in parts]),
    )


if __name__ == "__main__":
    main()
