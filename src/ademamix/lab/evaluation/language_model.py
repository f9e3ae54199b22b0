"""A model of the lab as lm-eval sees one: text in, log-likelihoods and continuations out.

lm-eval's own class for Hugging Face models wants a Hugging Face tokenizer, which bytes do not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lm_eval.api.model import TemplateLM

from ademamix.lab.data.tokenizers import Tokenizer

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from torch import Tensor

Ids = tuple[int, ...]
MOST_GENERATED = 256
"""Tokens, unless a task says otherwise."""


class _Window(NamedTuple):
    """Tokens to score: the targets follow the last of the inputs, one place further each."""

    inputs: Ids
    targets: Ids


class LabModel(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    r"""A language model with a tokenizer of the lab.

    `logits` maps token ids (batch, length) to logits (batch, length, vocabulary), and `context` is the largest length.
    The likelihood of a continuation is

    .. math:: \log p(c \mid x) = \sum_i \log p(c_i \mid x, c_1, \dots, c_{i-1})

    where the beginning of x is dropped if both do not fit into the context.
    """

    def __init__(
        self, logits: Callable[[Tensor], Tensor], tokenizer: Tokenizer, *, context: int, batch: int = 32
    ) -> None:
        super().__init__()
        self._logits, self._tokenizer, self._context, self._batch = logits, tokenizer, context, batch

    @property
    def eot_token_id(self) -> int:
        """The id that separates documents; a text without context is scored as the beginning of one."""
        return self._tokenizer.separator

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the ids of a text; there are no special tokens to add."""
        (ids,) = self._tokenizer.encode([string])
        return [int(each) for each in ids]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether greedy decoding would produce it."""
        scored: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return scored

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Return the log-likelihood of each whole text."""
        texts = [(self.eot_token_id, *self.tok_encode(request.args[0])) for request in requests]
        return [likelihood for likelihood, _ in self._scored([(ids, 1) for ids in texts])]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Return the greedy continuation of each text, up to the first of the strings that end it."""
        return [self._generated(*request.args) for request in requests]

    def _generated(self, text: str, settings: dict[str, Any]) -> str:
        if settings.get("do_sample"):
            raise ValueError("the lab generates greedily only: leave do_sample out of the task's generation_kwargs")
        until = settings.get("until") or []
        endings = [until] if isinstance(until, str) else until
        ids = [self.eot_token_id, *self.tok_encode(text)]
        start = len(ids)
        for _ in range(int(settings.get("max_gen_toks", MOST_GENERATED))):
            (row,) = self._logits(torch.tensor([ids[-self._context :]]))
            ids.append(int(row[-1].argmax()))
            written = self._tokenizer.decode(ids[start:])
            if ids[-1] == self.eot_token_id:
                return self._tokenizer.decode(ids[start:-1])
            if found := [written.index(ending) for ending in endings if ending in written]:
                return written[: min(found)]
        return self._tokenizer.decode(ids[start:])

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        return self._scored([((*context, *continuation), len(context)) for _, context, continuation in requests])

    def _scored(self, texts: Sequence[tuple[Ids, int]]) -> list[tuple[float, bool]]:
        """Return, for ids and the place from which to score them, the log-likelihood, and whether it is greedy."""
        windows = [list(windows_of(ids, start, self._context)) for ids, start in texts]
        scores = self._scores({window for of_one in windows for window in of_one})
        return [
            (math.fsum(scores[window][0] for window in of_one), all(scores[window][1] for window in of_one))
            for of_one in windows
        ]

    def _scores(self, windows: set[_Window]) -> dict[_Window, tuple[float, bool]]:
        wanted: dict[Ids, list[Ids]] = {}  # each input is processed once: choices of one token share it
        for inputs, targets in windows:
            wanted.setdefault(inputs, []).append(targets)
        longest_first = sorted(wanted, key=lambda ids: (-len(ids), ids))
        scores = {}
        for first in range(0, len(longest_first), self._batch):
            batch = longest_first[first : first + self._batch]
            # padded at the end, where nothing looks back from
            padded = [ids + (self.eot_token_id,) * (len(batch[0]) - len(ids)) for ids in batch]
            logits = self._logits(torch.tensor(padded)).float().log_softmax(-1)
            for inputs, row in zip(batch, logits, strict=True):
                for targets in wanted[inputs]:
                    predicted = row[len(inputs) - len(targets) : len(inputs)]
                    right = torch.tensor(targets, device=row.device)
                    likelihood = predicted.gather(-1, right[:, None]).sum().item()
                    scores[_Window(inputs, targets)] = likelihood, bool((predicted.argmax(-1) == right).all())
        return scores


def windows_of(ids: Ids, start: int, context: int) -> Iterator[_Window]:
    """Yield windows in which each of the ids from `start` is predicted once, each with as many before it as fit.

    A continuation that fits into the context is one window.

    >>> [(window.inputs, window.targets) for window in windows_of((0, 1, 2, 3, 4, 5, 6), 5, context=4)]
    [((2, 3, 4, 5), (5, 6))]
    >>> [(window.inputs, window.targets) for window in windows_of((0, 1, 2, 3, 4, 5, 6), 1, context=4)]
    [((0, 1, 2, 3), (1, 2, 3, 4)), ((2, 3, 4, 5), (5, 6))]
    """
    while start < len(ids):
        end = min(len(ids), max(context + 1, start + context))
        yield _Window(ids[max(0, end - context - 1) : end - 1], ids[start:end])
        start = end
