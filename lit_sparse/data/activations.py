"""Activations of a Hugging Face model on text, stored in shards that are larger than memory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_sparse.checks import Count, ranges
from lit_sparse.coresets import FileVectors
from lit_sparse.data.base import ResumableDataModule
from lit_sparse.data.loader import Batch
from lit_sparse.data.readers.arrays import read_npy
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.splits import Split, splits_of
from lit_sparse.errors import CheckpointError, ConfigurationError, DataError, LitSparseError
from lit_sparse.ground.files import replaced
from lit_sparse.ground.stored import open_plain, read_json
from lit_sparse.hf.saved_files import SavedFiles, place_of, unreadable
from lit_sparse.hf.splicing import activations
from lit_sparse.lightning.choice import rank_zero_info
from lit_sparse.text.tokenizer_json import guarded, tokenizer_of

__all__ = ["ActivationDataModule"]

#: Texts of a shard, and of a batch of the model.
TEXTS, BATCH = 2048, 64
#: Places of a file of weights, and bytes at each, that tell it from another file.
PLACES, BYTES = 16, 4096
#: Tokens around one that is shown.
AROUND = 5

Examples = tuple[list[FileVectors], Tensor, Tensor]


@ranges(max_length=Count(), max_texts=Count())
class ActivationDataModule(ResumableDataModule):
    """Data module of a Hugging Face model's activations, one example per token of a text, stored on disk.

    The first use computes the activations of one module on the texts of a split, and writes them to ``folder`` in shards of
    2,048 texts. If it is interrupted, the next one continues after the last complete shard. Later uses only read the
    shards, whose rows are mapped into memory when they are needed. Padding and special tokens are left out, and so are
    repeated texts. Shards of another model, module or text are refused.

    Batches are dicts of ``features`` (B, D) float32, ``token`` (B,), the ids of the tokens, and ``index`` (B,).

    Args:
        model: folder or name of a Hugging Face model, with its tokenizer and weights in safetensors.
        layer: name of the module, as in ``named_modules``, e.g. ``encoder.layer.3``.
        folder: folder of the shards.
        path: folder or hub data set of the texts; None if the splits are paths of files.
        config: name of the hub data set's configuration.
        train: name of the training split, see :class:`~lit_sparse.data.TextDataModule`.
        val: name of the validation split.
        test: name of the test split.
        columns: columns with text; the texts of a row follow each other.
        max_length: number of tokens after which a text is cut.
        max_texts: number of texts of each split, the first ones; None for all.
        options: batch sizes, workers and seed; see :class:`~lit_sparse.data.ResumableDataModule`.

    Raises:
        ConfigurationError: for an argument outside its range; when the shards are made, if there is no such module, or the
            folder holds shards of another model, module or text.
        DataError: when the shards are made, if the tokenizer has more ids than the model, or activations are not finite;
            when they are read, if a shard is damaged.
        MissingExtraError: without the extra ``hf``.
    """

    def __init__(
        self,
        model: str,
        layer: str,
        *,
        folder: str,
        path: str | None = None,
        config: str | None = None,
        train: str = "train",
        val: str = "val",
        test: str = "test",
        columns: Sequence[str] = ("text",),
        max_length: int = 128,
        max_texts: int | None = None,
        batch_size: int = 1024,
        eval_batch_size: int = 1024,
        **options: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, **options)
        self.model, self.layer, self.folder = model, layer, folder
        self.path, self.config = path, config
        self.train, self.val, self.test = train, val, test
        if isinstance(columns, str) or not columns:
            raise ConfigurationError(f"Expected `columns` to be a list of columns with text but got {columns!r}.")
        self.columns = tuple(columns)
        self.max_length, self.max_texts = max_length, max_texts
        self._examples: dict[Split, Examples] = {}

    def prepare_data(self) -> None:
        """Compute and store missing activations that a command needs; Lightning calls it on one process."""
        stage = None if self.trainer is None else self.trainer.state.fn
        for split in _needed(stage):
            self._store(split)

    def setup(self, stage: str | None = None) -> None:
        """Open the shards; without a trainer, compute missing activations first."""
        for split in _needed(stage):
            if split not in self._examples:
                if self.trainer is None:
                    self._store(split)
                self._examples[split] = self._opened(split)

    def size(self, split: Split) -> int:
        """Return the number of tokens of a split."""
        return len(self._of(split)[1])

    def fetch(self, split: Split, epoch: int, indices: Tensor) -> Batch:
        """Return the activations at indices (B,) of a split as a batch; the class describes its entries."""
        shards, tokens, ends = self._of(split)
        number = torch.searchsorted(ends, indices, right=True)
        features = torch.empty(len(indices), shards[0].shape[1])
        for shard in {*number.tolist()}:
            here = number == shard
            features[here] = shards[shard].rows(indices[here] - (int(ends[shard - 1]) if shard else 0)).float()
        if not epoch and not bool(features.isfinite().all()):  # later epochs read the same ones
            place = repr(str(self._place(split)))
            raise DataError(f"Expected finite activations in {place} but got NaN or infinity. Remove the folder.")
        return {"features": features, "token": tokens[indices, 1].long(), "index": indices}

    def token_text(self, split: Split, index: int) -> tuple[str, str, str]:
        """Return the token of an example as text, and the text before and after it."""
        _, tokens, _ = self._of(split)
        low, high = max(0, index - AROUND), index + AROUND + 1
        around = tokens[low:high]
        same, place = around[:, 0] == tokens[index, 0], index - low
        parts = (around[:place][same[:place], 1], around[place : place + 1, 1], around[place + 1 :][same[place + 1 :], 1])
        with guarded("The tokens cannot be decoded"):
            before, token, after = (self._tokenizer.decode(ids.tolist()) for ids in parts)
        return before, token, after

    def _of(self, split: Split) -> Examples:
        split = "test" if split == "predict" else split
        if split not in self._examples:
            raise ConfigurationError(f"Expected `setup` before the {split} data are read. Call data.setup() first.")
        return self._examples[split]

    def _place(self, *names: str) -> Path:
        """Return a path in the folder after checking that no link leads out of it."""
        folder = Path(self.folder).expanduser()
        place_of(folder.joinpath(*names), folder)
        return folder.joinpath(*names)

    def _texts(self, split: Split) -> list[str]:
        columns = {column: column for column in self.columns}
        found = read_split(self.path, getattr(self, split), columns, config=self.config)
        texts = [text for row in zip(*(found[column] for column in self.columns), strict=True) for text in row]
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise DataError(f"Expected text in {', '.join(self.columns)} of the {split} data but got {wrong[0]!r}. Correct it.")
        texts = list(dict.fromkeys(text for text in texts if text.strip()))[: self.max_texts]
        if not texts:
            raise DataError(f"Expected texts in the {split} data but got none. Check the file.")
        return texts

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = _loaded("AutoTokenizer", self.model)
        if not isinstance(tokenizer.model_max_length, int | float):
            raise DataError(
                f"Expected a number as `model_max_length` of {self.model!r} but got {tokenizer.model_max_length!r}."
            )
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    @torch.no_grad()
    def _store(self, split: Split) -> None:
        """Write the shards of a split that are not there yet."""
        place, texts = self._place(split), self._texts(split)
        hashed = hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        described: dict[str, Any] = {
            "model": _signature(self.model),
            "layer": self.layer,
            "max_length": self.max_length,
            "texts": hashed,
            "shards": -(-len(texts) // TEXTS),
        }
        stored = read_json(self._place(split, "activations.json"))
        if stored is not None and stored != described:
            changed = [name for name in described if stored.get(name) != described[name]]
            raise ConfigurationError(
                f"Expected activations of the same {', '.join(changed) or 'kind'} in {str(place)!r} but got others."
                " Choose another `folder`, or remove this one."
            )
        missing = [number for number in range(described["shards"]) if not self._file(split, number).exists()]
        if not missing:
            return
        model, tokenizer = _loaded("AutoModel", self.model), self._tokenizer
        model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
        known = model.get_input_embeddings().num_embeddings
        for number in missing:
            found = [*self._rows(model, tokenizer, known, texts, number * TEXTS, split)]
            tokens, rows = (torch.cat(parts) for parts in zip(*found, strict=True))
            if number == missing[0] and stored is None:  # the module exists and fits
                with replaced(place / "activations.json", "w") as file:
                    json.dump(described, file, indent=1)
            with replaced(self._file(split, number, "_tokens"), "wb") as file:
                np.save(file, tokens.int().numpy())
            FileVectors.save(rows, self._file(split, number), dtype=rows.dtype)
            rank_zero_info(f"{self._file(split, number)}: {len(rows):,} activations of {rows.shape[1]} numbers")

    def _rows(
        self, model: Any, tokenizer: Any, known: int, texts: list[str], first: int, split: Split
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield text numbers and token ids (n, 2), and activations (n, D), of the texts of a shard."""
        order = sorted(range(first, min(first + TEXTS, len(texts))), key=lambda number: len(texts[number]))
        for start in range(0, len(order), BATCH):
            numbers = order[start : start + BATCH]
            with guarded("The texts cannot be tokenized"):
                inputs = tokenizer(
                    [texts[number] for number in numbers],
                    truncation=True,
                    max_length=min(self.max_length, tokenizer.model_max_length),
                    padding=True,
                    padding_side="right",
                    return_special_tokens_mask=True,
                    return_tensors="pt",
                )
            ids, kept = inputs["input_ids"], inputs["attention_mask"].bool() & ~inputs.pop("special_tokens_mask").bool()
            if int(ids.max()) >= known:
                raise DataError(
                    f"Expected token ids below {known}, the vocabulary of {self.model!r}, but its tokenizer made"
                    f" {int(ids.max())}. Use the model's own tokenizer."
                )
            try:
                found = activations(model, self.layer, inputs.to(model.device)).cpu()[kept]
            except (IndexError, RuntimeError, ValueError) as error:
                if isinstance(error, torch.OutOfMemoryError | LitSparseError):
                    raise
                raise DataError(
                    f"The model {self.model!r} fails on the texts: {str(error)[:300]} ({type(error).__name__}). Check its"
                    " config.json."
                ) from error
            if not bool(found.isfinite().all()):
                raise DataError(
                    f"Expected finite activations of {self.layer!r} but got NaN or infinity in one of {BATCH} {split} texts,"
                    f" such as {texts[numbers[0]][:80]!r}. Check the model's weights."
                )
            rows = torch.tensor(numbers).unsqueeze(1).expand(ids.shape)
            yield torch.stack([rows[kept], ids.cpu()[kept]], 1), found if found.dtype == torch.float16 else found.float()

    def _file(self, split: Split, number: int, kind: str = "") -> Path:
        return self._place(split, f"{number:06d}{kind}.npy")

    def _opened(self, split: Split) -> Examples:
        """Return the shards of a split, its text numbers and token ids (N, 2), and the end of each shard.

        Raises:
            DataError: if a shard is missing or damaged, or does not fit the others.
        """
        count = (read_json(self._place(split, "activations.json")) or {}).get("shards")
        if not isinstance(count, int) or not 0 < count < 10**6:
            raise DataError(
                f"Expected activations in {str(self._place(split))!r} but got none. Call data.prepare_data() first."
            )
        shards = [FileVectors(self._file(split, number)) for number in range(count)]
        tokens = [read_npy(self._file(split, number, "_tokens")) for number in range(count)]
        for shard, ids in zip(shards, tokens, strict=True):
            if (
                ids.dtype != np.int32
                or ids.shape != (shard.shape[0], 2)
                or shard.shape[1] != shards[0].shape[1]
                or 0 in shard.shape
            ):
                raise DataError(
                    f"Expected activations of length {shards[0].shape[1]} with a token each in {str(shard.path)!r} but got"
                    f" {shard.shape} and {ids.shape} tokens of {ids.dtype}. Remove the folder, so that it is written again."
                )
        return shards, torch.from_numpy(np.concatenate(tokens)), torch.tensor([shard.shape[0] for shard in shards]).cumsum(0)


