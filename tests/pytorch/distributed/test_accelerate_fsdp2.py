import accelerate_fsdp2

from processes import run


def test_accelerate_trains_and_resumes_sharded_parameters_as_whole_ones():
    run(accelerate_fsdp2.trained_and_resumed, worlds=(2,))
