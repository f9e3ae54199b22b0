"""In-context evaluation of language models with lm-eval, during training and after it.

A task is named as in lm-eval, or it is one of ours: small ones made of a run's validation text, which need no network
(:mod:`~ademamix.lab.evaluation.code_tasks`), and those in `definitions/`, which lm-eval does not have.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ademamix.lab import data
from ademamix.lab.data import DataError
from ademamix.lab.data.hub import cannot_be_had
from ademamix.lab.evaluation import code_tasks

if TYPE_CHECKING:
    from torch import Tensor

    from ademamix.lab.data import Dataset
    from ademamix.lab.data.windows import Windows

DEFINITIONS = Path(__file__).parent / "definitions"
PAPER_TASKS = {
    "arc_challenge": "ARC-Challenge",
    "arc_easy": "ARC-Easy",
    "boolq": "BoolQ",
    "hellaswag": "HellaSwag",
    "logiqa": "LogiQA",
    "mathqa": "MathQA",
    "winogrande": "Winogrande",
    "mmlu": "MMLU",
    "openbookqa": "OpenbookQA",
    "piqa": "PIQA",
    "pubmedqa": "PubmedQA",
    "rewardbench": "RewardBench",
    "rewardbench_reasoning": "RewardBench (reasoning)",
    "sciq": "Sciq",
    "truthfulqa_mc2": "TruthfulQA",
}
"""The paper's table icl_results: its names by lm-eval's."""
PAPER_TASKS_DURING_TRAINING = ("mmlu_continuation", "rewardbench", "arc_challenge", "arc_easy")
"""The paper's figure icl_results, for which each answer of MMLU is scored as a continuation of the question."""


def metric(task: str) -> str:
    """Return the name under which the accuracy in a task is recorded.

    >>> metric("code_names")
    'accuracy_on_code_names'
    """
    return f"accuracy_on_{task}"


def accuracies(
    predict: Callable[[Tensor], Tensor], text: Dataset, tasks: Sequence[str], *, batch: int = 32
) -> dict[str, float]:
    """Return the share of right answers in each task.

    `predict` maps token ids (batch, length) to logits (batch, length, vocabulary), and `text` is what the model was
    trained on: its tokenizer and context are the model's, and its validation split has the items of our tasks.
    """
    loaded = load(tasks, text)
    from lm_eval.evaluator import evaluate

    from ademamix.lab.evaluation.language_model import LabModel

    windows = _windows(text)
    model = LabModel(predict, windows.tokenizer(), context=windows.context, batch=batch)
    with _silent():
        found = evaluate(model, loaded, bootstrap_iters=0, log_samples=False)
    return {task: float(found["results"][task]["acc,none"]) for task in tasks}


def after_training(run: Path, tasks: Sequence[str], cache: Path) -> dict[str, float]:
    """Return the share of right answers of a finished run, by its folder; `cache` has the tokens of its text."""
    import torch
    from transformers import AutoModelForCausalLM

    from ademamix.lab.runs.record import open_folder

    config = open_folder(run).config
    text = data.load(config.data, model=config.model, batch=config.batch, seed=config.seed, cache=cache)
    load(tasks, text)  # whatever is wrong with them is said before a large model is read
    model = AutoModelForCausalLM.from_pretrained(run / "model").eval()
    with torch.no_grad():
        return accuracies(lambda ids: model(ids).logits, text, tasks)


def load(tasks: Sequence[str], text: Dataset) -> Any:
    """Return tasks as lm-eval takes them; those of our own are made of the validation split of the text."""
    if importlib.util.find_spec("lm_eval") is None:
        raise DataError("evaluation needs lm-eval, which is not installed: pip install 'ademamix[evaluation]'")
    documents = _windows(text).validation_documents() if set(tasks) & {*code_tasks.TASKS} else []
    with _silent():
        ours = {name: _code_task(name, documents) for name in tasks if name in code_tasks.TASKS}
        named = [name for name in tasks if name not in ours]
        loaded = _load_named(named) if named else {"tasks": {}, "groups": {}, "group_map": {}}
    return {**loaded, "tasks": ours | loaded["tasks"]}


@functools.cache
def task_manager() -> Any:
    """Return lm-eval's list of its tasks and of those in `definitions/`; reading thousands of files takes a while."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=DEFINITIONS)


def _load_named(names: list[str]) -> Any:
    manager = task_manager()
    if unknown := [name for name in names if name not in manager.all_tasks]:
        raise DataError(
            f"there is no task {unknown[0]!r}: give {', '.join(code_tasks.TASKS)}, or one that `lm_eval ls tasks` lists"
        )
    try:
        return manager.load(names)
    except Exception as error:  # whatever the libraries raise: their errors have no class in common
        raise cannot_be_had(f"the data of the tasks {', '.join(names)}", error) from error


def _code_task(name: str, documents: Sequence[str]) -> Any:
    from datasets import Dataset as Rows  # type: ignore[import-untyped]
    from lm_eval.api.task import ConfigurableTask

    rows = Rows.from_list([item._asdict() for item in code_tasks.items(name, documents)])
    return ConfigurableTask(
        config={
            "task": name,
            "output_type": "multiple_choice",
            "custom_dataset": lambda **_: {"test": rows},
            "test_split": "test",
            "doc_to_text": "prompt",
            "doc_to_choice": "choices",
            "doc_to_target": "answer",
            "target_delimiter": "",
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        }
    )


def _windows(text: Dataset) -> Windows:
    from ademamix.lab.data.windows import Windows

    if not isinstance(text, Windows):
        raise DataError("only language models can be evaluated on these tasks: train one, on text")
    return text


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep lm-eval from writing its progress bars and advice between the lines of the lab."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)
