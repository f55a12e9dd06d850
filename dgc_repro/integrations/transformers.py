"""A compressor for the Trainer of Transformers, or for a subclass of it (docs/frameworks.md).

Usage::

    class CompressedTrainer(Compressed, Trainer): ...

    CompressedTrainer(model=model, args=arguments, compressor=ErrorFeedback(TopK(density=0.01)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError
from dgc_repro.exchange.attached import Attached
from dgc_repro.exchange.collective import is_of_a_collective
from dgc_repro.exchange.door import attach
from dgc_repro.policy.interface import Policy

if TYPE_CHECKING:
    from transformers import Trainer
else:
    Trainer = object

FILE = "exchange.pt"
"""In the Trainer's checkpoint folders."""
OF_TRAINING = {"loss", "train_loss"}
"""A log of training has one of these: the first at each interval, the second at the end."""


def batches_of(loader: Any) -> int | None:
    """Return the number of batches of a loader; None where it is unknown."""
    try:
        return len(loader)
    except TypeError:  # of an IterableDataset
        return None


class Compressed(Trainer):
    """Stand before a Trainer among the bases of a class: attach a compressor to the model that the Trainer
    trains, exchange the gradients after the last backward of each step, and keep the state of every rank in
    the Trainer's checkpoints.

    ``compressor``, ``policy`` and ``attach_options`` are arguments of `dgc_repro.attach`, ``reshard`` is one
    of `Attached.load_state_dict`. The exchange comes before the Trainer clips gradients. ``exchange``: what
    `attach` has returned, from the first step on.

    `Attached.metrics` is added to what the Trainer logs of training (``logging_steps``, and once at the end):
    ``comm/payload_bytes`` and ``comm/wire_bytes``, summed since the start, ``policy/rung``, and mean times a
    step since the last log. Values are those of each rank, and rank 0 reports its own.
    """

    exchange: Attached | None = None

    def __init__(
        self,
        *args: Any,
        compressor: Compressor,
        policy: Policy | None = None,
        reshard: str = "refuse",
        attach_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        options = attach_options or {}
        self._attach: Callable[[Any], Attached] = lambda model: attach(
            model, compressor, policy, scaler=self.accelerator.scaler, **options
        )
        self._reshard = reshard
        self._attached_to: nn.Module | None = None
        self._resumes_from: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise UserError where a Trainer stands before `Compressed`, which it would not call."""
        super().__init_subclass__(**kwargs)
        place = cls.__mro__.index(Compressed)
        if any("training_step" in vars(base) for base in cls.__mro__[place + 1 :]):
            return
        for base in cls.__mro__[:place]:
            is_trainer = hasattr(base, "training_step") and hasattr(base, "train")
            if is_trainer and not issubclass(base, Compressed):
                raise UserError(
                    f"{cls.__name__}: Compressed stands before the Trainer among the bases; write class "
                    f"{cls.__name__}(Compressed, {base.__name__})"
                )

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Run the Trainer's loop; where a collective fails because ranks have different numbers of batches,
        raise an error that says so on each rank."""
        try:
            return super().train(*args, **kwargs)
        except RuntimeError as error:
            if self.exchange is None or not is_of_a_collective(error):
                raise
            raise self.exchange.explained(error) from error

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """Run the Trainer's forward and backward, and exchange unless it goes on accumulating."""
        if model is not self._attached_to:  # a Trainer may wrap its model again
            if not isinstance(model, DistributedDataParallel) and self.args.world_size == 1:
                raise UserError(
                    "world_size: the Trainer runs in one process, and there is nothing to exchange; start it "
                    "with torchrun --nproc_per_node=2 (or accelerate launch), or use a plain Trainer"
                )
            if self.exchange is not None:
                self.exchange.detach()
            self.exchange, self._attached_to = self._attach(model), model
            loader = self.callback_handler.train_dataloader
            self.exchange.compare_batches(batches_of(loader))
        assert self.exchange is not None
        if self._resumes_from is not None:
            path, self._resumes_from = Path(self._resumes_from) / FILE, None
            if path.exists():
                state = torch.load(path, weights_only=True)
                self.exchange.load_state_dict(state, reshard=self._reshard)
        loss: Tensor = super().training_step(model, *args, **kwargs)
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the numbers of the exchange to a log of training, and pass it to the Trainer."""
        if self.exchange is not None and OF_TRAINING & logs.keys():
            logs |= self.exchange.metrics()  # in place: the Trainer returns the last ones
        super().log(logs, *args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.exchange is not None:
            state = self.exchange.gathered().state_dict()  # a collective
            if self.args.should_save:
                torch.save(state, Path(output_dir) / FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self._resumes_from = checkpoint
