"""The numbers, names and figures of the pages against the code and the results that they are of."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
import runpy
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import optax
import pytest
from transformers.training_args import OptimizerNames

from ademamix import half_life, recommend
from ademamix.hyperparameters import BETAS
from ademamix.lab.comparison.arms import Difference
from ademamix.lab.comparison.worth import speed_up
from ademamix.lab.config import Run, read
from ademamix.lab.recipes import load
from ademamix.lab.recipes.horizon_rule import SHARES
from ademamix.lab.reproduction.scale import SCALES
from ademamix.published import RUNS, PublishedRun
from ademamix.pytorch.integrations.huggingface import read_optim_args
from ademamix.recommendation import CLIPS_TIGHTLY, LARGE_MODEL, LONG_RUN, SHORTEST_RUN
from ademamix.schedules import HORIZON_FRACTION, PAPER_BETA3, beta3_for_horizon

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HORIZON_STUDY = {panel.figure: panel.arms for panel in load("horizon-rule")(SCALES["laptop"])}


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def table(page: str, section: str, *, level: int = 2) -> list[list[str]]:
    """Return the rows of the first table of a section, without its header; links are their texts."""
    lines = text_of(page).split(f"\n{'#' * level} {section}\n")[1].split("\n## ")[0].splitlines()
    _header, _rule, *rows = (line for line in lines if line.startswith("|"))
    cells = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]
    return [[re.sub(r"\[(.+)\]\(.+\)", r"\1", cell) for cell in row] for row in cells]


def counted(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size and number % (size // 100) == 0:
            return f"{number / size:g}{unit}"
    return f"{number:,}"


def ranged(values: tuple[float, float], *, form: str = "{:g}") -> str:
    return " to ".join(dict.fromkeys(form.format(value) for value in values))


def row_of(run: PublishedRun) -> list[str]:
    kind = {"pretrain": "", "finetune": ", fine-tuning", "switch": ", after a switch"}[run.phase]
    source = run.source.split(",")[0] + kind
    return [
        source,
        counted(run.parameters),
        " to ".join(dict.fromkeys(map(counted, run.steps))),
        run.schedule,
        f"{run.lr:g}",
        ranged(run.beta3),
        ranged(run.alpha),
        "the run" if run.warmup is None else counted(run.warmup),
        "not stated" if run.clip is None else f"{run.clip:g}",
        "not stated" if run.weight_decay is None else f"{run.weight_decay:g}",
    ]


def test_published_settings() -> None:
    assert table("settings.md", "Published settings") == [row_of(run) for run in RUNS]


def test_beta3_by_the_length_of_the_run() -> None:
    rows = table("settings.md", "beta3 and the length of the run")
    assert [row[1:] for row in rows] == [
        [f"{beta3:g}", f"{1 / (1 - beta3):,.0f}", f"{half_life(beta3):,.0f}"]
        for beta3 in (beta3_for_horizon(int(row[0].split()[0].replace(",", "")), 0.9) for row in rows)
    ]
    longest = int(rows[-1][0].split()[0].replace(",", ""))
    assert beta3_for_horizon(longest, 0.9) == PAPER_BETA3 > beta3_for_horizon(longest - 1, 0.9)


@pytest.mark.parametrize("page", ["idea.md", "optax.md", "pytorch.md", "settings.md"])
def test_the_rule_is_that_of_the_code(page: str) -> None:
    text = text_of(page)
    stated = re.findall(r"1/\(([\d.]+) T\)", text)
    assert stated
    assert set(stated) == {f"{HORIZON_FRACTION:g}"}
    assert set(re.findall(r"([\d.]+)% of\s+the run", text)) <= {f"{share * 100:g}" for share in SHARES}


@pytest.mark.parametrize(
    ("page", "words"), [("start.md", "fewer than"), ("idea.md", "Below"), ("troubleshooting.md", "Below")]
)
def test_the_shortest_run_is_that_of_the_code(page: str, words: str) -> None:
    assert f"{words} {SHORTEST_RUN:,} steps" in text_of(page)


def test_the_learning_rate_cites_the_study() -> None:
    section = text_of("settings.md").split("\n## The horizon study\n")[1].split("\n## ")[0]
    rates = re.findall(r"^\| [\d,]+ \| ([\d.]+) \| ([\d.]+) \|", section, flags=re.MULTILINE)
    found = Counter(float(ademamix) / float(adamw) for adamw, ademamix in rates)
    assert found.total() == 24
    half, others = found.pop(0.5), ", ".join(f"{factor:g} in {found[factor]}" for factor in (0.25, 0.125))
    stated = f"0.5 in {half} of 24 searches with small models, {others} and 1 in {found[1.0]}"
    assert stated in str(recommend(10_000).reasons)


RECORDS = ROOT / "benchmarks" / "results" / "laptop"


@functools.cache
def recorded() -> dict[str, dict[int, tuple[Run, float]]]:
    """Return the runs that are recorded at laptop scale and their last losses, by all but their seeds, and by seed."""
    found: dict[str, dict[int, tuple[Run, float]]] = {}
    for record in (json.loads(file.read_text()) for file in RECORDS.glob(f"{'[0-9a-f]' * 16}.json")):
        run = read(Run, json.dumps(record["run"]))
        found.setdefault(without(run, "seed"), {})[run.seed] = (run, record["result"]["validation_loss"])
    return found


def without(run: Run, *names: str) -> str:
    """Return the config of a run but for some fields of it, or of its optimizer."""
    fields = run.model_dump(mode="json")
    for part in (fields, fields["optimizer"], fields["optimizer"]["settings"]):
        for name in names:
            part.pop(name, None)
    return json.dumps(fields, sort_keys=True)


def searched(planned: Run, *names: str) -> tuple[float, list[float]] | None:
    """Return the rate that a search of those settings found for a run, and its losses on the seeds of comparisons.

    None if there are no records. The search has a seed of its own, so that only what it found is there on the others.
    """
    seeds = SCALES["laptop"].seeds
    found = [
        by_seed
        for by_seed in recorded().values()
        if set(seeds) <= set(by_seed)
        and without(by_seed[seeds[0]][0], "seed", *names) == without(planned, "seed", *names)
        and by_seed[seeds[0]][0].optimizer.settings.get("betas", BETAS)[0] == BETAS[0]
    ]
    assert len(found) <= 1
    return (found[0][seeds[0]][0].optimizer.lr, [found[0][seed][1] for seed in seeds]) if found else None


def of_share(steps: int, share: float = HORIZON_FRACTION) -> str:
    return f"AdEMAMix, {share:.3g} T, {steps:,}"


@pytest.mark.parametrize("figure", HORIZON_STUDY)
def test_the_tables_of_the_study_are_those_of_the_records(figure: str) -> None:
    runs = HORIZON_STUDY[figure]
    baselines = [run for name, run in runs.items() if name == f"AdamW, {run.steps:,}"]
    adamw = {run.steps: found for run in baselines if (found := searched(run, "lr", "betas"))}
    expected = []
    for steps in (run.steps for run in baselines if of_share(run.steps) in runs):
        rate, ours = searched(runs[of_share(steps)], "lr") or (0.0, [])
        faster = str(speed_up(steps, ours, {length: losses for length, (_, losses) in adamw.items()}))
        lower = sum(our < their for our, their in zip(ours, adamw[steps][1], strict=True))
        ends = [f"{statistics.fmean(losses):.3f}" for losses in (adamw[steps][1], ours)]
        known = "not known" if faster == "over 1" else faster
        expected.append([f"{steps:,}", f"{adamw[steps][0]:g}", f"{rate:g}", *ends, f"{lower} of 3", known])
    section = text_of("settings.md").split("\n## The horizon study\n")[1].split("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, flags=re.MULTILINE)
    rows = [line.strip("| ").split(" | ") for line in tables[[*HORIZON_STUDY].index(figure)].splitlines()[2:]]
    assert rows == expected


def test_other_shares_are_those_of_the_records() -> None:
    """By length, and as means from some length on; bold where the difference is not chance by the rule of the lab."""
    differences: dict[tuple[int, float, int], list[float]] = {}
    for number, runs in enumerate(HORIZON_STUDY.values()):
        for share in (min(SHARES), max(SHARES)):
            for steps in (run.steps for name, run in runs.items() if name == of_share(run.steps, share)):
                rate, rule = searched(runs[of_share(steps)], "lr") or (0.0, [])
                _rate, other = searched(with_rate(runs[of_share(steps, share)], rate)) or (0.0, [])
                differences[number, share, steps] = [a - b for a, b in zip(other, rule, strict=True)]

    def cell(number: int, share: float, lengths: Iterable[int]) -> str:
        each = [differences[number, share, steps] for steps in lengths if (number, share, steps) in differences]
        if not each:
            return ""
        difference = Difference([statistics.fmean(seed) for seed in zip(*each, strict=True)])
        mark = "" if difference.may_be_chance else "**"
        return f"{mark}{difference.mean:+.4f}{mark} ± {difference.uncertainty:.4f}"

    lengths = sorted({steps for _, _, steps in differences})
    rows = {f"{steps:,}": [steps] for steps in lengths}
    rows |= {f"mean from {least:,} on": [s for s in lengths if s >= least] for least in (500, 2000, 3000, 5000)}
    columns = [(number, share) for number in range(len(HORIZON_STUDY)) for share in (min(SHARES), max(SHARES))]
    expected = [[title, *(cell(*column, chosen) for column in columns)] for title, chosen in rows.items()]
    assert table("settings.md", "Other shares, by length", level=3) == expected


def with_rate(run: Run, lr: float) -> Run:
    return run.model_copy(update={"optimizer": run.optimizer.model_copy(update={"lr": lr})})


def test_settings_in_short() -> None:
    rows = {row[0]: row[1:] for row in table("settings.md", "In short")}
    short, long, tuned = recommend(LONG_RUN - 1), recommend(LONG_RUN), recommend(LONG_RUN, parameters=LARGE_MODEL)
    large = f"{long.alpha:g} in pre-training from {LONG_RUN:,} steps on and in fine-tuning"
    assert rows["alpha"] == [
        f"{short.alpha:g}",
        f"{large}; {tuned.alpha:g} from {LARGE_MODEL // 10**9}B parameters on with a cosine",
    ]
    assert recommend(LONG_RUN - 1, phase="finetune").alpha == long.alpha
    tuned_again = recommend(LONG_RUN, phase="finetune")
    assert (short.lr_factor, long.lr_factor, tuned_again.lr_factor) == (0.5, 0.5, 1)
    assert rows["learning rate"][0] == "half of a tuned AdamW's; in fine-tuning, the same"
    small, large_model = (recommend(LONG_RUN, parameters=CLIPS_TIGHTLY - less).clip for less in (1, 0))
    by_size = f"{small:g}, and {large_model:g} from {CLIPS_TIGHTLY // 10**6}M parameters on"
    assert rows["clipping"] == [
        "that of AdamW",
        f"if the size is known, {by_size}; in fine-tuning {tuned_again.clip:g}",
    ]
    assert short.clip is None
    assert rows["beta1, beta2"][0] == ", ".join(f"{beta:g}" for beta in short.betas[:2])


def test_precision() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "precision.json").read_text())["parts"]
    rows = [[name, f"{part['theta']:.1e}", f"{part['slow']:.1e}"] for name, part in measured.items()]
    assert table("precision.md", "How far from exact") == rows


def test_precision_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    interval_of = importlib.import_module("storage_quality").mean_and_half_width
    found: dict[str, list[str]] = {}
    for study in ("parameter_precision", "parameter_precision_continued"):
        measured = json.loads((ROOT / "benchmarks" / "results" / f"{study}.json").read_text())["parts"]
        losses: dict[str, list[float]] = {}
        for name, part in measured.items():
            losses.setdefault(name.rsplit(" ", 1)[0], []).append(part["validation"])
        for arm, own in losses.items():
            mean, half_width = interval_of([x - y for x, y in zip(own, losses["fp32"], strict=True)])
            difference = "" if arm == "fp32" else f"{mean:+.4f} ± {half_width:.4f}"
            found.setdefault(arm, [arm]).extend((f"{statistics.fmean(own):.4f}", difference))
    rows = table("precision.md", "Masters of 24 bits")
    assert [[name, *losses] for name, _bytes, *losses in rows] == [*found.values()]


def test_figures_are_up_to_date(tmp_path: Path) -> None:
    runpy.run_path(str(DOCS / "figures" / "make.py"))["main"](tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert drawn
    assert [file.name for file in drawn if file.read_bytes() != (DOCS / "figures" / file.name).read_bytes()] == []


def test_arguments_of_optax() -> None:
    """Those that are installed with the tests; the others were read from packages that are not."""
    stated = [row[1] for row in table("migrating.md", "Optax's own `optax.contrib.ademamix`")]
    named = dict(re.findall(r"`(\w+)(?:=([\d.e-]+))?`", " ".join(stated)))
    found = inspect.signature(optax.contrib.ademamix).parameters
    assert set(named) == set(found)
    for name, default in named.items():
        assert not default or float(default) == found[name].default


def test_names_of_transformers() -> None:
    section = text_of("migrating.md").split("## Hugging Face Trainer's `optim`")[1].split("\n## ")[0]
    stated = set(re.findall(r'"((?:paged_)?ademamix\w*)"', section))
    assert stated == {name.value for name in OptimizerNames if "ademamix" in name.value}
    names = re.findall(r"`(\w+)`", section.split("The names of `optim_args` are understood as they are:")[1])
    assert read_optim_args(", ".join(f"{name}=1" for name in names))


def test_names_of_optim_args() -> None:
    with pytest.raises(ValueError, match="write NAME=VALUE with one of") as refused:
        read_optim_args("unknown=1")
    stated = text_of("integrations.md").split("or are in `optim_args`:")[1].split("Any other name is an error.")[0]
    assert re.findall(r"`(\w+)`", stated) == str(refused.value).split(" one of ")[1].split(", ")


def test_peaks_of_a_training_step() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "peak_memory.json").read_text())["parts"]
    found = {}
    for optimizer, state, parameters, kept, released, *_formulas in table(
        "memory.md", "A whole training step, measured"
    ):
        title = optimizer if optimizer == "AdamW" else f"{optimizer}, {state}"
        found |= {f"{title} | {parameters} | kept": kept, f"{title} | {parameters} | released": released}
    assert found == {name: f"{part['bytes'] / part['parameters']:.2f}" for name, part in measured.items()}
