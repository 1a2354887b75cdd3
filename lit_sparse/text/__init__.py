"""Text for models: vocabularies, the spaces between words, and the labels of sentence pairs."""

from lit_sparse.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary, VocabularyOptions

__all__ = ["BOS", "EOS", "PAD", "UNK", "Vocabulary", "VocabularyOptions"]
