"""Pickles of plain data are read; one that would take hours or gigabytes, or calls other functions, is refused before."""

from __future__ import annotations

import io
import os
import pickle
import struct
import time
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_sparse.data.readers.word_vectors import read_vectors
from lit_sparse.errors import CheckpointError, DataError
from lit_sparse.ground.pickles import check_pickle
from lit_sparse.models.loaded_weights import read_weights
from lit_sparse.runs.checkpoint_files import read_checkpoint
from lit_sparse.runs.torch_files import read_torch_file

START, BIG = b"\x80\x02", b"J" + struct.pack("<i", 2**29)


def text(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word.encode()


#: A tuple of two numbers, one of two such tuples, and so on: its hash takes minutes.
NESTED = b"K\x01\x85q\x01" + b"".join(b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(1, 30))
NAMES = b"}" + text("items") + b"ccollections\nOrderedDict\ns"
#: Instructions of a pickle, and the reason for which it is refused.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "key": (b"}" + NESTED + b"K\x01s.", "a key of a dictionary"),
    "keys": (b"}(" + NESTED + b"K\x01K\x02K\x03u.", "a key of a dictionary"),
    "set": (b"c__builtin__\nset\n](" + NESTED + b"e\x85R.", "an entry of a set"),
    "counter": (b"ccollections\nCounter\n]" + NESTED + b"a\x85R.", "an entry of a set"),
    "ordered": (b"ccollections\nOrderedDict\n]" + NESTED + b"K\x01\x86a\x85R.", "OrderedDict"),
    "size": (b"}ctorch\nSize\n(" + b"K\x01" * 200 + b"t\x85RK\x01s.", "a key of a dictionary"),
    "list as arguments": (b"c__builtin__\nset\n]" + NESTED + b"aR.", "set is called"),
    "bytes": (b"c__builtin__\nbytearray\n" + BIG + b"\x85R.", "bytearray is called"),
    "tensor": (b"ctorch\nFloatTensor\n" + BIG + b"\x85R.", "torch.FloatTensor is called"),
    "new tensor": (b"ctorch\nFloatTensor\n" + BIG + b"\x85\x81.", "torch.FloatTensor is called"),
    "codec": (b"c_codecs\nencode\n" + text("a") + text("rot13") + b"\x86R.", "a codec other than latin1"),
    "state": (b"ctorch\nSize\n)R}b.", "the state of an object"),
    "method": (b"}" + text("state_dict") + b"ccollections\nOrderedDict\n)R" + NAMES + b"bs.", "attributes at `state_dict`"),
    "operands": (b"s.", "lacks its operands"),
    "integer": (b"}" + text("epoch") + b"\x8b" + struct.pack("<i", 2048) + b"\x01" * 2048 + b"s.", "more than 1024 bits"),
}


def packed(content: bytes) -> bytes:
    """Return an archive of torch with this pickle."""
    whole, changed = io.BytesIO(), io.BytesIO()
    torch.save({}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(changed, "w") as target:
        for member in source.infolist():
            target.writestr(member.filename, content if member.filename.endswith("data.pkl") else source.read(member))
    return changed.getvalue()


@pytest.mark.parametrize(("instructions", "reason"), HOSTILE.values(), ids=[*HOSTILE])
def test_a_hostile_pickle_is_refused_at_once(instructions: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(packed(START + instructions))
    before = time.process_time()
    for read in (read_checkpoint, read_torch_file, read_weights):
        arguments: Any = (str(path), str(path))[: 1 if read is read_weights else 2]
        with pytest.raises(CheckpointError, match=reason):
            read(*arguments)  # type: ignore[operator]
    assert time.process_time() - before < 5


def test_values_that_are_shared_are_not_written_out_in_a_message(tmp_path: Path) -> None:
    named = b"}" + text("state_dict") + b"}s" + text("pytorch-lightning_version") + NESTED + b"s."
    (tmp_path / "x.ckpt").write_bytes(packed(START + named))
    with pytest.raises(CheckpointError, match="few values between places") as caught:
        read_checkpoint(tmp_path / "x.ckpt")
    assert len(str(caught.value)) < 2000


def forged(code: str, *state: Any) -> bytes:
    """Return a pickle of a type of numpy with this state."""
    arguments, changed = (pickle.dumps(value, 2)[2:-1] for value in ((code, False, True), state))
    return START + b"cnumpy\ndtype\n" + arguments + b"R" + changed + b"b."


@pytest.mark.parametrize("code", ["f8", "b1", "U3", "S4", "O8"])
def test_types_of_numpy_are_what_numpy_writes(code: str) -> None:
    """An object type with other flags crashes each array of it."""
    written = np.dtype(code).__reduce__()[2]  # type: ignore[index]
    check_pickle(forged(code, *written), ["numpy.dtype"])
    check_pickle(pickle.dumps(np.dtype(code), 2), ["numpy.dtype"])
    for state in (
        (*written[:-1], 1),
        (*written[:5], 9, 9, 0),
        (4, *written[1:]),
        (*written, {}),
        (3, "<", {}, *written[3:]),
        (),
    ):
        with pytest.raises(pickle.UnpicklingError, match="numpy type is modified"):
            check_pickle(forged(code, *state), ["numpy.dtype"])
    with pytest.raises(pickle.UnpicklingError, match="numpy type is modified"):
        check_pickle(START + b"cnumpy.dtypes\nObjectDType\n)R(Nt" + b"b.", ["numpy.dtypes.ObjectDType"])


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_the_content_of_checkpoints_is_read(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    content = {
        "state_dict": net.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "plain": [1, -(2**70), 1.5, None, True, "a", b"a\xff", 1j, (1, 2, 3, 4), {1, "a", (1, 2)}, Counter("aab")],
        "torch": [
            torch.Size([1]),
            torch.device("cpu"),
            torch.float32,
            torch.nn.Parameter(torch.ones(2)),
            torch.eye(2).to_sparse(),
        ],
        "others": [torch.ones(2, dtype=torch.uint16), OrderedDict(a=1)],
        (1, ("a", 2)): 3,
    }
    torch.save(content, tmp_path / "x.ckpt")
    found = read_torch_file(tmp_path / "x.ckpt", "x")
    assert found["plain"] == content["plain"] and found[1, ("a", 2)] == 3
    assert found["state_dict"]["weight"].equal(net.weight) and found["state_dict"]._metadata == net.state_dict()._metadata


@pytest.mark.parametrize("kind", ["before", "behind", "legacy", "hollow", "pipe", "folder"])
def test_only_an_archive_of_torch_is_a_checkpoint(kind: str, tmp_path: Path) -> None:
    path, plain = tmp_path / "x.ckpt", packed(START + b"}.")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "legacy":
        torch.save({}, path, _use_new_zipfile_serialization=False)
    elif kind == "hollow":
        path.touch()
        os.truncate(path, 2**33)
    else:
        path.write_bytes(b"more" * 8 + plain if kind == "before" else plain[:-2] + b"\x04\x00more")
    reason = {"pipe": "a pipe", "folder": "a folder", "hollow": "holes", "legacy": "not an archive"}.get(
        kind, "more than the archive"
    )
    with pytest.raises(CheckpointError, match=reason):
        read_checkpoint(path)


def test_other_readers_of_pickles_check_them_too(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(packed(START + b"}" + NESTED + b"K\x01s."))
    with pytest.raises(DataError, match="a key of a dictionary"):
        read_vectors(str(tmp_path / "a.pt"), ["a"])
