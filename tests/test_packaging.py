"""What is shipped: sdist and wheel, installs with and without a compiler or torch, and what an import loads."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock  # comes with torch

import ademamix

ROOT = Path(__file__).parents[1]
NO_COMPILER = {"CC": "no-such-compiler", "CXX": "no-such-compiler"}


def run(*command: str | Path, **environment: str) -> str:
    """Run a command away from the checkout, and return what it prints."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | environment
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/", env=env)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout[-10_000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def once(tmp_path_factory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Have a folder filled by the first who asks for it, among all workers of this test run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def fill(name: str, make: Callable[[Path], None]) -> Path:
        folder = shared / name
        with FileLock(shared / f"{name}.lock"):
            if not (folder / "done").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                (folder / "done").touch()
        return folder

    return fill


@pytest.fixture(scope="session")
def distributions(once):
    """Build the sdist, and the wheel from the sdist."""
    return once("distributions", lambda folder: run(sys.executable, "-m", "build", "--outdir", folder, ROOT))


@pytest.fixture(scope="session")
def sdist(distributions):
    [file] = distributions.glob("*.tar.gz")
    return file


@pytest.fixture(scope="session")
def wheel(distributions):
    [file] = distributions.glob("*.whl")
    return file


def install(venv: Path, *arguments: str | Path, **environment: str) -> None:
    run(sys.executable, "-m", "venv", venv)
    # No cache: pip would keep the wheel without a core, and offer it again where there is a compiler.
    log = run(venv / "bin" / "pip", "install", "--no-cache-dir", "-v", *arguments, **environment)
    (venv / "log").write_text(log)


@pytest.fixture(scope="session")
def from_wheel(once, wheel):
    return once("from_wheel", lambda venv: install(venv, wheel))


@pytest.fixture(scope="session")
def without_compiler(once, sdist):
    return once("without_compiler", lambda venv: install(venv, "--no-deps", sdist, **NO_COMPILER))


def modules_in(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("ademamix/") and name.endswith(".py")}


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"ademamix-{ademamix.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"ademamix", info}
    assert modules_in(names) == {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    rest = {name for name in names - modules_in(names) if not name.startswith(info)}
    assert "ademamix/py.typed" in rest
    assert [name for name in rest if re.fullmatch(r"ademamix/_core\.\S+\.(so|pyd)", name)]
    data = {path for kind in ("css", "html", "js", "yaml") for path in (ROOT / "src").rglob(f"*.{kind}")}
    data_names = {path.relative_to(ROOT / "src").as_posix() for path in data}
    assert "ademamix/lab/report/page/assets/page.html" in data_names
    assert data_names <= rest
    assert len(rest - data_names) == 2
    assert f"{info}/licenses/LICENSE" in names


@pytest.mark.slow
def test_the_wheel_is_labelled_for_the_pythons_that_it_serves(wheel):
    """From 3.12 on there is one wheel, of the stable ABI; before, each Python has its own. See `wheel.py-api`."""
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version) == ("ademamix", ademamix.__version__)
    assert platform == sysconfig.get_platform().replace("-", "_").replace(".", "_")
    with zipfile.ZipFile(wheel) as archive:
        [core] = [Path(name).name for name in archive.namelist() if name.startswith("ademamix/_core.")]
    if sys.version_info >= (3, 12):
        assert (python, abi, core) == ("cp312", "abi3", "_core.abi3.so")
    else:
        this = f"cp{sys.version_info.major}{sys.version_info.minor}"
        assert (python, abi, core) == (this, this, f"_core{sysconfig.get_config_var('EXT_SUFFIX')}")


def test_the_stable_abi_begins_with_the_first_that_nanobind_has():
    """The label of the wheel for 3.12 and later, for tests that run on an older Python and cannot build it."""
    assert re.search(r'^wheel\.py-api = "cp312"', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert re.search(r"nanobind_add_module\(_core\b.*\bSTABLE_ABI\b", (ROOT / "csrc/CMakeLists.txt").read_text())


@pytest.mark.slow
def test_the_wheel_takes_a_fused_step(wheel, tmp_path):
    """With the torch of this environment, but not its `ademamix`: -S leaves out the hook of the editable install."""
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", tmp_path, wheel)
    code = f"""
import sys
sys.path += [{str(tmp_path)!r}, {sysconfig.get_path("purelib")!r}]
import torch
from ademamix import AdEMAMix, _core
assert _core.__file__.startswith({str(tmp_path)!r}), _core.__file__
results = []
for path in ({{"fused": True}}, {{"fused": False, "foreach": False}}):
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = AdEMAMix([param], lr=0.125, weight_decay=0.0, total_steps=100, **path)
    param.grad = torch.tensor([1.0, -1.0, 0.0])
    optimizer.step()
    results.append(param.detach())
torch.testing.assert_close(*results)
assert results[0].tolist() != [1.0, 1.0, 1.0]
"""
    run(sys.executable, "-I", "-S", "-W", "error", "-c", code)


@pytest.mark.slow
def test_the_wheel_needs_numpy_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"ademamix-{ademamix.__version__}.dist-info/METADATA")
    message = email.message_from_bytes(metadata)
    always = [requirement for requirement in message.get_all("Requires-Dist") if "extra ==" not in requirement]
    assert [re.split(r"\W", requirement)[0] for requirement in always] == ["numpy"]
    assert {"torch", "jax", "lab", "dev"} <= set(message.get_all("Provides-Extra"))


