"""Evaluation with lm-eval: the model as lm-eval sees it against a direct computation, tasks, the probe, the presets."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset as Rows
from lm_eval.api.instance import Instance
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ademamix.lab import data, evaluation
from ademamix.lab.data import DataError
from ademamix.lab.data.tokenizers import Bytes
from ademamix.lab.evaluation import code_tasks
from ademamix.lab.evaluation.language_model import LabModel, windows_of
from ademamix.lab.execution.options import Options
from ademamix.lab.models.networks import build_model, logits
from ademamix.lab.runs.record import RunFolder
from ademamix.lab.train import train
from lab_runs import TINY, changed

CONTEXT = TINY.model.context
CODE = changed(TINY, data={"kind": "text"}, steps=6, validate_every=6)
"""Of the standard library, which has all that the tasks ask for."""


def requests(kind: str, *arguments: tuple) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in arguments]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(1)
    model = build_model(TINY.model, outputs=256)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)  # so that predictions differ from each other
    return model.eval()


@pytest.fixture(scope="module")
def model(network) -> LabModel:
    def of_network(ids: torch.Tensor) -> torch.Tensor:
        assert ids.shape[1] <= CONTEXT
        with torch.no_grad():
            return logits(network, ids)

    return LabModel(of_network, Bytes(), context=CONTEXT, batch=3)


def directly(network, ids: list[int], start: int) -> tuple[float, bool]:
    """Score ids one by one, each from all ids before it; they must fit into the context."""
    total, greedy = 0.0, True
    for place in range(start, len(ids)):
        with torch.no_grad():
            row = network(torch.tensor([ids[:place]])).logits[0, -1].double()
        total += (row[ids[place]] - row.logsumexp(0)).item()
        greedy &= int(row.argmax()) == ids[place]
    return total, greedy


def test_likelihoods_are_those_of_a_direct_computation(network, model: LabModel) -> None:
    pairs = [("def f(", ")"), ("def f(", "]"), ("x = ", "1\n"), ("", "import"), ("é", "ü!"), ("a b", " c d e")]
    found = model.loglikelihood(requests("loglikelihood", *pairs))
    for (context, continuation), (likelihood, greedy) in zip(pairs, found, strict=True):
        whole = list(f"{context}{continuation}".encode())
        # lm-eval counts the spaces at the end of a context to what follows
        start = len(context.rstrip().encode())
        expected = directly(network, whole if context else [0, *whole], start or 1)
        assert likelihood == pytest.approx(expected[0], abs=1e-4)
        assert greedy == expected[1]


def test_what_does_not_fit_loses_its_beginning(model: LabModel) -> None:
    long, short = requests("loglikelihood", ("z" * 50 + "abcdefgh", "ijkl"), ("zzzzz" + "abcdefgh", "ijkl"))
    first, second = model.loglikelihood([long, short])
    assert len("zzzzzabcdefghijkl") == CONTEXT + 1
    assert first == second


def test_continuations_are_greedy() -> None:
    def counts(ids: torch.Tensor) -> torch.Tensor:
        """After each byte comes the next, after "z" the end of the document."""
        after = torch.where(ids == ord("z"), 0, ids + 1)
        return torch.nn.functional.one_hot(after, 257).float()

    model = LabModel(counts, Bytes(), context=CONTEXT)
    settings = [
        ({"until": ["ij", "h"], "max_gen_toks": 9}, "fg"),
        ({"until": "gh", "max_gen_toks": 9}, "f"),
        ({"until": [], "max_gen_toks": 3}, "fgh"),
        ({}, "fghijklmnopqrstuvwxyz"),  # longer than the context
    ]
    asked = requests("generate_until", *(("de", chosen) for chosen, _ in settings))
    assert model.generate_until(asked) == [written for _, written in settings]
    likelihoods = model.loglikelihood(requests("loglikelihood", ("de", "fgh"), ("de", "fgi")))
    assert [greedy for _, greedy in likelihoods] == [True, False]
    with pytest.raises(ValueError, match="greedily only"):
        model.generate_until(requests("generate_until", ("de", {"do_sample": True})))


@pytest.mark.parametrize("length", [1, CONTEXT - 1, CONTEXT, CONTEXT + 1, 2 * CONTEXT, 2 * CONTEXT + 5])
def test_whole_texts_are_cut_as_lm_eval_cuts_them(network, model: LabModel, length: int) -> None:
    text = "".join(chr(ord("a") + place % 26) for place in range(length))
    ids = tuple(text.encode())
    pairs = [*get_rolling_token_windows(list(ids), prefix_token=0, max_seq_len=CONTEXT, context_len=1)]
    ours = [(list(window.inputs), list(window.targets)) for window in windows_of((0, *ids), 1, CONTEXT)]
    assert ours == pairs
    expected = 0.0
    for context, targets in map(make_disjoint_window, pairs):
        expected += directly(network, [*context, *targets], len(context))[0]
    assert model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,))) == [
        pytest.approx(expected, abs=1e-3)
    ]


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory):
    cache = tmp_path_factory.mktemp("data")
    return data.load(CODE.data, model=CODE.model, batch=2, seed=0, cache=cache)


@pytest.mark.parametrize("task", code_tasks.TASKS)
def test_tasks_are_made_of_validation_text(task: str, windows) -> None:
    documents = windows.validation_documents()
    found = code_tasks.items(task, documents)
    assert code_tasks.ITEMS * 0.9 <= len(found) <= code_tasks.ITEMS
    assert found == code_tasks.items(task, documents)
    counts = {len(item.choices) for item in found}
    assert counts == {{"code_quotes": 2, "code_brackets": 3}.get(task, 4)}
    assert all(len(set(item.choices)) == len(item.choices) for item in found)
    if task != code_tasks.LETTERED:
        text = "\0".join(documents)
        assert all(item.prompt + item.choices[item.answer] in text for item in found)
        assert all(len(item.prompt + choice) <= 64 for item in found for choice in item.choices)


def test_validation_documents_are_the_validation_split(windows) -> None:
    documents = windows.validation_documents()
    batches = [batch.inputs.numpy() for batch in windows.validation(10**9, chunk=1000)]
    text = bytes(np.concatenate(batches).astype(np.uint8).ravel())
    assert "\0".join(documents).encode().startswith(text[:100_000])
    assert len(documents) > 10


@pytest.mark.parametrize(
    "task", ["code_brackets", "code_quotes", "code_indentation", "code_keywords", code_tasks.LETTERED]
)
def test_no_preference_for_a_kind_of_answer_pays(task: str, windows) -> None:
    """Whoever always gives the same answer is right as often as by guessing."""
    found = code_tasks.items(task, windows.validation_documents())
    kinds = ["ABCD"[item.answer] if task == code_tasks.LETTERED else item.choices[item.answer] for item in found]
    if task == "code_indentation":
        kinds = [str(len(kind) - len(kind.lstrip())) for kind in kinds]
    counts = [kinds.count(kind) for kind in set(kinds)]
    if task == code_tasks.LETTERED:
        assert max(counts) - min(counts) <= 1
    else:
        assert max(counts) == code_tasks.ITEMS // len(counts)
        assert sum(counts) > 0.9 * code_tasks.ITEMS  # one or two kinds may be rare
    assert len(counts) == {"code_quotes": 2, "code_brackets": 3, "code_keywords": len(code_tasks.KEYWORDS)}.get(task, 4)


def test_names_have_been_seen_and_the_others_not(windows) -> None:
    for item in code_tasks.items("code_names", windows.validation_documents()):
        seen = [choice[:-1] in item.prompt for choice in item.choices]
        assert seen == [number == item.answer for number in range(4)]


def test_accuracies_are_the_share_of_right_answers(windows) -> None:
    def knows_nothing(ids: torch.Tensor) -> torch.Tensor:
        """Every byte is as likely, so the shortest answer is the likeliest."""
        return torch.zeros(*ids.shape, 256)

    found = evaluation.accuracies(knows_nothing, windows, ["code_keywords", "code_quotes"])
    items = code_tasks.items("code_keywords", windows.validation_documents())
    right = [int(np.argmin([len(choice) for choice in item.choices])) == item.answer for item in items]
    assert found == {"code_keywords": pytest.approx(np.mean(right)), "code_quotes": 0.5}


def test_the_probe_records_at_intervals_and_at_the_end(tmp_path: Path) -> None:
    plain, probed = CODE, changed(CODE, probes=[{"kind": "evaluate", "tasks": ["code_quotes"], "every": 4}])
    options = Options(tmp_path)
    losses = [train(run, options).validation_loss for run in (plain, probed)]
    assert losses[0] == losses[1]  # it only looks
    rows = RunFolder(options.runs, probed).metrics()
    recorded = {row["step"]: row["accuracy_on_code_quotes"] for row in rows if "accuracy_on_code_quotes" in row}
    assert list(recorded) == [4, 6]
    again = evaluation.after_training(RunFolder(options.runs, probed).path, ["code_quotes"], options.data)
    assert again == {"code_quotes": recorded[6]}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("no_such_task", "there is no task 'no_such_task'"),
        ("arc_easy", "the data of the tasks arc_easy cannot be loaded"),
    ],
)
def test_a_task_that_cannot_be_had_is_refused_before_the_first_step(
    task: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    probed = changed(CODE, probes=[{"kind": "evaluate", "tasks": [task], "every": 6}])
    with pytest.raises(DataError, match=message):
        train(probed, Options(tmp_path))
    assert not RunFolder(Options(tmp_path).runs, probed).metrics()


def test_without_lm_eval_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    probed = changed(CODE, probes=[{"kind": "evaluate", "tasks": ["code_quotes"], "every": 6}])
    with pytest.raises(DataError, match=r"needs lm-eval, which is not installed: pip install 'ademamix\[evaluation\]'"):
        train(probed, Options(tmp_path))


def test_text_without_code_is_refused() -> None:
    with pytest.raises(DataError, match="nothing for the task code_keywords"):
        code_tasks.items("code_keywords", ["Nothing but prose."])


def test_images_are_refused() -> None:
    with pytest.raises(DataError, match="only language models"):
        evaluation.load(["code_quotes"], object())


@pytest.fixture(scope="module")
def manager():
    return evaluation.task_manager()


def test_every_task_of_the_paper_exists(manager) -> None:
    named = {*evaluation.PAPER_TASKS, *evaluation.PAPER_TASKS_DURING_TRAINING}
    assert len(evaluation.PAPER_TASKS) == 15
    assert named <= {*manager.all_tasks}
    assert not {*code_tasks.TASKS} & {*manager.all_tasks}  # ours would hide lm-eval's
    defined = {load_yaml(path)["task"] for path in evaluation.DEFINITIONS.glob("*.yaml")}
    assert defined == {"rewardbench", "rewardbench_reasoning"}
    assert all(str(manager.task_index[name].yaml_path).startswith(str(evaluation.DEFINITIONS)) for name in defined)


def test_mmlu_is_also_scored_by_continuation(manager) -> None:
    """lm-eval's definition: the question, and each answer as a continuation of it; not a letter."""
    config = load_yaml(manager.task_index["mmlu_anatomy_continuation"].yaml_path)
    assert config["doc_to_choice"] == "{{choices}}"
    assert "choices" not in config["doc_to_text"]
    assert load_yaml(manager.task_index["mmlu_anatomy"].yaml_path)["doc_to_choice"] == ["A", "B", "C", "D"]


