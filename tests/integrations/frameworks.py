"""Training loops of frameworks, for test_frameworks.py: each trains one small model on data of its rank.

A job runs on each rank of a real world and returns the parameters.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from dgc_repro import Dense, ErrorFeedback, Ladder, Stepwise, TopK, UserError, attach
from dgc_repro.compressor.interface import Compressor

STEPS, HALF, MICRO_STEPS, CLIP = 4, 2, 2, 0.05
Parameters = dict[str, Tensor]
QUIET: dict[str, Any] = {  # of Lightning's Trainer
    "accelerator": "cpu",
    "max_epochs": 1,
    "use_distributed_sampler": False,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@dataclass(frozen=True)
class Task:
    """What is trained, by all loops alike. ``compressor``: None for plain DDP."""

    compressor: Compressor | None
    folder: Path
    steps: int = STEPS  # at the end
    resumes: bool = (
        False  # after half of all steps, from the folder, where every run leaves a checkpoint
    )
    reshard: str = "refuse"
    scaled: bool = False  # float16 autocast, with a GradScaler whose scale grows


class Net(nn.Module):
    """A model with a loss of its own, as Transformers wants it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.layers(x).float() - y).square().mean()}


def batches() -> DataLoader[Any]:
    """This rank's micro-batches of all steps, in order."""
    source = torch.Generator().manual_seed(dist.get_rank())
    x, y = (torch.randn(STEPS * MICRO_STEPS * 2, width, generator=source) for width in (6, 4))
    return DataLoader(TensorDataset(x, y), batch_size=2)


def sgd(net: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)


def scaler_of(task: Task) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1, enabled=task.scaled)


def parameters(net: nn.Module) -> Parameters:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def forget_accelerate() -> None:
    """Have the next Accelerator of this process begin anew."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@contextlib.contextmanager
def as_launched() -> Iterator[None]:
    """The environment that torchrun gives a rank, without a network."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    more = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "HF_HUB_OFFLINE": "1"}
    more |= {"ACCELERATE_USE_CPU": "true"}
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        if "accelerate" in sys.modules:
            forget_accelerate()


def by_hand(task: Task) -> Parameters:
    """The loop that the frameworks' loops must equal."""
    net = Net()
    model, optimizer, scaler = DistributedDataParallel(net), sgd(net), scaler_of(task)
    exchange = None
    if task.compressor is not None:
        exchange = attach(model, task.compressor, scaler=scaler)
    for number, (x, y) in enumerate(batches()):
        last = number % MICRO_STEPS == MICRO_STEPS - 1
        with contextlib.nullcontext() if last else model.no_sync():
            with torch.autocast("cpu", torch.float16, enabled=task.scaled):
                loss = model(x, y)["loss"]
            scaler.scale(loss / MICRO_STEPS).backward()
        if not last:
            continue
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if exchange is not None:
        exchange.detach()
    return parameters(net)


def lightning_module() -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return self.net(*batch)["loss"]  # type: ignore[no-any-return]

        def train_dataloader(self) -> Any:
            """Half of the steps an epoch: Lightning continues with a whole epoch."""
            half = HALF * MICRO_STEPS * 2
            first = self.current_epoch * half
            return DataLoader(Subset(batches().dataset, range(first, first + half)), batch_size=2)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self)

    return Module()


def compress(*given: Any, **settings: Any) -> Any:
    """Lightning's callback."""
    from dgc_repro.integrations.lightning import Compress

    return Compress(*given, **settings)


def lightning_trainer(callbacks: list[Any], **settings: Any) -> Any:
    import lightning.pytorch as pl

    strategy = pl.strategies.DDPStrategy(process_group_backend="gloo")
    ranks = {"devices": dist.get_world_size(), "strategy": strategy}
    return pl.Trainer(**QUIET | ranks | settings, callbacks=callbacks)


