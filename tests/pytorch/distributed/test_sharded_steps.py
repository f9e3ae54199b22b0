import pytest
import sharded_steps
from processes import run


def test_sharded_parameters_take_the_steps_of_whole_ones():
    run(sharded_steps.every_layout, worlds=(2,))


@pytest.mark.distributed
def test_sharded_parameters_take_the_steps_of_whole_ones_on_one_process_and_on_four():
    run(sharded_steps.every_layout, worlds=(1, 4))


def test_what_is_cut_through_blocks_stays_fp32():
    run(sharded_steps.cut_through_blocks, worlds=(2,))


def test_gradients_that_are_still_to_be_summed_are_summed():
    run(sharded_steps.partial_gradients, worlds=(2,))


def test_gradients_that_cannot_belong_to_a_sharded_parameter_are_refused():
    run(sharded_steps.foreign_gradients, worlds=(2,))
