import sharded_steps
from processes import run


def test_sharded_parameters_take_the_steps_of_whole_ones():
    run(sharded_steps.every_layout)
