"""A kernel on another interpreter, which has ipykernel and nothing of the host.

`tests/run` makes that environment and names its Python in PTC_OTHER_PYTHON.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv

import pytest

from tests.support import echo, kind, namespace

MODULES = """
import sys
{name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
"""


@pytest.fixture(scope="session")
def other_python():
    """The Python of an environment that holds ipykernel only."""
    path = os.environ.get("PTC_OTHER_PYTHON", "")
    assert os.path.exists(path), "PTC_OTHER_PYTHON names no interpreter: start the tests with tests/run"
    return path


async def test_worker_on_another_python(make_session, other_python):
    """The worker is started by its path on an interpreter that does not have ptc_kernel."""
    session = make_session(python_executable=other_python)
    have = subprocess.run(
        [other_python, "-c", "import ptc_kernel"], capture_output=True, check=False, cwd="/"
    )

    assert 0 != have.returncode
    assert other_python == await session.value("import sys\nsys.executable")
    assert {"n": 1} == await session.value("await tools.echo({'n': 1})", namespace(echo=echo))
    assert "exception" == kind(await session.run("import hypothesis"))


async def test_nothing_of_the_host_is_loaded(make_session, other_python):
    """Of the host only the worker's own modules are imported; its site-packages are not on the path."""
    session = make_session(python_executable=other_python)
    modules = await session.value(MODULES)
    path = await session.value("import sys\nsys.path")
    host = os.path.dirname(os.path.dirname(sys.executable))
    ours = {name for name in modules if name.split(".")[0] == "ptc_kernel"}

    allowed = ("ptc_kernel.kernel", "ptc_kernel.protocol", "ptc_kernel.types", "ptc_kernel.errors")
    assert {"ptc_kernel"} | {name for name in ours if name.startswith(allowed)} == ours
    assert "" == modules["ptc_kernel"]
    assert [] == [name for name, file in modules.items() if file.startswith(f"{host}{os.sep}")]
    assert [] == [folder for folder in path if folder.startswith(f"{host}{os.sep}")]
    assert "" == path[0]


async def test_python_without_ipykernel(make_session, tmp_path):
    """An interpreter without ipykernel ends as `worker-exit` with a text that says what to install."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    session = make_session(python_executable=str(tmp_path / "bare" / "bin" / "python"))
    result = await session.run("1")

    assert "worker-exit" == kind(result)
    assert "pip install ipykernel" in result.error.message
    assert not result.started
