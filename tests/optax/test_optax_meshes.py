"""A Flax model on meshes of 8 devices, FSDP, tensor parallel and both, and Orbax between them."""

from __future__ import annotations

from host_devices import run_on_8_devices
from test_optax import every_format


@every_format
def test_meshes_take_the_steps_of_one_device(format):
    run_on_8_devices("mesh_run.py", "same_as_one_device", format)


@every_format
def test_orbax_restores_on_other_meshes(format):
    run_on_8_devices("mesh_run.py", "resharded", format)
