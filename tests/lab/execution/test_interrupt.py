"""Ctrl-C and the polite kill: asked once, a run stops and saves; asked twice, it ends."""

from __future__ import annotations

import io
import signal
import sys

import pytest

from ademamix.lab.execution.interrupt import asked_to_stop


class _ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_the_second_of_a_kind_acts_as_usual() -> None:
    with asked_to_stop() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_after_a_polite_kill_does_not_end_the_saving() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with asked_to_stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_ctrl_c_stays_ignored_and_a_polite_kill_stops() -> None:
    """As under nohup, or in the background job of a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with asked_to_stop() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.is_set()
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_is_no_matter_that_nobody_reads_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _ClosedPipe())
    with asked_to_stop() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
