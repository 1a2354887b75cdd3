"""Text for models: vocabularies, the spaces between words, and the labels of sentence pairs."""

from lit_sparse.ground import train_extra  # noqa: F401
from lit_sparse.ground.arguments import check_types
from lit_sparse.text.options import VocabularyOptions
from lit_sparse.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

__all__ = ["BOS", "EOS", "PAD", "UNK", "Vocabulary", "VocabularyOptions"]

check_types(globals())
