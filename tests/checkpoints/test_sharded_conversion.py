"""A folder of torch.distributed.checkpoint that several processes have written."""

import sharded_conversion
from processes import run


def test_a_sharded_run_continues():
    run(sharded_conversion.converted, worlds=(2,))
