import pytest
import sharded_steps

from processes import run


def test_sharded_parameters_take_the_steps_of_whole_ones():
    run(sharded_steps.every_layout, worlds=(2,))


@pytest.mark.distributed
def test_sharded_parameters_take_the_steps_of_whole_ones_on_one_process_and_on_four():
    run(sharded_steps.every_layout, worlds=(1, 4))


def test_cuts_and_gradients_that_need_care():
    run(
        sharded_steps.cut_through_blocks,
        sharded_steps.partial_gradients,
        sharded_steps.foreign_gradients,
        worlds=(2,),
    )
