"""Statistics of the messages in a signaling game: use of symbols, and structure with respect to the inputs."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from lit_sparse.checks import FEATURES, INPUTS, INTEGERS, MOST_INPUTS, Count, check_tensor, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.directions import directions
from lit_sparse.metrics.exact_metric import ExactMetric

__all__ = [
    "MessageCounts",
    "MessageStructure",
    "bag_of_symbols_disentanglement",
    "positional_disentanglement",
    "topographic_similarity",
]

InputDistance = Literal["cosine", "hamming"]
MessageDistance = Literal["hamming", "edit"]

#: Largest number of columns of a table of counts.
COLUMNS = 20_000
#: Distances that differ by less are ties, because they come from rounded products.
ROUNDING = 1e-12


@checked
def topographic_similarity(
    inputs: Tensor,
    messages: Tensor,
    *,
    input_distance: InputDistance = "cosine",
    message_distance: MessageDistance = "hamming",
) -> Tensor:
    """Return the topographic similarity: Spearman's correlation between distances of pairs of inputs and of their messages.

    A scalar, NaN if all inputs, or all messages, are equal. Papers use different distances; results are comparable only if
    both distances agree.

    Args:
        inputs: (N, F).
        messages: (N, L) symbols.
        input_distance: "cosine" for 1 minus the cosine of the angle; "hamming" for the number of different attributes.
        message_distance: "hamming" for the number of different positions; "edit" for Levenshtein's distance, the smallest
            number of insertions, deletions and replacements.

    Raises:
        ConfigurationError: for another distance.

    Source: Brighton & Kirby (2006), Understanding Linguistic Evolution by Visualizing the Emergence of Topographic
    Mappings, doi:10.1162/artl.2006.12.2.229. Lazaridou, Hermann, Tuyls & Clark (2018), Emergence of Linguistic
    Communication from Referential Games with Symbolic and Pixel Input, arXiv:1804.03984.

    Example:
        >>> alike = topographic_similarity(
        ...     torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]),
        ...     torch.tensor([[3], [3], [5]]),
        ... )
        >>> bool(alike > 0.8)
        True
    """
    _check_rows("inputs (N, F)", inputs, messages)
    first, second = torch.triu_indices(len(inputs), len(inputs), 1, device=inputs.device)
    if input_distance == "cosine":
        units = directions(inputs.double())
        of_inputs = 1.0 - (units @ units.mT)[first, second]
    else:
        of_inputs = (inputs[first] != inputs[second]).sum(-1)
    one, other = messages[first], messages[second]
    of_messages = _edit_distances(one, other) if message_distance == "edit" else (one != other).sum(-1)
    return _correlation(_ranks(of_inputs.double()), _ranks(of_messages.double()))


def _check_rows(what: str, rows: Tensor, messages: Tensor) -> None:
    """Refuse what is not one row of finite numbers for each message."""
    both = f"{what} and as many messages (N, L), finite numbers,"
    check_tensor(messages, both, shape=(len(check_tensor(rows, both, shape=(None, None))), None))
    if not bool(rows.isfinite().all() and messages.isfinite().all()):
        raise ConfigurationError(f"Expected {both} but got NaN or infinite ones.")


def _edit_distances(first: Tensor, second: Tensor) -> Tensor:
    """Return Levenshtein's distance (P,) between messages (P, L), by recursion over prefixes."""
    length = first.shape[-1]
    above: list[Tensor] = list(torch.arange(length + 1, device=first.device).unsqueeze(-1).expand(-1, len(first)))
    for i in range(length):
        row = [above[0] + 1]
        for j in range(length):
            replaced = above[j] + (first[:, i] != second[:, j])
            row.append(torch.minimum(replaced, torch.minimum(above[j + 1], row[j]) + 1))
        above = row
    return above[-1]


