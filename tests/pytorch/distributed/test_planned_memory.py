import planned_memory

from processes import run


def test_processes_keep_and_send_what_the_plan_says():
    run(planned_memory.fsdp, planned_memory.ddp, worlds=(1, 2, 4))
