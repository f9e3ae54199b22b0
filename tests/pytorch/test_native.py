"""The C++ core: its driver under sanitizers and on ARM, its random words, its threads beside torch's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from filelock import FileLock  # comes with torch

from ademamix import formats
from ademamix.pytorch import rounding, step_cpu, step_single
from ademamix.pytorch.coefficients import Coefficients
from ademamix.pytorch.core import core, reader
from ademamix.pytorch.parameter_state import adopt, form_of, values_of
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.tensors import Place, Tensors
from cases import FUSED, FUSED_REDUCED

CSRC = Path(__file__).parents[2] / "csrc"
CHECKS = Path(__file__).parents[1] / "csrc"
BUILDS = Path(__file__).parents[2] / "build" / "driver"


def run(*command: str | Path, **more: object) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if "ThreadSanitizer: unexpected memory mapping" in done.stdout:
        pytest.skip("this compiler's ThreadSanitizer cannot run on this kernel")
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout[-10_000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def cmake(tmp_path_factory):
    if installed := shutil.which("cmake"):
        return Path(installed)
    target = tmp_path_factory.mktemp("cmake")
    run(sys.executable, "-m", "pip", "install", "-q", "--target", target, "cmake")
    return target / "cmake" / "data" / "bin" / "cmake"


@contextmanager
def driver(cmake: Path, name: str, *options: str) -> Iterator[Path]:
    """Build it. Builds are kept for the next test run, which compiles what has changed since."""
    folder = BUILDS / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        run(cmake, "-S", CHECKS, "-B", folder, "-DCMAKE_CXX_FLAGS=-O1", *options)
        run(cmake, "--build", folder, "--parallel", "2")
        yield folder / "driver"


def findings(printed: str) -> tuple[str, str]:
    """Return the last two lines of the driver: the digest of its results, and how many checks passed and failed."""
    digest, summary = printed.splitlines()[-2:]
    assert re.fullmatch("digest [0-9a-f]{16}", digest)
    return digest, summary


# AddressSanitizer keeps loops from being vectorised: what users run is the build without sanitizers.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sanitizers", "arguments"),
    [("", []), ("address,undefined", []), ("thread", ["f32"])],
    ids=["no sanitizer", "address", "thread"],
)
def test_the_driver_passes(cmake, sanitizers, arguments):
    name = f"{Path(os.environ.get('CXX', 'c++')).name}-{sanitizers or 'plain'}"
    with driver(cmake, name, f"-DADEMAMIX_SANITIZE={sanitizers}") as program:
        _, summary = findings(run(program, *arguments))
    assert re.fullmatch(r"(avx512|avx2|portable), std::thread: [1-9]\d* passed, 0 failed", summary)


ARM_OPTIONS = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
ARM_COMPILER = "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++"
ARM_EMULATOR = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")


@pytest.mark.programs
def test_steps_on_arm_have_the_bits_of_this_processor(cmake):
    with driver(cmake, "aarch64", ARM_COMPILER, *ARM_OPTIONS) as program:
        digest, summary = findings(run(*ARM_EMULATOR, program))
        assert re.fullmatch(r"portable, std::thread: [1-9]\d* passed, 0 failed", summary)
        assert re.search(r"\sfdiv\s+v\d+\.4s", run("aarch64-linux-gnu-objdump", "-d", program))  # NEON, in the kernels
        lacking = {**os.environ, "ADEMAMIX_INSTRUCTION_SET": "avx2"}
        refused = subprocess.run([*ARM_EMULATOR, program, "f64"], capture_output=True, text=True, env=lacking)
        assert refused.returncode != 0
        assert (
            '"avx2" is no instruction set that the core can use on this processor: those are portable' in refused.stderr
        )
    with driver(cmake, f"{Path(os.environ.get('CXX', 'c++')).name}-plain") as program:
        assert findings(run(program))[0] == digest


KEYS = [
    (0, 0, 1),
    (0, 1, 0),
    (1, 0, 0),
    (17, 3, 2**24),
    (2**32, 2**31, 2**32),
    (2**40 + 5, 2**33 + 7, 2**52 + 1),
    (2**64 - 1, 2**63 - 1, 2**53),
]


def written_by_the_core(values, seed, index, step):
    """Let the core write exactly `values` into a bf16 parameter, which starts at 0 and moves to the slow average."""
    param = torch.zeros(len(values), dtype=torch.bfloat16)
    grad, slow, square = torch.zeros_like(values), values.clone(), torch.zeros_like(values)
    tensors = Tensors.none()._replace(params=[param], grads=[grad], slows=[slow], squares=[square])
    core.step(
        columns=tensors.of_kernels,
        indices=[index],
        rows=[(0, 0, 0, 0)],
        coefficients=[Coefficients(0.0, 0.0, 0.0, 1.0, -1.0, 1.0, 0.0, float(step))],
        positions=[0],
        reader=reader,
        options=core.Options(gradient_factor=1.0, stochastic_rounding=True, rounding_seed=seed, threads=2),
    )
    return param


@pytest.mark.parametrize(("seed", "index", "step"), KEYS)
def test_core_and_python_round_to_the_same_bits(seed, index, step):
    """Compare 16 random bits of each element: those below the last place decide whether it is rounded up."""
    generator = torch.Generator().manual_seed(step % 1000)
    bits = torch.randint(-(2**31), 2**31, (100_000,), generator=generator, dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32)
    values = values[values.isfinite() & (values != 0)]
    expected = torch.zeros(len(values), dtype=torch.bfloat16)
    Rounding(seed, True).write(expected, values, Place(index), step)
    actual = written_by_the_core(values, seed, index, step)
    assert torch.equal(actual.view(torch.int16), expected.view(torch.int16))
    up = (actual.float().abs() > values.abs()).float().mean()
    assert 0.49 < up < 0.51


@pytest.mark.parametrize(("seed", "index", "step"), KEYS)
@pytest.mark.parametrize("name", FUSED_REDUCED)
def test_core_and_python_write_moments_with_the_same_bits(name, seed, index, step):
    """With the rate 1 an average becomes the gradient, exactly, and its code shows the random word."""
    generator = torch.Generator().manual_seed(1)
    grad = torch.ldexp(torch.randn(64, 300, generator=generator), torch.randint(-12, 3, (64, 300), generator=generator))
    coefficients = [Coefficients(1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, float(step))]
    group = {
        "state_storage": name,
        "betas": (0.9, 0.999, 0.9999),
        "capturable": False,
        "nonfinite": "propagate",
        "master": None,
    }
    states = []
    for body in (step_cpu, step_single):
        param = torch.zeros(64, 300)
        state = adopt({}, param, group)
        columns = {column: [state[key]] for column, key in form_of(name, has_fast=True, skips=False).keys.items()}
        columns |= {"places": [Place(index)], "params": [param], "grads": [grad]}
        tensors = Tensors.none()._replace(**columns)
        body.update(tensors, coefficients, Rounding(seed, True), maximize=False, grad_scale=None)
        states.append(state)
    for key in states[0]:
        assert torch.equal(states[0][key], states[1][key]), key
    assert (values_of(states[0], "exp_avg_slow") != grad).any()


def test_the_core_has_the_formats_of_python():
    ours = {name: value for name, value in vars(formats).items() if name.isupper() and name != "STORAGES"}
    for name, value in ours.items():
        if isinstance(value, formats.BlockCode):
            ours[name] = value._asdict()
    assert ours == core.FORMATS
    assert core.STORAGES == FUSED


WORDS = r"""
#include <cinttypes>
#include <cstdio>
#include "number_formats.h"