@checked
def positional_disentanglement(attributes: Tensor, messages: Tensor) -> Tensor:
    r"""Return the positional disentanglement (posdis): how exclusively each position depends on one attribute, in [0, 1].

    .. math:: \operatorname{mean}_j \; \frac{I(m_j; a^{(1)}) - I(m_j; a^{(2)})}{H(m_j)}

    where m_j is the symbol at position j, and a^(1) and a^(2) are the attributes with the largest and second largest mutual
    information I with it; H is the entropy. The mean is over the positions that vary. NaN if none varies, or with fewer
    than two attributes.

    Args:
        attributes: (N, A) integers, A >= 2.
        messages: (N, L) symbols.

    Source: Chaabouni et al. (2020), Compositionality and Generalization in Emergent Languages, arXiv:2004.09124.

    Example:
        >>> every = torch.cartesian_prod(torch.arange(3), torch.arange(3))
        >>> round(float(positional_disentanglement(every, every + 7)), 6)
        1.0
    """
    return _disentanglement(messages, attributes)


@checked
def bag_of_symbols_disentanglement(attributes: Tensor, messages: Tensor) -> Tensor:
    """Return the bag-of-symbols disentanglement (bosdis): how exclusively each symbol's count depends on one attribute.

    A scalar in [0, 1]. For formula and arguments, see :func:`positional_disentanglement`; the counts of symbols take the
    place of positions.

    Source: Chaabouni et al. (2020), Compositionality and Generalization in Emergent Languages, arXiv:2004.09124.

    Example:
        >>> every = torch.cartesian_prod(torch.arange(2), torch.arange(2))
        >>> swapped = torch.where(
        ...     torch.rand(4, 1) < 0.5,
        ...     every + torch.tensor([0, 2]),
        ...     every.flip(-1) + torch.tensor([2, 0]),
        ... )
        >>> round(float(bag_of_symbols_disentanglement(every, swapped)), 6)
        1.0
    """
    _check_rows("attributes (N, A)", attributes, messages)
    symbols = torch.unique(messages)
    return _disentanglement((messages.unsqueeze(-1) == symbols).sum(1), attributes)


def _disentanglement(parts: Tensor, attributes: Tensor) -> Tensor:
    """Return the mean over the varying parts (N, P); see :func:`positional_disentanglement`."""
    _check_rows("attributes (N, A)", attributes, parts)
    nothing = torch.tensor(torch.nan, dtype=torch.float64, device=parts.device)
    if attributes.shape[-1] < 2 or not len(parts) or not parts.shape[1]:
        return nothing
    entropies, informations = _informations(parts, attributes)
    varies = entropies > 1e-12
    if not bool(varies.any()):
        return nothing
    best, second = informations[varies].topk(2).values.unbind(-1)
    return ((best - second) / entropies[varies]).mean()


