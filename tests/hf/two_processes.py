"""One of several processes of the Trainer, which writes what it logs and the weights: ``two_processes.py FOLDER BATCH``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from lit_sparse.hf import AlphaAnnealing, SparsityCallback, fenchel_young_loss_func, sparsify
from lit_sparse.mappings import Entmax
from tests.hf import tiny
from tests.hf.test_trainer import classified, trainer_of


def main(folder: Path, batch: int) -> None:
    torch.manual_seed(0)
    model = tiny.bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    sparsify(model, Entmax(1.9), start="annealed")
    options = {"per_device_train_batch_size": batch, "per_device_eval_batch_size": batch, "max_grad_norm": 0.0}
    plain = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "ddp_backend": "gloo"}
    loss = fenchel_young_loss_func(Entmax(1.5))
    trainer = trainer_of(folder, model, classified(), loss=loss, eval_strategy="epoch", logging_steps=1, **options, **plain)
    trainer.add_callback(AlphaAnnealing(0.5))
    trainer.add_callback(SparsityCallback(trainer))
    trainer.train()
    if trainer.is_world_process_zero():
        rows = [{key: x for key, x in row.items() if "attention/" in key} for row in trainer.state.log_history]
        (folder / "log.json").write_text(json.dumps([row for row in rows if row]))
        torch.save({key: p.detach() for key, p in model.named_parameters()}, folder / "weights.pt")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
