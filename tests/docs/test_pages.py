"""The numbers, names and figures of the pages against the code and the results that they are of."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import runpy
import statistics
from collections import Counter
from pathlib import Path

import optax
import pytest
from transformers.training_args import OptimizerNames

from ademamix import half_life, recommend
from ademamix.lab.recipes.horizon_rule import SHARES
from ademamix.published import RUNS, PublishedRun
from ademamix.pytorch.integrations.huggingface import read_optim_args
from ademamix.recommendation import LARGE_MODEL, LONG_RUN, SHORTEST_RUN
from ademamix.schedules import HORIZON_FRACTION, PAPER_BETA3, beta3_for_horizon

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def table(page: str, section: str) -> list[list[str]]:
    """Return the rows of the first table of a section, without its header; links are their texts."""
    lines = text_of(page).split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
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


def test_settings_in_short() -> None:
    rows = {row[0]: row[1:] for row in table("settings.md", "In short")}
    short, long, tuned = recommend(LONG_RUN - 1), recommend(LONG_RUN), recommend(LONG_RUN, parameters=LARGE_MODEL)
    large = f"{long.alpha:g} in pre-training from {LONG_RUN:,} steps on and in fine-tuning"
    assert rows["alpha"] == [
        f"{short.alpha:g}",
        f"{large}; {tuned.alpha:g} from {LARGE_MODEL // 10**9}B parameters on with a cosine",
    ]
    assert recommend(LONG_RUN - 1, phase="finetune").alpha == long.alpha
    assert rows["learning rate"][0].startswith("half") == (short.lr_factor == long.lr_factor == 0.5)


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


def test_peaks_of_a_training_step() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "peak_memory.json").read_text())["parts"]
    found = {}
    for optimizer, state, parameters, kept, released, *_formulas in table(
        "memory.md", "A whole training step, measured"
    ):
        title = optimizer if optimizer == "AdamW" else f"{optimizer}, {state}"
        found |= {f"{title} | {parameters} | kept": kept, f"{title} | {parameters} | released": released}
    assert found == {name: f"{part['bytes'] / part['parameters']:.2f}" for name, part in measured.items()}
