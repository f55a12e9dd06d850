"""What a claim is about: one number of one run, each defined by a function with its definition.

Claims name a quantity; the verdict compares it between rows, paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dgc_repro.errors import UserError
from dgc_repro.report.records import Run


@dataclass(frozen=True)
class Quantity:
    """A number of a run: ``label`` and ``unit`` for the reader, ``of`` computes it."""

    label: str
    unit: str
    of: Callable[[Run], float]


def _series(run: Run, metric: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if metric not in run.epochs.columns:
        raise UserError(f"{run.folder}: no {metric} in metrics.jsonl; the record is too old")
    return np.asarray(run.epochs[metric], dtype=np.float64)


def _last(run: Run, metric: str) -> float:
    return float(_series(run, metric)[-1])


def third(num_epochs: int) -> int:
    """Epochs in a third of a run: rounded down, at least one."""
    return max(1, num_epochs // 3)


def train_accuracy(run: Run) -> float:
    """Running training accuracy of the last epoch (in training mode, augmented), percent."""
    return _last(run, "train/accuracy_percent")


def test_accuracy(run: Run) -> float:
    """Test accuracy after the last epoch, percent; not the best one of the run."""
    return _last(run, "test/accuracy_percent")


def test_perplexity(run: Run) -> float:
    """Test perplexity after the last epoch, exp(mean nats a word); not the best one of the run."""
    return _last(run, "test/perplexity")


def validation_perplexity(run: Run) -> float:
    """Validation perplexity after the last epoch."""
    return _last(run, "validation/perplexity")


def last_epoch(run: Run, metric: str) -> float:
    """What the last epoch has added to a number that counts up over the run."""
    counted = _series(run, metric)
    return float(counted[-1] - (counted[-2] if len(counted) > 1 else 0.0))


def log10_payload_after_warmup(run: Run) -> float:
    """log10 of the payload bytes of the last epoch, when any warm-up of the density is over.

    Between two rows the difference is the log10 of their compression ratio.
    """
    return math.log10(last_epoch(run, "comm/payload_bytes"))


def train_minutes(run: Run) -> float:
    """Minutes in training steps over the whole run, evaluation not counted."""
    return _last(run, "time/train_seconds") / 60


def payload_bytes(run: Run) -> float:
    """Bytes of all payloads one worker handed over: values, indices, scales, as packed."""
    return _last(run, "comm/payload_bytes")


def wire_bytes(run: Run) -> float:
    """Bytes one worker put on the wire for the gradients: payload times what a collective moves."""
    return _last(run, "comm/wire_bytes")


def floats(run: Run) -> float:
    """Floats one worker sent, the papers' convention: values only, bits / 32."""
    return _last(run, "comm/floats")


def train_loss_first_third(run: Run) -> float:
    """Mean training loss over the first third of the epochs: the area under the early curve."""
    loss = _series(run, "train/loss")
    return float(loss[: third(len(loss))].mean())


def train_loss_catch_up(run: Run) -> float:
    """ln of the ratio of the first third's mean training loss to the last epoch's.

    Between two rows the difference is ln(ratio of their losses in the first third) - ln(ratio at the
    end): positive when the slower row has caught up. Ratios, because every loss falls, and the
    distance between two of them with it.
    """
    return math.log(train_loss_first_third(run) / _last(run, "train/loss"))


def weight_change_last_third(run: Run) -> float:
    """L2 norm of the change of all parameters in an epoch, mean over the last third of the epochs.

    The last third is where we place the plateau, for every row alike.
    """
    norm = _series(run, "weights/change_norm")
    return float(norm[-third(len(norm)) :].mean())


QUANTITIES = {
    "train_accuracy": Quantity("train accuracy", "points", train_accuracy),
    "test_accuracy": Quantity("test accuracy", "points", test_accuracy),
    "test_perplexity": Quantity("test perplexity", "", test_perplexity),
    "validation_perplexity": Quantity("validation perplexity", "", validation_perplexity),
    "log10_payload_after_warmup": Quantity(
        "log10 of payload after warm-up", "", log10_payload_after_warmup
    ),
    "train_minutes": Quantity("train time", "min", train_minutes),
    "payload_bytes": Quantity("payload bytes", "bytes", payload_bytes),
    "wire_bytes": Quantity("wire bytes", "bytes", wire_bytes),
    "floats": Quantity("floats sent", "floats", floats),
    "train_loss_first_third": Quantity("early train loss", "nats", train_loss_first_third),
    "train_loss_catch_up": Quantity("ln of early over final train loss", "", train_loss_catch_up),
    "weight_change_last_third": Quantity("late weight change", "", weight_change_last_third),
}
"""Every quantity a claim may name."""

STUDIED = {
    "density": ("density of the sum", ""),
    "density_error": ("density, the cell farthest from theory", ""),
    "extra_bits": ("bits more than one code", "bits"),
    "fit_residual": ("RMS residual of the fit", "deviations"),
    "slope": ("slope of the fit", ""),
    "waiting_error": ("expected largest delay, the number of workers farthest from theory", ""),
    "seconds": ("time of an allreduce", "s"),
    "efficiency": ("scaling efficiency", ""),
    "layers": ("layers", ""),
    "mib": ("size", "MiB"),
    "saturation": ("log2 of the factor of saturation", ""),
    # GraVAC's tables: report/gravac_course.py
    "quality": ("final quality", "points"),
    "perplexity": ("final perplexity", ""),
    "test_loss": ("final test loss", "nats"),
    "failed": ("failed (1) or not (0)", ""),
    "reached": ("target reached (1) or not (0)", ""),
    "plateau_seconds": ("modelled seconds to the plateau", "s"),
    "run_seconds": ("modelled seconds of the run", "s"),
    "speedup_to_target": ("modelled speedup to the target", ""),
    "log10_floats": ("log10 of floats a step", ""),
    # GraVAC's figures: means and shares over the recorded steps
    "variance": ("gradient variance", ""),
    "gain": ("mean gain", ""),
    "gain_sd": ("deviation of the gain", ""),
    "gain_norm": ("mean norm gain", ""),
    "gain_norm_sd": ("deviation of the norm gain", ""),
    "share": ("share of steps", ""),
    "dense_share": ("share of dense steps", ""),
    "lead": ("lead of a factor, share of steps", ""),
    "late": ("share of late steps", ""),
    "runner_up": ("the factor with the second most steps", ""),
    "largest_factor": ("the largest factor", ""),
    "evenness": ("largest share of steps over the smallest", ""),
    "theta_min": ("largest theta_min", ""),
    "dip": ("dip", "points"),
    "curve_mean": ("mean test quality over the run", "points"),
    "lab_slowdown": ("step while the rate is low over steps at other times", ""),
    "lab_target_seconds": ("measured time to the target loss", "s"),
    "lab_factor": ("log2 of the factor sent", ""),
    "lab_step_ms": ("measured step", "ms"),
}
"""Label and unit of what studies compute; report/<study>.py has the definitions. A claim may say where,
as in ``seconds@ethernet_1gbit, 16 workers``, which is then the label."""
