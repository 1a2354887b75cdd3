"""An output layer and its Fenchel-Young loss without the scores of all words at once."""
