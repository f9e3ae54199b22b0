"""Recipes have the paper's numbers at paper scale, and share runs and their beginnings at laptop scale."""

from __future__ import annotations

from ademamix.lab.config import ConstantThenLinear, Run
from ademamix.lab.evaluation import PAPER_TASKS
from ademamix.lab.recipes import ScaleName, load
from ademamix.lab.reproduction.scale import SCALES
from ademamix.lab.runs import beginnings


def arms(name: str, scale: ScaleName, panel: int = 0) -> dict[str, Run]:
    return dict([*load(name)(SCALES[scale])][panel].arms)


def test_constant_lr() -> None:
    paper = arms("constant-lr", "paper")
    assert sorted({run.steps for run in paper.values()}) == [1_100_000, 1_200_000, 1_400_000, 1_500_000]
    assert {run.optimizer.lr for run in paper.values()} == {1e-4}
    run = paper["beta3=0.99999 1M+200k"]
    assert run.schedule == ConstantThenLinear(kind="constant", warmup=3000, decay=200_000)
    settings = {"weight_decay": 0.1, "betas": [0.9, 0.999, 0.99999], "alpha": 5, "total_steps": 500_000}
    assert run.optimizer.settings == settings
    assert {beginnings.key(each, 1_000_000) for name, each in paper.items() if "AdamW" in name} == {
        beginnings.key(next(iter(paper.values())), 1_000_000)
    }


def test_forgetting() -> None:
    paper = arms("forgetting", "paper")
    assert list(paper)[:4] == ["AdamW, no B", "AdEMAMix, no B", "AdamW, B at 90,000", "AdEMAMix, B at 90,000"]
    assert {run.data.held_out_batches for run in paper.values()} == {1}
    steps = [run.probes[1].step for name, run in paper.items() if name.startswith("AdamW, B")]
    assert steps == [90_000, 170_000, 190_000, 230_000]
    laptop = arms("forgetting", "laptop")
    injected = laptop["AdEMAMix, B at 7,000"]
    assert beginnings.key(injected, 6999) == beginnings.key(laptop["AdEMAMix, no B"], 6999)


def test_forgetting_evolution() -> None:
    probes = arms("forgetting-evolution", "paper")["AdamW"].probes
    assert [probe.step for probe in probes] == [*range(30_000, 250_001, 10_000)]
    assert {probe.until - probe.step for probe in probes} == {10_000}


def test_forgetting_constant_lr() -> None:
    paper = arms("forgetting-constant-lr", "paper")
    assert {run.steps for run in paper.values()} == {300_000}
    assert {run.schedule for run in paper.values()} == {ConstantThenLinear(kind="constant", warmup=3000, decay=50_000)}
    laptop = arms("forgetting-constant-lr", "laptop")
    before, during = (run.probes[1].step for name, run in laptop.items() if name.startswith("AdamW, B"))
    assert before < 20_000 - laptop["AdamW, no B"].schedule.decay < during < 20_000


def test_switches() -> None:
    small, large = (arms("switch-from-adamw", "paper", panel) for panel in (0, 1))
    for run, lr, alpha in ((small["switched at 300,000"], 1e-3, 2), (large["switched at 400,000"], 5e-4, 1)):
        (phase,) = run.phases
        assert phase.optimizer.lr == run.optimizer.lr == lr
        assert phase.optimizer.settings == {"alpha": alpha, "beta3": 0.9999}
    schedules = arms("switch-schedules", "paper")
    assert schedules["T = 0"] == small["switched at 300,000"]
    assert schedules["T = 25,000"].phases[0].optimizer.settings["beta3_warmup"] == 25_000
    back = arms("switch-to-adamw", "paper")
    assert {run.batch for run in back.values()} == {32}
    assert [run.phases[0].step for name, run in back.items() if "then" in name] == [128_000] * 2