int main() {
  uint64_t seed, element;
  int64_t index, step;
  while (std::scanf("%" SCNu64 " %" SCNd64 " %" SCNd64 " %" SCNu64, &seed, &index, &step, &element) == 4) {
    std::printf("%" PRIu32 "\n", ademamix::here::RoundingStream(seed, index, step)(element));
  }
}
"""


def test_core_and_python_have_the_same_random_words(tmp_path):
    """Compare all 32 bits, also for elements of tensors that are too large to test with."""
    (tmp_path / "words.cpp").write_text(WORDS)
    compiler = os.environ.get("CXX", "c++")
    run(compiler, "-std=c++17", "-DADEMAMIX_ISA=here", f"-I{CSRC}", "words.cpp", "-o", "words", cwd=tmp_path)
    elements = [0, 1, 2**16, 2**31, 2**32 - 1, 2**32, 2**33 + 11, 2**40 + 2**20 + 3]
    questions = "\n".join(f"{seed} {index} {step} {x}" for seed, index, step in KEYS for x in elements)
    actual = [int(word) for word in run(tmp_path / "words", input=questions).split()]
    indices = torch.tensor(elements)
    expected = [word for key in KEYS for word in rounding._random_words(indices, rounding._keys(*key)).tolist()]
    assert actual == expected
    assert len(set(expected)) == len(KEYS) * len(elements)


THREADS = """
import os, torch
from ademamix import AdEMAMix
from ademamix.pytorch.core import core

torch.set_num_threads(6)
param = torch.zeros(80_000)  # enough for two threads, not for six
param.grad = torch.ones_like(param)
optimizer = AdEMAMix([param], total_steps=100, fused=True)
large = torch.zeros(1_000_000)

def threads():
    optimizer.step()
    large.add_(1)
    return set(os.listdir("/proc/self/task"))

before = threads()
assert core.thread_source() == "openmp", core.thread_source()
assert len(before) >= 6, before
for _ in range(10):
    assert threads() == before
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_step_does_not_end_the_threads_of_torch():
    """A team smaller than torch's would make libgomp end the rest, and start them again for torch's next operation."""
    run(sys.executable, "-c", THREADS)
