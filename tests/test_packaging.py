"""What the wheel holds, and the kernelspec that it installs: started by stock Jupyter, as a notebook does."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import zipfile

import pytest
import pytest_asyncio
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager, start_new_async_kernel

ROOT = pathlib.Path(__file__).parent.parent
SPEC = "share/jupyter/kernels/ptc_python3"
LOGOS = ["logo-32x32.png", "logo-64x64.png", "logo-svg.svg"]
NAME = "ptc_python3"
LIMIT = 50  # seconds; a test that needs them has failed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of what is in the repository."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():  # or it was deleted and that is not committed yet
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    (path,) = built.iterdir()
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def names(wheel):
    """The names of everything in the wheel."""
    return wheel.namelist()


def one(names, ending):
    """The one name that ends like this."""
    (found,) = [name for name in names if name.endswith(ending)]
    return found


def png_size(data):
    """Width and height from the header of a PNG."""
    assert b"\x89PNG\r\n\x1a\n" == data[:8]
    length, kind, width, height = struct.unpack(">I4sII", data[8:24])
    assert (13, b"IHDR") == (length, kind)
    return width, height


# ---------------------------------------------------------------------- the wheel


def test_the_whole_package_is_in_the_wheel(names):
    """Every module of the checkout is in the wheel, and the marker of its types."""
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ptc_kernel").rglob("*.py")}
    untracked = subprocess.run(
        ["git", "ls-files", "--others", "ptc_kernel"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert modules - set(untracked.stdout.splitlines()) == {name for name in names if name.endswith(".py")}
    assert "ptc_kernel/py.typed" in names


def test_nothing_else_is_in_the_wheel(names):
    """No tests, no caches, nothing at the top level but the package and its data."""
    tops = {name.split("/")[0] for name in names}
    assert ["ptc_kernel"] == [
        top for top in tops if not re.fullmatch(r"ptc_kernel-[^-]+\.(dist-info|data)", top)
    ]
    assert [] == [name for name in names if "test" in name or "__pycache__" in name or ".hypothesis" in name]


def test_the_kernelspec_is_in_the_wheel(names):
    """The kernelspec is shared data, complete: kernel.json and three logos."""
    shared = [name.split("/data/", 1)[1] for name in names if "/data/" in name]
    assert sorted(f"{SPEC}/{name}" for name in ["kernel.json", *LOGOS]) == sorted(shared)


def test_the_license_is_in_the_wheel(wheel, names):
    """The license is that of the checkout."""
    assert (ROOT / "LICENSE").read_bytes() == wheel.read(one(names, "/licenses/LICENSE"))


def test_the_command_is_in_the_wheel(wheel, names):
    """Installing the wheel gives the `ptc-kernel` command, whose function exists."""
    entry_points = configparser.ConfigParser()
    entry_points.read_string(wheel.read(one(names, "entry_points.txt")).decode())
    assert {"ptc-kernel": "ptc_kernel.cli:main"} == dict(entry_points["console_scripts"])
    from ptc_kernel.cli import main

    assert callable(main)


def test_the_metadata(wheel, names):
    """The metadata has the package's version, and needs four packages without an extra."""
    from ptc_kernel import __version__

    lines = wheel.read(one(names, "METADATA")).decode().splitlines()
    needs = {
        line.split()[1].split(">")[0]
        for line in lines
        if line.startswith("Requires-Dist") and ";" not in line
    }
    assert f"Version: {__version__}" in lines
    assert {"anyio", "ipykernel", "jupyter-client", "pillow", "pyzmq"} == needs


def test_the_wheel_is_pure(names, wheel):
    """The wheel is for every platform and every Python 3."""
    assert "Tag: py3-none-any" in wheel.read(one(names, "/WHEEL")).decode().splitlines()


# ---------------------------------------------------------------------- the kernelspec


def test_kernel_json(wheel, names):
    """kernel.json starts the worker's module on the interpreter that it was installed with."""
    spec = json.loads(wheel.read(one(names, "kernel.json")))
    assert ["python", "-m", "ptc_kernel.kernel", "-f", "{connection_file}"] == spec["argv"]
    assert ("python", "signal") == (spec["language"], spec["interrupt_mode"])
    assert "ptc_kernel" in spec["display_name"]


@pytest.mark.parametrize("name", [name for name in LOGOS if name.endswith(".png")])
def test_logos_have_the_sizes_of_their_names(wheel, names, name):
    """A logo is as large as its name says."""
    width, height = re.fullmatch(r"logo-(\d+)x(\d+)\.png", name).groups()
    assert (int(width), int(height)) == png_size(wheel.read(one(names, name)))


def test_the_svg_logo(wheel, names):
    """The third logo is an SVG."""
    assert "<svg" in wheel.read(one(names, "logo-svg.svg")).decode()