@pytest.mark.slow
def test_the_sdist_has_all_sources_and_nothing_built(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/ademamix/py.typed", "tests/test_packaging.py"} <= names
    sources = [*(ROOT / "csrc").iterdir(), *(ROOT / "src").rglob("*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in sources} <= names
    unwanted = r"^build/|^\.(ci|github|venv)|cache__/|_cache/|\.(so|pyc|o)$"
    assert not [name for name in names if re.search(unwanted, name)]


IMPORT_OPTIMIZER = """
try:
    from ademamix import AdEMAMix
except ImportError as error:
    print(error)
"""

IMPORT_OPTAX = IMPORT_OPTIMIZER.replace("from ademamix import AdEMAMix", "from ademamix.optax import ademamix")

# Code, and what it prints among other things.
CHECKS = {
    "import": ("import ademamix; print(ademamix.__version__)", ademamix.__version__),
    "recommend": ("from ademamix import recommend; print(recommend(32_000).betas)", "(0.9, 0.999, 0."),
    "optimizer": (IMPORT_OPTIMIZER, "pip install 'ademamix[torch]'"),
    "optax": (IMPORT_OPTAX, "pip install 'ademamix[jax]'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("environment", ["from_wheel", "without_compiler"])
def test_an_install_works_without_torch(environment, check, request):
    venv = request.getfixturevalue(environment)
    code, printed = CHECKS[check]
    assert printed in run(venv / "bin" / "python", "-I", "-W", "error", "-c", code)


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["from_wheel", "without_compiler"])
def test_the_command_works_without_torch(environment, request):
    venv = request.getfixturevalue(environment)
    assert "usage: ademamix" in run(venv / "bin" / "ademamix", "--help")


@pytest.mark.slow
def test_the_wheel_brings_numpy_and_a_core(from_wheel):
    installed = run(from_wheel / "bin" / "pip", "list", "--format=freeze").lower()
    assert "numpy==" in installed
    assert "torch" not in installed
    code = "from ademamix import _core; print(_core.instruction_set())"
    assert run(from_wheel / "bin" / "python", "-I", "-c", code).strip() in {"avx512", "avx2", "portable"}


@pytest.mark.slow
def test_an_install_without_a_compiler_is_pure_python_and_says_so(without_compiler):
    assert "ademamix has been built WITHOUT its C++ core" in (without_compiler / "log").read_text()
    assert [*without_compiler.rglob("ademamix/py.typed")]
    assert not [*without_compiler.rglob("ademamix/_core*")]


HIDE_CORE = "import sys; sys.modules['ademamix._core'] = None\n"


def test_fused_says_that_the_core_is_missing():
    code = """
import torch
from ademamix import AdEMAMix
try:
    AdEMAMix([torch.nn.Parameter(torch.ones(3))], total_steps=100, fused=True)
except RuntimeError as error:
    print(error)
"""
    message = run(sys.executable, "-c", HIDE_CORE + code)
    for words in ("`fused=True` is not possible", "C++ core", "compiler", "pip install", "leave `fused` out"):
        assert words in message


def test_without_a_core_the_default_is_another_path():
    code = """
import torch
from ademamix import AdEMAMix
results = []
for arguments in ({}, {"foreach": True}):
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = AdEMAMix([param], total_steps=100, **arguments)
    for _ in range(3):
        param.grad = torch.full((3,), 0.5)
        optimizer.step()
    results.append(param.tolist())
assert results[0] == results[1] != [1.0, 1.0, 1.0], results
"""
    run(sys.executable, "-W", "error", "-c", HIDE_CORE + code)


def test_import_loads_no_framework():
    """What needs no framework must not load one either; `ademamix bench --only import` reports how long it takes."""
    code = """
import sys
import ademamix
ademamix.recommend(10_000), ademamix.alpha_at(1, 5.0, 100), ademamix.half_life(0.9)
print(sorted({"torch", "jax", "numpy", "matplotlib"} & set(sys.modules)))
"""
    assert run(sys.executable, "-c", code).strip() == "[]"
