import pytest

import runs_together
from processes import run

pytestmark = pytest.mark.distributed


def test_losses_are_those_of_one_process():
    run(runs_together.same_losses, worlds=(1, 2, 4))


def test_a_run_continues_on_other_numbers_of_processes_with_copies_and_with_shards():
    run(runs_together.elsewhere, worlds=tuple(count for count, _ in runs_together.MOVES))


def test_a_run_that_was_stopped_ends_with_the_same_bits():
    run(runs_together.same_bits, worlds=(2, 4))


def test_branches_failures_and_every_optimizer():
    run(runs_together.branches, runs_together.failures, runs_together.every_optimizer, worlds=(2,))
