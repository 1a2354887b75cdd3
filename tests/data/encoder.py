"""A tiny sentence encoder with its tokenizer, in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lit_sparse.data import ActivationDataModule


def make_encoder(folder: Path, words: Sequence[str], *, vocabulary: int | None = None) -> str:
    """Write a BERT of random weights that knows some words, and return its folder."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    ids = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *dict.fromkeys(words)])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=vocabulary or len(ids), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
    )
    transformers.BertModel(config).save_pretrained(folder)
    return str(folder)


def tiny_activations(folder: Path, **options: Any) -> ActivationDataModule:
    """Return activations of such an encoder on a few sentences."""
    for split in ("train", "val", "test"):
        lines = [f'{{"text": "a dog {"runs " * (i % 4)}{i}"}}' for i in range(20)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    model = make_encoder(folder / "encoder", ["a", "dog", "runs"])
    return ActivationDataModule(model, "encoder.layer.0", folder=str(folder / "shards"), path=str(folder), **options)
