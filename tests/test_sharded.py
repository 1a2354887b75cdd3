"""A model whose weights two processes share trains as one that both hold whole, and its checkpoints load without a strategy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lit_sparse.cli import main
from lit_sparse.models import Seq2Seq
from lit_sparse.runs.checkpoint_files import read_checkpoint

from .conftest import CONFIGS, ROOT, Command, metrics_of
from .data.pairs import write_pairs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRANSLATION = ("-c", str(ROOT / "tests" / "support" / "translation.yaml"), "--trainer.max_epochs=3")
BODIES = {
    "recurrent": (),
    "transformer": (
        *("--model.init_args.body=lit_sparse.nn.TransformerBody", "--model.init_args.body.init_args.heads=2"),
        *("--model.init_args.body.init_args.feedforward=24", "--model.init_args.tied_embeddings=true"),
    ),
}
PARALLEL = "--trainer.strategy.init_args"
#: FSDP on CPUs, and torch's newer form by Lightning's ModelParallelStrategy, as on the page about several devices.
STRATEGIES = {
    "fsdp": ("--trainer.strategy.class_path=sharded.CPUShards",),
    "fully_shard": ("-c", "parallel.yaml", f"{PARALLEL}.save_distributed_checkpoint=false"),
    "shards": ("-c", "parallel.yaml"),
}
YAML = """
trainer:
  strategy:
    class_path: pytorch_lightning.strategies.ModelParallelStrategy
    init_args: {data_parallel_size: 2, tensor_parallel_size: 1}
"""
TWO = ("--trainer.devices=2", "--checkpoint_every_n_steps=3")
#: Lightning's FSDP does not clip norms.
CLIP = {"fsdp": (), **dict.fromkeys(("fully_shard", "shards"), ("--trainer.gradient_clip_val=0.1",))}


def checkpoint_of(run: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = read_checkpoint(run / "checkpoints" / "last.ckpt")["state_dict"]
    return state


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("body", BODIES)
def test_shards_train_and_continue_as_whole_weights_do(
    body: str, strategy: str, lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of FSDP that is killed and continued ends with the weights of DDP, up to the rounding of float32."""
    for split, number in (("train", 61), ("val", 11), ("test", 13)):
        write_pairs(tmp_path / "pairs", split, number)
    monkeypatch.chdir(tmp_path)
    base, shards = (*TRANSLATION, *BODIES[body], *CLIP[strategy]), STRATEGIES[strategy]
    done = lit_sparse("fit", *base, "-c", str(CONFIGS / "trainer" / "ddp_cpu.yaml"), *TWO, "--name=whole")
    assert done.returncode == 0, done.stderr
    Path("parallel.yaml").write_text(YAML)
    fit = ("fit", *base, *TWO, *shards, "--name=cut")
    killed = lit_sparse(*fit, "--trainer.callbacks=interruptions.KillAtStep", "--trainer.callbacks.step=8")
    assert killed.returncode != 0
    assert (tmp_path / "runs" / "cut" / "0" / "checkpoints" / "last.ckpt").is_dir() == (strategy == "shards"), killed.stderr
    done = lit_sparse(*fit, "--ckpt_path=last")
    assert done.returncode == 0, done.stderr
    cut, whole = (tmp_path / "runs" / name / "0" for name in ("cut", "whole"))
    expected, got = checkpoint_of(whole), checkpoint_of(cut)
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, atol=1e-5, rtol=1e-4, msg=name)
    loaded = Seq2Seq.load_from_checkpoint(cut / "checkpoints" / "last.ckpt")
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter.detach(), got[name])
    assert main(["test", *base, "--name=whole", f"--ckpt_path={cut / 'checkpoints' / 'last.ckpt'}"]) == 0
    done = lit_sparse("test", *base, *TWO[:1], *shards, "--name=cut", "--ckpt_path=last")
    assert done.returncode == 0, done.stderr
    one, two = (metrics_of(cut / "test" / str(number)) for number in (0, 1))
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert two[name] == pytest.approx(values, rel=1e-5), name
