import pytest

from processes import run_by_name

pytestmark = pytest.mark.deepspeed


def test_zero_stages_train_as_unsharded_and_resume_with_the_same_bits():
    run_by_name("zero_stages", "trained", "resumed", "forgotten", worlds=(1, 2, 4))
