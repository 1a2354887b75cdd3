"""Runs every compiled kernel at least once; with bounds checks, none may read or write outside of its arrays."""

from __future__ import annotations

import sys

import torch

from lit_sparse.data.distinct import distinct
from lit_sparse.data.images.binarize import binarize
from lit_sparse.kernels.cpu.compile import Kernel
from lit_sparse.kernels.row_sums import measured, row_products, row_sum
from lit_sparse.transport import KernelPotentials
from tests.support.operations import operations


def run_operations() -> None:
    """Run all operations on several inputs, with their gradients where there are some."""
    for operation in operations():
        program = operation.program()
        for seed in range(3):
            inputs = [x.requires_grad_() if x.is_floating_point() else x for x in operation.inputs(seed)]
            sums = [x.sum() for x in program(*inputs) if x.requires_grad]
            if sums:
                torch.autograd.grad(sums, [x for x in inputs if x.requires_grad], allow_unused=True)


def run_others() -> None:
    """Run the kernels that no operation calls, with the first and the last index of what they gather from."""
    for size, width in ((1, 1), (40, 7), (300, 33)):
        matrix, indices, direction = torch.randn(size, width), torch.tensor([0, size - 1, size - 1]), torch.randn(width)
        row_sum(matrix, indices, torch.rand(3))
        row_products(matrix, indices, direction)
        row_products(matrix, None, direction)
        measured(matrix, torch.empty(size, dtype=torch.float64))
        binarize(torch.rand(size, width), 0, torch.arange(size))
    distinct(torch.tensor([[0.0, 0.5, 1 - 2.0**-53]] * 3, dtype=torch.float64), torch.tensor([3, 4, 50]))
    potentials = KernelPotentials(capacity=9).build(2)
    for objective in ("dual", "safe"):
        points = torch.randn(2, 4, 2, dtype=torch.float64)
        potentials.ascend(*points, eps=0.1, rho=0.1, objective=objective)  # type: ignore[arg-type]


def never_run() -> list[str]:
    """Return the kernels that were not compiled."""
    modules = [name for name in sorted(sys.modules) if name.startswith("lit_sparse.")]
    kernels = {f"{name}.{key}": value for name in modules for key, value in vars(sys.modules[name]).items()}
    return [
        name
        for name, kernel in kernels.items()
        if isinstance(kernel, Kernel)
        and name == f"{kernel.__module__}.{kernel.__name__}"
        and kernel.called is None  # from Python
        and kernel.helper is None  # nor by other kernels
    ]


def main() -> None:
    """Run all of them; fail if some were not."""
    run_operations()
    run_others()
    assert never_run() == [], never_run()
