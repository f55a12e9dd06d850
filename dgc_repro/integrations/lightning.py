"""A compressor for Lightning's Trainer, as a callback (docs/frameworks.md).

Usage::

    Trainer(strategy="ddp", callbacks=[Compress(ErrorFeedback(TopK(density=0.01)))])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError
from dgc_repro.exchange.attached import Attached, attach
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
    """Attach a compressor to the model of ``trainer.fit``, exchange its gradients after the last backward of
    each step, and keep the state of every rank in Lightning's checkpoints.

    Arguments are those of `dgc_repro.attach`, and ``reshard`` of `Attached.load_state_dict`. The exchange
    comes before Lightning clips gradients and before it unscales them. ``exchange``: what `attach` returned
    for the last fit; its `end_epoch` is for a policy.
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
        self._attach: Callable[[Any], Attached] = lambda model: attach(
            model, compressor, policy, **options
        )
        self._reshard = reshard
        self._saved: dict[str, Any] | None = None

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
        self.exchange = self._attach(trainer.model)
        if self._saved is not None:
            self.exchange.load_state_dict(self._saved, reshard=self._reshard)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the ranks' numbers of batches."""
        assert self.exchange is not None
        number = trainer.num_training_batches
        self.exchange.compare_batches(None if math.isinf(number) else int(number))

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exchange the gradients, unless Lightning goes on accumulating."""
        assert self.exchange is not None
        if trainer.model.require_backward_grad_sync:
            self.exchange.step(scaler=getattr(trainer.precision_plugin, "scaler", None))

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
