import pytest
import sharded_models

from processes import run


def test_sharded_models_are_trained_as_whole_ones():
    run(sharded_models.sharded, worlds=(2,))


@pytest.mark.distributed
def test_sharded_models_are_trained_as_whole_ones_on_one_process_and_on_four():
    run(sharded_models.sharded, sharded_models.replicated, sharded_models.with_masters, worlds=(1, 4))


def test_switches_from_adamw_whole_states_replicas_and_released_gradients():
    run(
        sharded_models.switched,
        sharded_models.whole_state_in_shards,
        sharded_models.replicated,
        sharded_models.released,
        sharded_models.with_masters,
        worlds=(2,),
    )


def test_compiled_steps_of_sharded_models_have_the_bits_of_whole_ones():
    run(sharded_models.compiled, worlds=(2,))


@pytest.mark.distributed
def test_compiled_steps_of_sharded_models_have_the_bits_of_whole_ones_on_every_path():
    run(sharded_models.compiled_on_every_path, worlds=(2,))