def _needed(stage: str | None) -> tuple[Split, ...]:
    return ("test",) if stage == "predict" else splits_of(stage)


def _loaded(kind: str, name: str) -> Any:
    """Return a model or a tokenizer of transformers, after a check of its files.

    Raises:
        DataError: if it cannot be loaded.
    """
    files = SavedFiles(str(folder) if (folder := Path(name).expanduser()).is_dir() else name, {}, None)
    try:
        with guarded(f"{name!r} cannot be loaded by transformers.{kind}"):
            return files.tokenizer(tokenizer_of) if kind == "AutoTokenizer" else files.model(kind)
    except (CheckpointError, ConfigurationError) as error:
        raise DataError(f"{name!r} cannot be loaded by transformers.{kind}: {error}") from error


def _signature(model: str) -> str:
    """Return the name of a model, with a hash of samples of the weights if it is a folder."""
    folder = Path(model).expanduser()
    hashed = hashlib.blake2b(digest_size=16)
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]) if folder.is_dir() else ():
        try:
            with open_plain(place_of(file, folder)) as opened:
                size = opened.seek(0, os.SEEK_END)
                hashed.update(f"{file.name} {size} ".encode())
                for place in range(PLACES):
                    opened.seek(size * place // PLACES)
                    hashed.update(opened.read(BYTES))
        except OSError as error:
            raise DataError(str(unreadable(repr(str(file)), error))) from error
    return hashed.hexdigest() if folder.is_dir() else model