def _informations(parts: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entropies (P,) of variables (N, P), and their mutual information (P, A) with others (N, A), in nats.

    A single matrix product counts all pairs for a block of attributes.
    """
    first, of_first = _indicators(parts)
    entropies = _grouped(torch.special.entr(first.sum(0)), of_first, parts.shape[-1])
    informations = []
    for some in torch.split(attributes, max(1, COLUMNS // len(attributes)), dim=-1):
        second, of_second = _indicators(some)
        rows = _grouped(torch.special.entr(first.mT @ second), of_first, parts.shape[-1])
        joint = _grouped(rows.mT, of_second, some.shape[-1]).mT
        alone = _grouped(torch.special.entr(second.sum(0)), of_second, some.shape[-1])
        informations.append(entropies.unsqueeze(-1) + alone - joint)
    scale = 1.0 / len(parts)
    constant = math.log(len(parts))  # with counts in place of frequencies, entropy = log N - (sum of n log n) / N
    return entropies * scale + constant, torch.cat(informations, -1) * scale + constant


def _indicators(variables: Tensor) -> tuple[Tensor, Tensor]:
    """Return indicators (N, V) of the values of several variables (N, P), and the variable (V,) of each value."""
    found, of = [], []
    for number, variable in enumerate(variables.unbind(-1)):
        values, place = torch.unique(variable, return_inverse=True)
        found.append(torch.nn.functional.one_hot(place, len(values)))
        of += [number] * len(values)
    return torch.cat(found, -1).double(), torch.tensor(of, device=variables.device)


def _grouped(values: Tensor, group: Tensor, number: int) -> Tensor:
    """Return the sums of values (V, ...) by group."""
    return torch.zeros(number, *values.shape[1:], dtype=values.dtype, device=values.device).index_add(0, group, values)


def entropy_of(counts: Tensor) -> Tensor:
    """Return the entropy in nats of a distribution given by counts of any shape; NaN if all are zero."""
    probs = counts.double() / counts.sum()
    entropy: Tensor = -torch.special.xlogy(probs, probs).sum()
    return entropy


def _ranks(values: Tensor) -> Tensor:
    """Return the ranks of values (P,); values that are equal up to rounding share their mean rank."""
    ordered, order = values.sort()
    group = (ordered.diff(prepend=ordered[:1]) > ROUNDING).cumsum(0)
    counts = torch.bincount(group)
    last = counts.cumsum(0).double()
    return torch.empty_like(values).index_put((order,), (last - (counts.double() - 1) / 2)[group])


def _correlation(first: Tensor, second: Tensor) -> Tensor:
    first, second = first - first.mean(), second - second.mean()
    return (first * second).sum() / (first.square().sum() * second.square().sum()).sqrt()


def _check_range(what: str, values: Tensor, size: int | None) -> None:
    """Refuse values (B,) on the CPU below 0, or of ``size`` or more."""
    least, most = (int(end) for end in values.aminmax())
    if least < 0 or (size is not None and most >= size):
        raise ConfigurationError(
            f"Expected {what} {'of at least 0' if size is None else f'in 0 .. {size - 1}'} but got {least} .. {most}."
        )


@ranges(vocabulary=INPUTS, classes=FEATURES)
class MessageCounts(ExactMetric):
    """Metric: entropy of messages, number of used symbols, and information on the class, from counts over all processes.

    Args:
        vocabulary: V, number of symbols.
        classes: C, number of classes; higher classes count as the last one.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: if a number is not positive.

    Example:
        >>> counts = MessageCounts(vocabulary=4, classes=2)
        >>> counts.update(torch.tensor([3, 3, 1, 1]), torch.tensor([0, 0, 1, 1]))
        >>> {name: round(float(value), 3) for name, value in counts.compute().items()}
        {'message_entropy': 0.693, 'used_vocabulary': 2.0, 'class_information': 0.693}
    """

    counts: Tensor

    def __init__(self, vocabulary: int, classes: int = 256, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("counts", torch.zeros(classes, vocabulary, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, messages: Tensor, labels: Tensor) -> None:
        """Add messages and the classes of their inputs.

        Args:
            messages: (B,) symbols.
            labels: (B,) classes of the inputs.

        Raises:
            ConfigurationError: for other shapes, or, on the CPU, a symbol outside the vocabulary or a negative class.
        """
        classes, vocabulary = self.counts.shape
        check_tensor(messages, "messages (B,), whole numbers,", shape=(None,), dtypes=(*INTEGERS, torch.bool))
        check_tensor(labels, "a label for each message, a whole number,", shape=messages.shape, dtypes=(*INTEGERS, torch.bool))
        if messages.device.type == "cpu" and len(messages):
            _check_range("symbols", messages, vocabulary)
            _check_range("classes", labels, None)
        pairs = labels.long().clamp(0, classes - 1) * vocabulary + messages.long()
        self.counts += torch.bincount(pairs, minlength=classes * vocabulary).view(classes, vocabulary)

    def compute(self) -> dict[str, Tensor]:
        """Return the messages' entropy and their information on the class, in nats, and the number of used symbols."""
        of_messages = entropy_of(self.counts.sum(0))
        return {
            "message_entropy": of_messages,
            "used_vocabulary": (self.counts.sum(0) > 0).sum().double(),
            "class_information": of_messages + entropy_of(self.counts.sum(1)) - entropy_of(self.counts),
        }


@ranges(features=INPUTS, attributes=Count(least=0, most=MOST_INPUTS), length=INPUTS, examples=INPUTS)
class MessageStructure(ExactMetric):
    """Metric: topographic similarity and disentanglement (posdis, bosdis) of the messages of a split's first examples.

    See :func:`topographic_similarity`, :func:`positional_disentanglement` and :func:`bag_of_symbols_disentanglement`; the
    latter two need attributes. States have a fixed size and are summed over processes, so results do not depend on their
    number.

    Args:
        features: number of features F of an input.
        attributes: number of attributes A; 0 without attributes.
        length: number of symbols L in a message.
        examples: number of examples with the lowest indices that are compared.
        input_distance: distance of inputs: "cosine", or "hamming" for the number of different attributes (of different
            features, without attributes).
        message_distance: distance of messages, "hamming" or "edit"; see :func:`topographic_similarity`.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: if a number is not positive (or negative for ``attributes``), or for another distance.

    Example:
        >>> every = torch.cartesian_prod(torch.arange(3), torch.arange(3))
        >>> structure = MessageStructure(
        ...     features=4, attributes=2, length=2, input_distance="hamming"
        ... )
        >>> structure.update(torch.arange(9), torch.rand(9, 4), every + 7, every)
        >>> round(float(structure.compute()["topographic_similarity"]), 6)
        1.0
    """

    higher_is_better: bool | None = True
    inputs: Tensor
    attributes: Tensor
    messages: Tensor
    seen: Tensor

    def __init__(
        self,
        features: int,
        attributes: int = 0,
        length: int = 1,
        examples: int = 1000,
        *,
        input_distance: InputDistance = "cosine",
        message_distance: MessageDistance = "hamming",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.input_distance, self.message_distance = input_distance, message_distance
        self.add_state("inputs", torch.zeros(examples, features), dist_reduce_fx="sum")
        self.add_state("attributes", torch.zeros(examples, attributes, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("messages", torch.zeros(examples, length, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("seen", torch.zeros(examples, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, index: Tensor, inputs: Tensor, messages: Tensor, attributes: Tensor | None = None) -> None:
        """Add examples; those whose index is ``examples`` or more are ignored.

        Args:
            index: (B,) indices in the split, without repetition.
            inputs: (B, F).
            messages: (B, L).
            attributes: (B, A), or None without attributes.

        Raises:
            ConfigurationError: for other shapes, or an index, messages or attributes that are not integers.
        """
        features = self.inputs.shape[1]
        rows = len(check_tensor(inputs, f"inputs (B, {features})", shape=(None, features)))
        known = attributes if attributes is not None else self.attributes.new_zeros(rows, 0)
        columns = (("messages", messages, self.messages.shape[1:]), ("attributes", known, self.attributes.shape[1:]))
        for name, part, widths in (("an index", index, ()), *columns):
            shape = (rows, *widths)
            check_tensor(part, f"{name} of shape {shape}, whole numbers,", shape=shape, dtypes=INTEGERS)
        index, messages, known = index.long(), messages.long(), known.long()
        if index.device.type == "cpu" and len(index):
            _check_range("indices", index, None)
        some = index < len(self.seen)
        place = index[some]
        self.inputs[place] = inputs[some].to(self.inputs)
        self.messages[place] = messages[some]
        self.attributes[place] = known[some]
        self.seen[place] = 1

    def compute(self) -> dict[str, Tensor]:
        """Return ``topographic_similarity``, and ``posdis`` and ``bosdis`` with at least two attributes."""
        some = self.seen > 0
        messages = self.messages[some]
        by_attributes = self.input_distance == "hamming" and self.attributes.shape[-1] > 0
        similarity = topographic_similarity(
            (self.attributes if by_attributes else self.inputs)[some],
            messages,
            input_distance=self.input_distance,
            message_distance=self.message_distance,
        )
        found = {"topographic_similarity": similarity}
        if self.attributes.shape[-1] >= 2:
            found["posdis"] = positional_disentanglement(self.attributes[some], messages)
            found["bosdis"] = bag_of_symbols_disentanglement(self.attributes[some], messages)
        return found
