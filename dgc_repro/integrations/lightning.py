"""A compressor for Lightning's Trainer, as a callback (docs/frameworks.md).

Usage::

    Trainer(strategy="ddp", callbacks=[Compress(ErrorFeedback(TopK(density=0.01)))])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError
from dgc_repro.exchange.attached import Attached
from dgc_repro.exchange.door import attach
from dgc_repro.policy.interface import Policy

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise
    raise ModuleNotFoundError(
        "lightning is not installed; pip install 'dgc_repro[lightning]'"
    ) from None


class Compress(Callback):
    """Attach a compressor to the model of ``trainer.fit``, and keep the state of every rank in Lightning's
    checkpoints.

    Arguments are those of `dgc_repro.attach`, and ``reshard`` of `Attached.load_state_dict`. The exchange
    comes before Lightning clips gradients and before it unscales them. ``exchange``: what `attach` returned
    for the last fit; its `end_epoch` is for a policy.

    Where the trainer has a logger, `Attached.metrics` goes through ``log_dict`` in each step that Lightning
    logs (``log_every_n_steps``): ``comm/payload_bytes`` and ``comm/wire_bytes``, summed since the start,
    ``policy/rung``, and mean times a step since the last of these steps. Values are those of each rank, and
    rank 0's are written.
    """

    exchange: Attached | None = None

    def __init__(
        self,
        compressor: Compressor,
        policy: Policy | None = None,
        *,
        reshard: str = "refuse",
        **options: Any,
    ) -> None:
        self._attach: Callable[..., Attached] = lambda model, **more: attach(
            model, compressor, policy, **more, **options
        )
        self._reshard = reshard
        self._saved: dict[str, Any] | None = None
        self._exchanged = False  # in this batch

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the state of a checkpoint that an earlier run has loaded: Lightning loads after this."""
        self._saved = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the compressor to the model that Lightning has wrapped in DDP."""
        if not isinstance(trainer.model, DistributedDataParallel):
            raise UserError(
                "strategy: Compress takes one that wraps the model in DDP, got "
                f'{type(trainer.strategy).__name__}; use Trainer(strategy="ddp")'
            )
        self._detach()
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.exchange = self._attach(trainer.model, scaler=scaler)
        if self._saved is not None:
            self.exchange.load_state_dict(self._saved, reshard=self._reshard)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the ranks' numbers of batches."""
        assert self.exchange is not None
        number = trainer.num_training_batches
        self.exchange.compare_batches(None if math.isinf(number) else int(number))

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note whether gradients were exchanged, or Lightning goes on accumulating."""
        self._exchanged |= bool(trainer.model.require_backward_grad_sync)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, in a step that Lightning logs, and once where gradients accumulate."""
        assert self.exchange is not None
        exchanged, self._exchanged = self._exchanged, False
        # Lightning's own callbacks ask this too. `trainer.global_step` counts the steps of all optimizers.
        if exchanged and trainer.loggers and trainer._logger_connector.should_update_logs:
            # On the CPU, where nothing waits for a GPU, and in float64: float32 would round bytes.
            numbers = {
                name: torch.tensor(value, dtype=torch.float64)
                for name, value in self.exchange.metrics().items()
            }
            pl_module.log_dict(numbers, on_step=True, on_epoch=False)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Detach the compressor: another trainer may fit the module."""
        self._detach()

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, for a checkpoint."""
        return {} if self.exchange is None else self.exchange.gathered().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's state until the compressor is attached."""
        self._saved = state_dict

    def _detach(self) -> None:
        if self.exchange is not None:
            self.exchange.detach()