def test_the_kernelspec_is_installed():
    """Jupyter finds the kernelspec of this environment, equal to the one in the checkout."""
    spec = KernelSpecManager().get_kernel_spec(NAME)
    installed = pathlib.Path(spec.resource_dir)
    checkout = ROOT / "kernelspec" / NAME
    assert sorted(path.name for path in checkout.iterdir()) == sorted(
        path.name for path in installed.iterdir()
    )
    assert [] == [
        path.name for path in checkout.iterdir() if path.read_bytes() != (installed / path.name).read_bytes()
    ]


# ---------------------------------------------------------------------- notebook mode


class Notebook:
    """What a notebook does with a kernel: executes cells and collects what comes back."""

    def __init__(self, client):
        self.client = client

    async def run(self, code):
        """The reply and the iopub messages of a cell, as (type, content), status messages left out."""
        published = []

        def keep(message):
            if message["msg_type"] not in ("status", "execute_input"):
                published.append((message["msg_type"], message["content"]))

        reply = await self.client.execute_interactive(
            code, output_hook=keep, timeout=LIMIT, store_history=True, allow_stdin=False
        )
        return reply["content"], published

    async def result(self, code):
        """The text of the one result of a cell that ends well."""
        reply, published = await self.run(code)
        ((kind, content),) = published
        assert ("ok", "execute_result") == (reply["status"], kind)
        return content["data"]["text/plain"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kernel():
    """A kernel of the installed kernelspec, started by jupyter_client: manager and client."""
    manager = AsyncKernelManager(kernel_name=NAME)
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=LIMIT)
    yield manager, client
    client.stop_channels()
    if await manager.is_alive():
        await manager.shutdown_kernel(now=True)


in_module_loop = pytest.mark.asyncio(loop_scope="module")


@in_module_loop
async def test_a_cell_has_a_result(kernel):
    """A cell's value is displayed as an execute_result, with the number of its cell."""
    reply, published = await Notebook(kernel[1]).run("1+1")
    ((kind, content),) = published
    assert ("ok", "execute_result", "2") == (reply["status"], kind, content["data"]["text/plain"])
    assert reply["execution_count"] == content["execution_count"]


@in_module_loop
async def test_what_a_person_expects(kernel):
    """`_`, `Out`, `In`, a semicolon, and IPython's displays are there, as in any notebook."""
    notebook = Notebook(kernel[1])
    assert "42" == await notebook.result("6 * 7")
    assert "42" == await notebook.result("_")
    assert "True" == await notebook.result("(42 in Out.values(), '6 * 7' in In) == (True, True)")
    reply, published = await notebook.run("1 + 1;")
    assert ("ok", []) == (reply["status"], published)
    reply, published = await notebook.run("from IPython.display import display\ndisplay('x')\nprint('y')")
    assert ["display_data", "stream"] == [kind for kind, _ in published]


@in_module_loop
async def test_no_bindings(kernel):
    """No host, no bindings: `tools` is a NameError as any other name."""
    reply, published = await Notebook(kernel[1]).run("tools")
    assert ("error", "NameError", ["error"]) == (
        reply["status"],
        reply["ename"],
        [kind for kind, _ in published],
    )


@in_module_loop
async def test_top_level_await(kernel):
    """A cell may await."""
    assert "'slept'" == await Notebook(kernel[1]).result("import asyncio\nawait asyncio.sleep(0, 'slept')")


@in_module_loop
async def test_the_interpreter(kernel):
    """The kernel runs on the interpreter of this environment, and knows the package."""
    found = await Notebook(kernel[1]).result("import sys, ptc_kernel\n[sys.prefix, ptc_kernel.__version__]")
    from ptc_kernel import __version__

    assert repr([sys.prefix, __version__]) == found


@in_module_loop
async def test_an_interrupt(kernel, tmp_path):
    """The interrupt button ends a busy cell with a KeyboardInterrupt, and variables are kept."""
    manager, client = kernel
    notebook, ping = Notebook(client), tmp_path / "ping"
    os.mkfifo(ping)
    await notebook.run("kept = 5")
    cell = asyncio.ensure_future(notebook.run(f"open({str(ping)!r}, 'w').close()\nwhile True: pass"))
    await asyncio.to_thread(ping.read_text)
    await manager.interrupt_kernel()
    reply, _ = await cell
    assert ("error", "KeyboardInterrupt") == (reply["status"], reply["ename"])
    assert "5" == await notebook.result("kept")


async def test_shutdown(tmp_path, monkeypatch):
    """A kernel that is asked to shut down ends by itself and leaves no connection file."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    manager, client = await start_new_async_kernel(kernel_name=NAME, startup_timeout=LIMIT)
    assert "2" == await Notebook(client).result("1+1")
    client.stop_channels()
    process = manager.provisioner.process
    await manager.shutdown_kernel()
    assert (False, 0, []) == (await manager.is_alive(), process.poll(), list(tmp_path.iterdir()))
