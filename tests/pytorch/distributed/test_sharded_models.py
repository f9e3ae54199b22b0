import pytest
import sharded_models
from processes import run


def test_sharded_models_are_trained_as_whole_ones():
    run(sharded_models.sharded, worlds=(2,))


@pytest.mark.distributed
def test_sharded_models_are_trained_as_whole_ones_on_one_process_and_on_four():
    run(sharded_models.sharded, worlds=(1, 4))


def test_a_sharded_run_switches_from_adamw_and_back():
    run(sharded_models.switched, worlds=(2,))


def test_a_state_of_whole_tensors_loads_into_sharded_parameters():
    run(sharded_models.whole_state_in_shards, worlds=(2,))


def test_replicated_models_are_trained_as_whole_ones():
    run(sharded_models.replicated, worlds=(2,))
