"""A tiny sentence encoder with its tokenizer, in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch


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
