"""`--help` says what there is, and what is done without an option."""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ademamix
from ademamix.cli import MODULES_OF_EXTRAS, main, parser
from ademamix.cli.arguments import UsageError, run_length
from ademamix.cli.run_options import (
    add_execution_options,
    add_run_options,
    chosen_optimizer,
    execution_options,
    lists,
    with_options,
)
from ademamix.lab.comparison import defaults
from ademamix.lab.data import hub
from ademamix.lab.execution.options import Options
from ademamix.lab.models import PRESETS
from ademamix.lab.optimizers import OPTIMIZERS


def _commands() -> dict[str, argparse.ArgumentParser]:
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


@pytest.mark.parametrize("command", _commands())
def test_every_option_states_its_default(command: str) -> None:
    for action in _commands()[command]._actions:
        if action.option_strings and action.dest != "help":
            assert "(default: " in (action.help or ""), f"{command} {action.option_strings[0]}"


@pytest.mark.parametrize("command", ["compare", "sweep", "train"])
def test_help_names_every_model_optimizer_and_text_of_the_hub(command: str) -> None:
    words = {word.strip(",") for word in _commands()[command].format_help().split()}
    assert set(PRESETS) <= words
    assert set(OPTIMIZERS) <= words
    assert set(hub.PRESETS) <= words
    for preset in PRESETS.values():
        assert set(type(preset).model_fields) - {"kind"} <= words


def test_help_says_where_optimizers_start() -> None:
    lines = {line.split()[0]: line for line in lists().splitlines() if line}
    for name, start in defaults.STARTING_POINTS.items():
        settings = {"lr": start.lr, **start.settings}
        assert settings.pop("weight_decay") == 0.1
        assert lines[name].endswith(f"({', '.join(f'{setting}={value}' for setting, value in settings.items())})")
    assert "weight_decay=0.1" in lists()


@pytest.mark.parametrize("command", ["compare", "sweep", "train"])
def test_help_fits_120_columns(command: str) -> None:
    assert max(map(len, _commands()[command].format_help().splitlines())) <= 120


def test_models_and_data_are_listed_only_with_the_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ademamix.lab.models")
    monkeypatch.delitem(sys.modules, "ademamix.lab.config")
    monkeypatch.setitem(sys.modules, "pydantic", None)
    said = _commands()["compare"].format_help()
    assert "models and data are listed here once pydantic is installed: pip install 'ademamix[lab]'" in said
    assert "adamw-scheduled-beta1" in said


def test_extras_install_the_modules_for_which_they_are_named() -> None:
    tomllib = pytest.importorskip("tomllib", reason="new in Python 3.11")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    installed_by = importlib.metadata.packages_distributions()
    for extra, modules in MODULES_OF_EXTRAS.items():
        needed = project["optional-dependencies"][extra] + (project["dependencies"] if extra == "lab" else [])
        packages = {re.split("[<>=]", requirement)[0] for requirement in needed}
        assert {name.lower() for module in modules for name in installed_by[module]} == packages, extra


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"ademamix {ademamix.__version__}\n"
    assert importlib.metadata.version("ademamix") == ademamix.__version__


def test_help_loads_nothing_heavy() -> None:
    """Help is there at once, so that it is asked for; what takes long is to be imported where it is used."""
    code = """
        import contextlib, sys
        from ademamix.cli import main

        for command in sys.argv[1:]:
            with contextlib.suppress(SystemExit):
                main([*command.split(), "--help"])
            assert command or "pydantic" not in sys.modules  # commands list the settings of models, which are its
        heavy = {"torch", "numpy", "matplotlib", "jax", "optuna", "ray", "rich", "transformers"}
        heavy = (heavy | {"ademamix.lab.bench.pytorch_steps"}) & set(sys.modules)
        assert not heavy, heavy
    """
    commands = ["", *_commands()]
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *commands], stdout=subprocess.PIPE, text=True)
    assert ended.returncode == 0
    assert ended.stdout.count("usage: ademamix") == len(commands)


def _options(*arguments: str) -> argparse.Namespace:
    reader = argparse.ArgumentParser()
    add_run_options(reader)
    return reader.parse_args(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--data", "stdlib"],
        ["--schedule", "cosine"],
        ["--schedule", "cosine:warmup=200"],
        ["--schedule", "cosine:final=1e-5"],
        ["--validate-every", "400"],
    ],
    ids=" ".join,
)
def test_an_option_that_states_the_default_gives_the_default(arguments: list[str]) -> None:
    assert with_options(defaults.DEFAULT, _options(*arguments)) == defaults.DEFAULT


@pytest.mark.parametrize(
    "option", ["--model", "--steps", "--batch", "--tokenizer", "--clip", "--accumulate", "--parameters"]
)
def test_the_default_that_help_states_is_the_default(option: str) -> None:
    (action,) = (action for action in _commands()["compare"]._actions if option in action.option_strings)
    stated = re.search(r"\(default: (\S+)\)$", action.help or "")
    assert stated is not None
    assert with_options(defaults.DEFAULT, _options(option, stated[1])) == defaults.DEFAULT


def test_what_is_not_stated_follows_the_length() -> None:
    def warmup(*arguments: str) -> int:
        return with_options(defaults.DEFAULT, _options(*arguments)).schedule.warmup

    assert warmup("--steps", "5k") == 50
    assert warmup("--steps", "5k", "--schedule", "constant") == 50
    assert warmup("--steps", "5k", "--schedule", "constant:decay=10") == 50
    assert warmup("--steps", "5k", "--schedule", "cosine:warmup=0") == 0


def test_optimizers_start_from_the_same_weight_decay() -> None:
    for name in OPTIMIZERS:
        assert chosen_optimizer((name, {}), _options()).settings["weight_decay"] == 0.1
    assert chosen_optimizer(("lion", {"weight_decay": 1, "lr": 2e-4}), _options("--lr", "1")).lr == 2e-4
    assert chosen_optimizer(("lion", {}), _options("--lr", "1")).lr == 1


@pytest.mark.parametrize(("text", "steps"), [("40k", 40_000), ("7", 7), ("2x", 20_000), ("0.5x", 5_000)])
def test_a_length_is_a_number_or_a_multiple(text: str, steps: int) -> None:
    assert run_length(text, base=10_000) == steps


@pytest.mark.parametrize("text", ["0", "-1", "x", "0x", "-2x", "infx", "2.5", "many", "True", "[1]"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="or a multiple of --steps such as 2x, got "):
        run_length(text, base=10_000)


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_sweep_of_too_few_is_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--tune", count])
    assert ended.value.code == 2
    assert "must be at least 3" in capsys.readouterr().err


def test_reproduce_has_the_options_of_execution() -> None:
    known = {option for action in _commands()["reproduce"]._actions for option in action.option_strings}
    assert {"--threads", "--device", "--save-every", "--logits-memory", "--wandb", "--out"} <= known
    assert {"--processes", "--ray"} <= known


def test_options_of_execution_reach_the_run(tmp_path: Path) -> None:
    reader = argparse.ArgumentParser()
    add_execution_options(reader, threads=1)
    out = ["--out", str(tmp_path)]
    assert execution_options(reader.parse_args(out)) == Options(tmp_path)
    chosen = execution_options(reader.parse_args([*out, "--logits-memory", "0.5", "--save-every", "5"]))
    assert chosen == Options(tmp_path, logits_bytes=1 << 29, save_every=5.0)