def lightning_callback(task: Task, **settings: Any) -> Parameters:
    from lightning.pytorch.plugins import MixedPrecision

    module, path, callbacks = lightning_module(), task.folder / "lightning.ckpt", []
    if task.compressor is not None:
        callbacks = [compress(task.compressor, reshard=task.reshard, **settings)]
    with as_launched():
        trainer = lightning_trainer(
            callbacks,
            max_epochs=task.steps // HALF,
            plugins=[MixedPrecision("16-mixed", "cpu", scaler_of(task))] if task.scaled else None,
            accumulate_grad_batches=MICRO_STEPS,
            gradient_clip_val=CLIP,
            reload_dataloaders_every_n_epochs=1,
        )
        trainer.fit(module, ckpt_path=path if task.resumes else None)
        trainer.save_checkpoint(path)
    return parameters(module.net)


def lightning_overlapping(task: Task) -> Parameters:
    return lightning_callback(task, overlap=True)


def scale(accelerator: Any, task: Task) -> None:
    """What Accelerate does for ``mixed_precision="fp16"``, on GPUs only."""
    if task.scaled:
        accelerator.state._mixed_precision = "fp16"
        accelerator.native_amp, accelerator.scaler = True, scaler_of(task)


def accelerate(task: Task) -> Parameters:
    from accelerate import Accelerator

    from dgc_repro.integrations.accelerate import attach as attach_to

    with as_launched():
        accelerator = Accelerator(gradient_accumulation_steps=MICRO_STEPS)
        scale(accelerator, task)
        model, optimizer = accelerator.prepare(net := Net(), sgd(net))
        if task.compressor is not None:
            state = attach_to(accelerator, model, task.compressor, reshard=task.reshard)
        folder, done = task.folder / "accelerate", 0
        if task.resumes:
            accelerator.load_state(str(folder))
            done = HALF * MICRO_STEPS
        for number, (x, y) in enumerate(batches()):
            if not done <= number < task.steps * MICRO_STEPS:
                continue
            with accelerator.accumulate(model):
                accelerator.backward(model(x, y)["loss"])
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state(str(folder))
        if task.compressor is not None:
            state.close()
    return parameters(net)


def transformers_trainer(
    net: nn.Module,
    arguments: dict[str, Any],
    data: Any = None,
    compressor: Compressor | None = None,
    policy: Any = None,
    **given: Any,
) -> Any:
    """A Trainer that reads the batches of this rank, or ``data``."""
    from transformers import Trainer, TrainingArguments

    from dgc_repro.integrations.transformers import Compressed

    class Plain(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return DataLoader(data or batches().dataset, batch_size=2, collate_fn=named)

    class Own(Compressed, Plain):
        pass

    quiet: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "use_cpu": True}
    quiet |= {
        "ddp_backend": "gloo",
        "remove_unused_columns": False,
        "per_device_train_batch_size": 2,
    }
    made = TrainingArguments(**quiet | arguments)
    if compressor is None:
        return Plain(model=net, args=made, **given)
    return Own(model=net, args=made, compressor=compressor, policy=policy, **given)


def transformers(task: Task) -> Parameters:
    net = Net()
    with as_launched():
        arguments = {
            "output_dir": str(task.folder),
            "gradient_accumulation_steps": MICRO_STEPS,
            "max_grad_norm": CLIP,
            "max_steps": task.steps,
            "lr_scheduler_type": "constant",
            "save_steps": HALF,
        }
        given: dict[str, Any] = {"optimizers": (sgd(net), None), "compressor": task.compressor}
        given |= {"reshard": task.reshard} if task.compressor else {}
        trainer = transformers_trainer(net, arguments, **given)
        scale(trainer.accelerator, task)
        trainer.train(resume_from_checkpoint=task.resumes)
        if task.compressor is not None:
            trainer.exchange.detach()
    return parameters(net)