def test_rewardbench_prefers_the_likelier_answer(manager, model: LabModel, tmp_path: Path) -> None:
    """Its definition, with a local data set of the same columns in place of that of the hub."""
    pairs = [
        {"prompt": "2 + 2?", "chosen": "4", "rejected": "5", "subset": "math-prm", "id": 1},
        {"prompt": "A joke", "chosen": "ha", "rejected": "no", "subset": "alpacaeval-easy", "id": 2},
        {"prompt": "Sort", "chosen": "x.sort()", "rejected": "x", "subset": "hep-python", "id": 3},
    ]
    Rows.from_list(pairs).to_json(tmp_path / "filtered.jsonl")
    files = {"data_files": {"filtered": str(tmp_path / "filtered.jsonl")}}
    for name, kept in (("rewardbench", [0, 1, 2]), ("rewardbench_reasoning", [0, 2])):
        config = load_yaml(manager.task_index[name].yaml_path, resolve_func=True)
        config |= {"dataset_path": "json", "dataset_kwargs": files}
        task = manager.load([config])["tasks"][name]
        task.build_all_requests()
        asked = [instance.args for instance in task.instances]
        assert asked == [
            (f"{pairs[number]['prompt']}\n\n", pairs[number][answer])
            for number in kept
            for answer in ("chosen", "rejected")
        ]
        answers = [
            [answer for answer, _ in model.loglikelihood(task.instances[2 * n : 2 * n + 2])] for n in range(len(kept))
        ]
        right = [
            task.process_results(doc, [(each, False) for each in pair])
            for doc, pair in zip(task.test_docs(), answers, strict=True)
        ]
        assert [each["acc"] for each in right] == [chosen > rejected for chosen, rejected in answers]
