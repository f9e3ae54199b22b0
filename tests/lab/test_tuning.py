"""The search for a learning rate and a beta2."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

from ademamix.lab import tuning
from ademamix.lab.comparison import defaults
from ademamix.lab.comparison.arms import arm_of, plan
from ademamix.lab.config import Optimizer, Run
from ademamix.lab.runs.record import Result
from ademamix.lab.tuning import Choice, SearchedLosses
from lab_runs import TINY, result


def _bases(*chosen: Optimizer) -> dict[str, Run]:
    return {name: of_seed[0] for name, of_seed in plan([arm_of(TINY, one) for one in chosen], [0]).items()}


def _beta2(optimizer: Optimizer) -> float:
    return float(optimizer.settings.get("betas", (0.9, 0.999))[1])


def _tuned(
    loss: Callable[[Optimizer], float], *chosen: Optimizer, count: int = 3
) -> tuple[dict[str, SearchedLosses], list[list[Run]]]:
    rounds: list[list[Run]] = []

    def run(runs: Mapping[str, Run]) -> dict[str, Result]:
        rounds.append(list(runs.values()))
        return {label: result(loss(run.optimizer)) for label, run in runs.items()}

    return tuning.tune(_bases(*chosen), count, run), rounds


ADAMW, ADEMAMIX = Optimizer(name="adamw", lr=4e-3), Optimizer(name="ademamix", lr=4e-3)


def test_a_search_grows_until_the_best_has_neighbours() -> None:
    best = {"adamw": 4e-3, "ademamix": 1e-3}

    def loss(optimizer: Optimizer) -> float:
        return 1 + abs(math.log(optimizer.lr / best[optimizer.name])) + abs(_beta2(optimizer) - 0.999)

    found, rounds = _tuned(loss, ADAMW, ADEMAMIX)
    assert {name: losses.best for name, losses in found.items()} == {
        "AdamW": Choice(4e-3, 0.999),
        "AdEMAMix": Choice(1e-3, 0.999),
    }
    assert all(losses.settled for losses in found.values())
    assert [len(runs) for runs in rounds] == [6, 3, 1, 2]
    assert "AdEMAMix, best: lr=0.001 beta2=0.999" in tuning.table(found, 100)


def test_beta2_is_searched_and_the_rate_again_where_it_moves() -> None:
    def loss(optimizer: Optimizer) -> float:
        rate = 8e-3 if _beta2(optimizer) == 0.99 else 4e-3  # the best rate of another beta2 is another
        return abs(math.log(optimizer.lr / rate)) + (0.0 if _beta2(optimizer) == 0.99 else 1.0)

    found, rounds = _tuned(loss, ADAMW)
    assert found["AdamW"].best == Choice(8e-3, 0.99)
    assert found["AdamW"].settled
    assert {(run.optimizer.lr, _beta2(run.optimizer)) for runs in rounds for run in runs} == {
        *((rate, 0.999) for rate in (2e-3, 4e-3, 8e-3)),
        *((rate, 0.99) for rate in (2e-3, 4e-3, 8e-3, 16e-3)),
        *((4e-3, beta2) for beta2 in (0.9999,)),
        *((8e-3, beta2) for beta2 in (0.95,)),
    }


def test_a_default_is_not_written_out_and_what_is_stated_stays() -> None:
    (base,) = _bases(ADAMW).values()
    assert tuning.with_choice(base, Choice(4e-3, 0.999)) == base
    assert tuning.with_choice(base, Choice(4e-3, 0.99)).optimizer.settings == {"betas": [0.9, 0.99]}
    stated = Optimizer(name="adamw", lr=4e-3, settings={"betas": [0.8, 0.95]})
    found, rounds = _tuned(lambda optimizer: abs(math.log(optimizer.lr / 4e-3)), stated)
    assert found["AdamW"].best == Choice(4e-3)
    assert all(run.optimizer.settings == stated.settings for runs in rounds for run in runs)


def test_an_optimizer_without_beta2_is_searched_in_its_rate() -> None:
    lion = Optimizer(name="lion", lr=4e-4)
    found, rounds = _tuned(lambda optimizer: abs(math.log(optimizer.lr / 4e-4)), lion)
    assert found["Lion"].best == Choice(4e-4)
    assert [len(runs) for runs in rounds] == [3]


def test_a_search_ends_and_says_that_it_is_open() -> None:
    found, rounds = _tuned(lambda optimizer: -optimizer.lr, ADAMW)
    assert len(rounds) == tuning.ROUNDS
    assert not found["AdamW"].settled
    assert "before all of its neighbours were tried" in tuning.table(found, 200)


def test_a_best_at_the_end_of_the_list_is_called_that() -> None:
    found, _ = _tuned(lambda optimizer: _beta2(optimizer) + abs(math.log(optimizer.lr / 4e-3)), ADAMW)
    assert found["AdamW"].best == Choice(4e-3, 0.9)
    assert "best: lr=0.004 beta2=0.9 (at the end of the list of beta2)" in tuning.table(found, 200)


def test_divergence_is_recorded_as_no_number() -> None:
    found, _ = _tuned(lambda optimizer: math.nan if optimizer.lr > 1e-3 else optimizer.lr, ADAMW)
    assert found["AdamW"].best.lr <= 1e-3
    text = json.dumps(tuning.records(_bases(ADAMW), found), allow_nan=False)
    (record,) = json.loads(text).values()
    assert {"lr": 4e-3, "beta2": 0.999, "validation_loss": None} in record["losses"]
    assert "diverged" in tuning.table(found, 100)


def test_a_search_gives_back_runs_with_the_best_choices() -> None:
    def run(runs: Mapping[str, Run]) -> dict[str, Result]:
        assert all(tried.seed == tuning.SEED for tried in runs.values())
        return {label: result(abs(math.log(tried.optimizer.lr / 8e-3))) for label, tried in runs.items()}

    long = arm_of(TINY, ADAMW, steps=2 * TINY.steps)
    arms = {label: of_seed[5] for label, of_seed in plan([arm_of(TINY, ADAMW), long], [5]).items()}
    found = tuning.search(arms, 3, run, rounds=tuning.ROUNDS)
    assert {label: (run.optimizer.lr, run.steps) for label, run in found.runs.items()} == {
        "AdamW in 24 steps": (8e-3, 24),
        "AdamW in 48 steps": (8e-3, 48),
    }
    assert "AdamW in 48 steps, best: lr=0.008 beta2=0.999" in found.report(100)
    assert found.records()["AdamW in 48 steps"]["run"]["steps"] == 48


def test_a_choice_replaces_the_beta2_that_an_optimizer_starts_from() -> None:
    start = defaults.DEFAULT  # AdamW, which starts from another beta2 than its constructor
    assert tuning.with_choice(start, tuning.Choice(1e-3, 0.999)).optimizer.settings == {"weight_decay": 0.1}
    chosen = tuning.with_choice(start, tuning.Choice(1e-3, 0.95)).optimizer.settings
    assert chosen == {"weight_decay": 0.1, "betas": [0.9, 0.95]}
    stated = Optimizer(name="adamw", lr=1e-3, settings={"betas": [0.8, 0.9]})
    assert (
        tuning.with_choice(start.changed(optimizer=stated), tuning.Choice(2e-3)).optimizer.settings == stated.settings
    )