def test_larger_beta1() -> None:
    paper = arms("single-ema", "paper")
    assert paper["beta1 = 0.9999"].optimizer.settings["betas"] == [0.9999, 0.999]
    assert paper["scheduled beta1 = 0.99999"].optimizer.settings["betas"] == [0.99999, 0.9999]
    (phase,) = arms("single-ema-resume", "paper")["scheduled beta1 = 0.999"].phases
    settings = {"weight_decay": 0.1, "betas": [0.999, 0.999], "total_steps": 200_000}
    assert (phase.step, phase.optimizer.settings) == (300_000, settings)


def test_no_schedules() -> None:
    paper = arms("no-schedules", "paper")
    assert {(run.batch, run.optimizer.settings["weight_decay"]) for run in paper.values()} == {(32, 0)}
    assert {run.probes[0].span for run in paper.values()} == {1000}
    bare = paper["no schedules, alpha=2"].optimizer.settings
    assert (bare["alpha_warmup"], bare["beta3_warmup"], bare["betas"]) == (0, 0, [0.9, 0.999, 0.9999])


def test_vit() -> None:
    panels = [*load("vit")(SCALES["paper"])]
    sources = ["hub:timm/imagenet-w21-p"] * 2 + ["hub:ILSVRC/imagenet-1k"]
    chosen = zip(panels, sources, (384, 768, 768), (3e-3, 1e-3, 5e-3), (0.03, 0.1, 0.3), strict=True)
    for panel, source, width, lr, decay in chosen:
        for run in panel.arms.values():
            model = run.model
            assert (model.width, model.layers, model.heads) == (width, 12, width // 64)
            assert (model.patch, model.image, model.channels, model.dropout) == (16, 224, 3, 0.1)
            assert (run.data.source, run.data.augment, run.data.examples) == (source, True, None)
            assert (run.steps, run.batch, run.autocast) == (100_000, 4096, True)
            assert (run.optimizer.lr, run.optimizer.settings["weight_decay"]) == (lr, decay)
            assert run.optimizer.settings["betas"] == [0.9, 0.999]
        adamw, *ademamix = panel.arms.values()
        assert adamw.optimizer.name == "adamw"
        pairs = [(run.optimizer.settings["alpha"], run.optimizer.settings["beta3"]) for run in ademamix]
        assert sorted(pairs) == [(alpha, beta3) for alpha in (1, 5, 10, 15, 20) for beta3 in (0.999, 0.9999)]
    for images, epochs in ((11_060_223, 37), (1_281_167, 320)):  # as many as the paper counts
        assert round(100_000 * 4096 / images) == epochs


def test_vit_at_laptop_scale() -> None:
    panels = [*load("vit")(SCALES["laptop"])]
    runs = [panel.arms["AdamW"] for panel in panels]
    assert [run.data.examples for run in runs] == [None, None, 1000]
    assert [run.data.source for run in runs] == ["cifar10"] * 3, "no path of this machine"
    for panel in panels:
        assert set(panel.arms) == {*panel.tune, *panel.follow}
        assert "AdamW" in panel.tune
        assert {run.optimizer.settings["beta3"] for run in list(panel.arms.values())[1:]} == {0.95, 0.995}


def test_in_context() -> None:
    (panel,) = load("in-context")(SCALES["paper"])
    during, after = panel.arms["AdEMAMix"].probes
    assert {(run.steps, run.batch, run.model.width) for run in panel.arms.values()} == {(1_000_000, 128, 2048)}
    assert (during.tasks, during.every) == (("mmlu_continuation", "rewardbench", "arc_challenge", "arc_easy"), 50_000)
    assert after.every == 1_000_000
    assert {*during.tasks, *after.tasks} == {*PAPER_TASKS, "mmlu_continuation"}
    assert len(PAPER_TASKS) == 15


def test_baselines_are_shared_at_laptop_scale() -> None:
    lm = SCALES["laptop"].lm("110m")
    for name in ("switch-from-adamw", "switch-schedules", "switch-to-adamw", "single-ema", "single-ema-resume"):
        assert arms(name, "laptop")["AdamW"] == lm.run("adamw")
    assert arms("switch-from-adamw", "laptop")["AdEMAMix from scratch"] == lm.run("ademamix")
    assert arms("single-ema", "laptop")["AdEMAMix"] == lm.run("ademamix")
