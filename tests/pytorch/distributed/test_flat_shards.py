import flat_shards

from processes import run


def test_the_slices_of_fsdp1_and_zero1_are_coded():
    run(flat_shards.fsdp1, flat_shards.zero1, worlds=(2, 4))
