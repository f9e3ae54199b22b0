import pytest

from processes import run_by_name

pytestmark = pytest.mark.deepspeed


def test_optimizers_of_megatron_train_as_unsharded_resume_and_reshard():
    scenarios = ("trained", "resumed", "resharded", "resumed_in_whole", "refused")
    run_by_name("megatron_slices", *scenarios, worlds=(2, 1, 4))  # 2 first: the others load what these save