def named(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    x, y = zip(*samples, strict=True)
    return {"x": torch.stack(x), "y": torch.stack(y)}


Logged = tuple[list[dict[str, Any]], dict[str, float]]
"""What a framework has logged, step by step, and `Attached.metrics` at the end."""


def stepwise() -> tuple[Compressor, Stepwise]:
    """A nest whose policy sends rung 2 of its ladder, and that policy."""
    policy = Stepwise(field="density", values=[0.5, 0.3], accuracy_thresholds=[60.0])
    return ErrorFeedback(Ladder((Dense(), TopK(density=0.5), TopK(density=0.3)))), policy


def logged_by_transformers(folder: Path) -> Logged:
    compressor, policy = stepwise()
    with as_launched():
        arguments = {
            "output_dir": str(folder),
            "max_steps": STEPS * MICRO_STEPS,
            "logging_steps": 2,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "save_strategy": "no",
        }
        given = {"eval_dataset": list(batches().dataset), "data_collator": named}
        trainer = transformers_trainer(
            Net(), arguments, compressor=compressor, policy=policy, **given
        )
        returned = trainer.train().metrics
        last = trainer.exchange.metrics()
        trainer.exchange.detach()
    assert returned["comm/payload_bytes"] == last["comm/payload_bytes"]
    return trainer.state.log_history, last


def csv_logger(folder: Path) -> Any:
    from lightning.pytorch.loggers import CSVLogger

    return CSVLogger(str(folder), name="csv", version=0)


def rows_of_csv(folder: Path) -> list[dict[str, float]]:
    """What `csv_logger` has written on rank 0, without empty cells."""
    dist.barrier()
    with (folder / "csv" / "version_0" / "metrics.csv").open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def logged_by_lightning(folder: Path, logger: bool = True) -> Logged:
    """The rows of the file of Lightning's CSVLogger, where ``logger`` says that there is one."""
    callback, module = compress(*stepwise()), lightning_module()
    module.train_dataloader = batches
    settings = {"accumulate_grad_batches": MICRO_STEPS, "log_every_n_steps": 2}
    with as_launched():
        trainer = lightning_trainer(
            [callback], logger=csv_logger(folder) if logger else False, **settings
        )
        trainer.fit(module)
        last = callback.exchange.metrics()
        if not logger:
            return [{name: float(v) for name, v in trainer.callback_metrics.items()}], last
    return rows_of_csv(folder), last


def logged_by_accelerate(folder: Path, tracker: str | None = "wandb") -> Logged:
    """What the file of wandb's offline run holds. The numbers are asked for on the main process alone."""
    from accelerate import Accelerator

    from dgc_repro.integrations.accelerate import attach as attach_to

    compressor, policy = stepwise()
    with as_launched():
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
        accelerator = Accelerator(log_with=tracker)
        accelerator.init_trackers("compressed")
        model, optimizer = accelerator.prepare(net := Net(), sgd(net))
        state = attach_to(accelerator, model, compressor, policy)
        for number, (x, y) in enumerate(batches(), 1):
            loss = model(x, y)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if number % 2 == 0 and accelerator.is_main_process:
                accelerator.log({"loss": loss.item()} | state.metrics(), step=number)
        for one in accelerator.trackers:  # end_training() would end the process group too
            one.finish()
        if tracker == "wandb":
            import wandb

            wandb.teardown()  # finish() does not wait until wandb's own process has written the file
        last = state.metrics()
        state.close()
    dist.barrier()
    return [] if tracker is None else offline_run(folder), last


def offline_run(folder: Path) -> list[dict[str, Any]]:
    """The history of the only offline run of wandb in a folder."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "sink"))
    from wandb_file import items, records

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    kinds = [record.history for record in records(path) if record.HasField("history")]
    return [items(history.item) for history in kinds]


def refusal(action: Callable[[], object]) -> str:
    """The message of the UserError that an action raises."""
    try:
        action()
    except UserError as error:
        return str(error)
    return "nothing"


def play(loop: str, task: Task) -> Parameters:
    """A loop of this module, by name."""
    found: Parameters = globals()[loop](task)
    gc.collect()
    return found


def piece_of_a_page(code: str, folder: Path) -> Parameters:
    """Parameters after a snippet of docs/frameworks.md, to which the page gives these names."""
    module = Net().layers
    names: dict[str, Any] = {
        "batches": batches(),
        "contextlib": contextlib,
        "dataset": [{"x": x, "y": y} for x, y in batches().dataset],
        "DistributedDataParallel": DistributedDataParallel,
        "loss_of": nn.functional.mse_loss,
        "module": module,
        "optimizer": sgd(module),
        "torch": torch,
    }
    if "transformers_model" in code:
        module = names["transformers_model"] = Net()
    if "lightning_module" in code:
        module = names["lightning_module"] = lightning_module()
        names["accelerator"] = "cpu"
    elif "DistributedDataParallel(" not in code:
        names["model"] = DistributedDataParallel(module)
    before = parameters(module)
    with as_launched(), contextlib.chdir(folder):
        exec(code, names)
    joined = names.get("exchange") or names.get("state")
    joined = joined or getattr(names.get("compress") or names["trainer"], "exchange", None)
    assert joined.ledger.payload_bytes > 0
    joined.close()
    assert not any(torch.equal(value, before[name]) for name, value in parameters(module).items())
    return parameters(module)


def fitted_again_without(task: Task) -> list[Parameters]:
    """Parameters of a module that a trainer with the callback has fitted, and then one without."""
    module, found = lightning_module(), []
    for callbacks in ([compress(task.compressor)], []):
        with as_launched():
            lightning_trainer(callbacks, strategy="ddp").fit(module)
        found.append(parameters(module))
    return found


def lightning_on_one_device() -> str:
    trainer = lightning_trainer([compress(Dense())], devices=1, strategy="auto")
    return refusal(lambda: trainer.fit(lightning_module()))


def transformers_with_reversed_bases() -> str:
    from transformers import Trainer

    from dgc_repro.integrations.transformers import Compressed

    return refusal(lambda: type("T", (Trainer, Compressed), {}))


class Rows(IterableDataset[Any]):
    """Batches whose number nobody knows."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def uneven_transformers(folder: Path, sized: bool) -> str:
    """What each rank says where rank 1 has 2 batches more; ``sized``: whether loaders have a length."""
    rows = list(batches().dataset)[: 4 + 2 * 2 * dist.get_rank()]
    with as_launched():
        arguments = {
            "output_dir": str(folder),
            "num_train_epochs": 1,
            "max_steps": -1 if sized else 2 + 2 * dist.get_rank(),
            "save_strategy": "no",
        }
        trainer = transformers_trainer(
            Net(), arguments, data=rows if sized else Rows(rows), compressor=Dense()
        )
        try:
            trainer.train()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"


def uneven_lightning() -> str:
    module = lightning_module()
    rows = Subset(batches().dataset, range(4 + 4 * dist.get_rank()))
    module.train_dataloader = lambda: DataLoader(rows, batch_size=2)
    with as_launched():
        trainer = lightning_trainer([compress(Dense())])
        return refusal(lambda: trainer.fit(module))


def accelerate_of_one_process() -> str:
    from accelerate import Accelerator

    from dgc_repro.integrations.accelerate import attach as attach_to

    accelerator = Accelerator(cpu=True)
    said = refusal(lambda: attach_to(accelerator, accelerator.prepare(Net()), Dense()))
    forget_accelerate()
    return said


def logged_by_lightning_of_two_optimizers(folder: Path) -> list[list[float]]:
    """The number of each step that Lightning's CSVLogger wrote, and the steps whose bytes it wrote there. A
    second optimizer moves in some batches only: ``trainer.global_step`` is then no number of batches."""
    module = lightning_module()
    module.automatic_optimization = False
    module.configure_optimizers = lambda: [sgd(module), sgd(module)]

    def training_step(batch: list[Tensor], batch_idx: int) -> None:
        first, second = module.optimizers()
        first.zero_grad()
        module.manual_backward(module.net(*batch)["loss"])
        first.step()
        if batch_idx % 3 == 0:
            second.step()

    module.training_step = training_step
    module.train_dataloader = batches
    callback = compress(ErrorFeedback(TopK(density=0.3)))
    with as_launched():
        lightning_trainer([callback], logger=csv_logger(folder), log_every_n_steps=3).fit(module)
    rows = [row for row in rows_of_csv(folder) if "comm/payload_bytes" in row]
    each = callback.exchange.metrics()["comm/payload_bytes"] / (STEPS * MICRO_STEPS)
    return [[row["step"] + 1, row["comm/payload_bytes"] / each] for row in rows]
