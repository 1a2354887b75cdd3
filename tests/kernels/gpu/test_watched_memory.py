"""What the watch over memory finds in faulty programs, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.support.processes import run_python
from tests.support.watched_memory import watched_memory

FAULTS = {
    "reads beyond": "out of bounds",
    "writes before": "out of bounds",
    "writes what others do": "a program writes what another one touches",
    "reads what others write": "a program reads what another one writes",
    "writes what others read": "a program writes what another one touches",
    "writes twice": "a program writes twice at once",
    "does not wait": "no barrier after a write",
    "waits": "",
}


@pytest.mark.gate
def test_faults_are_found() -> None:
    pytest.importorskip("triton")
    assert run_python("-m", "tests.kernels.gpu.test_watched_memory", TRITON_INTERPRET="1").split("\n")[:-1] == list(FAULTS)


def main() -> None:
    """Run a program with each fault."""
    import triton
    import triton.language as tl

    @triton.jit
    def program(x: tl.tensor, y: tl.tensor, fault: tl.constexpr) -> None:
        number = tl.program_id(0)
        place = number * 4 + tl.arange(0, 4)
        if fault == "reads beyond":
            place += 1
        value = tl.load(x + place)
        if fault == "writes before":
            place -= 1
        if fault == "writes what others do":
            place = tl.arange(0, 4)
        if fault == "writes twice":
            place = number * 4 + tl.arange(0, 4) // 2
        tl.store(y + place, value)
        if fault == "reads what others write":
            value = tl.load(y + place - 4, mask=place >= 4, other=0)
        if fault == "writes what others read":
            tl.store(x + 8 + number, number)
            value = tl.load(x + 9)
        if fault == "waits":
            tl.debug_barrier()
        if fault == "waits" or fault == "does not wait":
            tl.store(y + place, tl.load(y + place) + 1)

    for fault, message in FAULTS.items():
        memory = torch.zeros(5, 12)  # with memory around that is ours, too
        x, y = memory[1], memory[3]
        found = ""
        with watched_memory():
            try:
                program[(3,)](x, y, fault)
            except Exception as error:  # the interpreter's own, with the message in it
                found = str(error)
        assert message in found if message else not found, (fault, found)
        print(fault)


if __name__ == "__main__":
    main()
