"""
A Hugging Face model with sparse attention
==========================================

``hf.sparsify`` replaces the softmax of all attention layers of a model of
transformers. Here a small BERT is trained from scratch to find the one token
that stands twice in a text, once with softmax and once with entmax.
"""

import matplotlib.pyplot as plt
import torch
from transformers import BertConfig, BertForSequenceClassification

from lit_sparse import hf
from lit_sparse.mappings import Entmax

LENGTH, WORDS = 10, 20


def texts(number):
    """Return texts (N, 10) in which one token stands twice, and that token."""
    found = torch.rand(number, WORDS).argsort(1)[:, :LENGTH]
    places = torch.rand(number, LENGTH).argsort(1)[:, :2]
    token = found.gather(1, places[:, :1])
    return found.scatter(1, places[:, 1:], token), token.squeeze(1)


def train(mapping):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
    }
    config = BertConfig(
        vocab_size=WORDS,
        num_labels=WORDS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **sizes,
    )
    model = BertForSequenceClassification(config)
    if mapping is not None:
        hf.sparsify(model, mapping)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(250):
        tokens, labels = texts(128)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


# %%
# Attention weights are asked for as usual.
models = {"softmax": train(None), "entmax": train(Entmax(1.5))}
tokens, labels = texts(1000)
found = {}
for name, model in models.items():
    model.set_attn_implementation("eager") if name == "softmax" else None
    with torch.no_grad():
        output = model(input_ids=tokens, output_attentions=True)
    weights = torch.stack(output.attentions)
    accuracy = (output.logits.argmax(1) == labels).float().mean()
    found[name] = weights[:, 0, 0]
    zeros = 100 * (weights == 0).float().mean()
    print(
        f"{name}: accuracy {accuracy:.3f}, {zeros:.0f} % of the weights are 0"
    )

# %%
# The first head of both layers for one text. Crosses are exact zeros.
figure, axes = plt.subplots(1, 4, figsize=(10, 3), layout="constrained")
for axis, (name, layer) in zip(
    axes, [(name, layer) for name in found for layer in (0, 1)], strict=True
):
    weights = found[name][layer]
    axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    rows, columns = (weights == 0).nonzero(as_tuple=True)
    axis.plot(columns, rows, "x", color="0.8", markersize=3)
    axis.set(title=f"{name}, layer {layer}", xticks=[], yticks=[])
plt.show()
