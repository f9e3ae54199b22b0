import pytest
import sharded_checkpoints

from processes import run


def test_checkpoints_load_on_other_numbers_of_processes():
    run(sharded_checkpoints.resharded, worlds=(4, 2, 1, 4))


def test_a_checkpoint_of_one_process_loads_on_more():
    run(sharded_checkpoints.resharded, worlds=(1, 2))


def test_parameters_cut_by_columns_load_what_was_cut_by_rows_and_codes_need_their_scales():
    run(
        sharded_checkpoints.columns,
        sharded_checkpoints.codes_without_scales,
        sharded_checkpoints.corrections_that_were_not_loaded,
        worlds=(2,),
    )


def test_optimizers_of_one_parameter_each_resume_with_their_random_words():
    run(sharded_checkpoints.one_optimizer_each, worlds=(2,))


@pytest.mark.distributed
def test_a_save_that_is_killed_half_way_leaves_the_one_before():
    run(sharded_checkpoints.torn, worlds=(2, 2), kills=True)
