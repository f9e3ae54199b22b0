"""Follow the gradients of a small transformer while it is trained, and average them in each storage of m2.

AdEMAMix in fp32 does the training. Beside it the same gradients are averaged with beta3 = 0.9999, constant from the
first step, in float64, and as they would be stored:

compact, bf16    by AdEMAMix itself with that state_storage and a learning rate of 0
others           by rounding an fp32 average after each step

Reported is the cosine to the float64 average, over all parameters whose moments would be coded and of the worst
tensor. The compact storage has to reach 0.9995 at the end.

    python benchmarks/live_gradients.py            # goes on from its last checkpoint if it was stopped
    python benchmarks/live_gradients.py --quick    # seconds
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ademamix import AdEMAMix
from ademamix.pytorch.parameter_state import values_of
from other_codes import RoundTrip, bf16, dynamic
from small_lm import Shape, SmallTransformer, coded_parameters, learning_rate_schedule, training_batches
from study import Progress, Results, markdown, parse, write_atomically

BETA3 = 0.9999
COMPACT = "compact"
REQUIRED_COSINE = 0.9995


@dataclass(frozen=True)
class Settings:
    """The run whose gradients are followed."""

    shape: Shape = field(default_factory=Shape)
    steps: int = 5000
    report_every: int = 500
    lr: float = 1e-3
    alpha: float = 5.0
    seed: int = 0


QUICK = Settings(shape=Shape(width=64, layers=1, batch=2), steps=6, report_every=3)


class OptimizerAverage:
    """m2 of an AdEMAMix that sees the gradients and moves nothing."""

    def __init__(self, state_storage: str, like: list[Tensor]) -> None:
        self._parameters = [torch.nn.Parameter(torch.zeros_like(tensor)) for tensor in like]
        self._optimizer = AdEMAMix(
            self._parameters,
            lr=0.0,
            betas=(0.9, 0.999, BETA3),
            alpha_warmup=0,
            beta3_warmup=0,
            state_storage=state_storage,
        )

    def update(self, gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()

    def values(self) -> list[Tensor]:
        return [values_of(self._optimizer.state[parameter], "exp_avg_slow") for parameter in self._parameters]

    def state_dict(self) -> Any:
        return self._optimizer.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._optimizer.load_state_dict(state)


class RoundedAverage:
    """An average that is rounded after each step; in the dtype that it starts with."""

    def __init__(self, round_trip: RoundTrip, like: list[Tensor], dtype: torch.dtype = torch.float32) -> None:
        self._averages = [torch.zeros_like(tensor, dtype=dtype) for tensor in like]
        self._round_trip = round_trip

    def update(self, gradients: list[Tensor]) -> None:
        for average, gradient in zip(self._averages, gradients, strict=True):
            average.copy_(self._round_trip(average.lerp(gradient.to(average.dtype), 1 - BETA3)))

    def values(self) -> list[Tensor]:
        return self._averages

    def state_dict(self) -> Any:
        return self._averages

    def load_state_dict(self, state: Any) -> None:
        self._averages = state


class Experiment:
    """A training run and the averages that follow it; all of it can be saved and continued."""

    def __init__(self, settings: Settings) -> None:
        self.step = 0
        torch.manual_seed(settings.seed)
        self._model = SmallTransformer(settings.shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the advice that this beta3 is long for the run: it is, on purpose
            self._optimizer = AdEMAMix(
                self._model.parameters(),
                lr=settings.lr,
                betas=(0.9, 0.999, BETA3),
                alpha=settings.alpha,
                total_steps=settings.steps,
            )
        self._schedule = learning_rate_schedule(self._optimizer, settings.steps)
        self._batches = training_batches(settings.shape, settings.seed)
        self._coded = coded_parameters(self._model)
        like = list(self._coded.values())
        self._exact = RoundedAverage(lambda values: values, like, torch.float64)
        self._stored: dict[str, OptimizerAverage | RoundedAverage] = {
            COMPACT: OptimizerAverage("compact", like),
            "bf16, stochastic": OptimizerAverage("bf16", like),
            "bf16, nearest": RoundedAverage(bf16(stochastic=False), like),
            "8-bit dynamic, nearest": RoundedAverage(dynamic(), like),
        }

    def advance(self) -> float:
        """Take one step of training, let the averages follow, and return the loss."""
        loss = self._model.loss(next(self._batches))
        loss.backward()
        gradients = [parameter.grad for parameter in self._coded.values()]
        for average in (self._exact, *self._stored.values()):
            average.update(gradients)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._schedule.step()
        self.step += 1
        return loss.item()

    def cosines(self) -> dict[str, dict[str, float]]:
        """Return, of each storage, the cosine to the exact average of all coded tensors and of each of them."""
        exact = self._exact.values()
        result = {}
        for name, average in self._stored.items():
            stored = [values.double() for values in average.values()]
            by_tensor = {tensor: _cosine([a], [b]) for tensor, a, b in zip(self._coded, stored, exact, strict=True)}
            result[name] = {"all": _cosine(stored, exact), **by_tensor}
        return result

    def save(self, path: Path) -> None:
        content = {name: part.state_dict() for name, part in self._parts().items()}
        write_atomically(path, lambda temporary: torch.save({"step": self.step, "parts": content}, temporary))

    def load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        self.step = saved["step"]
        for name, part in self._parts().items():
            part.load_state_dict(saved["parts"][name])
        for _ in range(self.step):
            next(self._batches)

    def _parts(self) -> dict[str, Any]:
        return {
            "model": self._model,
            "optimizer": self._optimizer,
            "schedule": self._schedule,
            "exact": self._exact,
            **self._stored,
        }


def _cosine(a: list[Tensor], b: list[Tensor]) -> float:
    product = sum((x * y).sum() for x, y in zip(a, b, strict=True))
    return (product / (sum(x.square().sum() for x in a) * sum(y.square().sum() for y in b)).sqrt()).item()


def main() -> None:
    options = parse(__doc__)
    settings = QUICK if options.quick else Settings()
    results = Results(options.results, "live_gradients", asdict(settings), quick=options.quick)
    reported = range(settings.report_every, settings.steps + 1, settings.report_every)
    if str(settings.steps) not in results:
        follow(settings, results, results.path.with_suffix(".checkpoint"))
    print(report(results, reported))
    if not options.quick and results[str(settings.steps)]["cosines"][COMPACT]["all"] < REQUIRED_COSINE:
        sys.exit(f"{COMPACT} has not reached a cosine of {REQUIRED_COSINE}")


def follow(settings: Settings, results: Results, checkpoint: Path) -> None:
    """Train from the last checkpoint to the end, and store the cosines on the way."""
    experiment = Experiment(settings)
    progress = Progress(settings.steps, "steps")
    if checkpoint.exists():
        experiment.load(checkpoint)
        progress.skip(experiment.step)
    losses: list[float] = []
    while experiment.step < settings.steps:
        losses.append(experiment.advance())
        progress.advance(f"loss {losses[-1]:.3f}")
        if experiment.step % settings.report_every == 0:
            experiment.save(checkpoint)
            results[str(experiment.step)] = {"loss": sum(losses) / len(losses), "cosines": experiment.cosines()}
            losses.clear()
    checkpoint.unlink()


def report(results: Results, reported: range) -> str:
    names = list(results[str(reported[-1])]["cosines"])
    rows = []
    for step in reported:
        part = results[str(step)]
        cells = [f"{part['cosines'][name]['all']:.6f}" for name in names]
        rows.append([f"{step:,}", f"{part['loss']:.3f}", *cells])
    last = results[str(reported[-1])]["cosines"]
    worst = [min((cosine, tensor) for tensor, cosine in last[name].items() if tensor != "all") for name in names]
    rows.append(["worst tensor", "", *(f"{cosine:.6f}" for cosine, _ in worst)])
    legend = "; ".join(f"{name}: {tensor}" for name, (_, tensor) in zip(names, worst, strict=True))
    title = f"cosine of the stored m2 to the exact one, beta3 = {BETA3:g}, over all coded parameters"
    return f"{title}\n\n{markdown(['step', 'training loss', *names], rows)}\n\nworst tensor at the end: {legend}"


if __name__ == "__main__":
    main()
