"""Modules whose state keeps its dtype when a model is moved to another one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from typing_extensions import Self

__all__ = ["KeepsDtype"]


class KeepsDtype(nn.Module):
    """A module whose parameters move to another device with the model, but not to another dtype.

    Counts and running averages need more precision than the weights: in bfloat16, small steps round to none.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        exact = {name: parameter.detach().clone() for name, parameter in self.named_parameters()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, parameter in self.named_parameters():
            if not exact[name].is_meta:  # of which `to_empty` makes parameters without values
                parameter.data = exact[name].to(parameter.device)
        return self
