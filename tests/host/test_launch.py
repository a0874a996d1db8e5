"""Starting kernels: the scrubbed environment, the private folder, the descriptors, what can go wrong."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

import pytest

from ptc_kernel.config import JupyterPtcConfig
from ptc_kernel.host.launch import ALLOWED, LaunchedKernel, LaunchError, launch, scrubbed_environment

LONGEST_ADDRESS = 107  # bytes of a Unix socket's path
HELLO = {"owner": "test", "max_pending_calls": 1, "max_message_bytes": 1000, "max_memory_mb": None}

PRIVATE = {
    "IPYTHONDIR": "/private/ipython",
    "JUPYTER_CONFIG_DIR": "/private",
    "JUPYTER_DATA_DIR": "/private",
    "JUPYTER_RUNTIME_DIR": "/private",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}
SECRETS = [
    "ANTHROPIC_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "SSH_AUTH_SOCK",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "LD_PRELOAD",
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "NO_COLOR",
    "JUPYTER_TOKEN",
    "IPYTHON",
    "path",
    "Path",
    "PATHS",
    "XPATH",
    "LC",
    "XLC_ALL",
    "",
]
CONTRACT = (
    "PATH HOME USER LOGNAME SHELL LANG TZ TMPDIR VIRTUAL_ENV CONDA_PREFIX LD_LIBRARY_PATH "
    "SSL_CERT_FILE SSL_CERT_DIR CUDA_VISIBLE_DEVICES"
)

# Leaves beside the connection file what it was started with, and stays until it is killed.
REPORTER = """#!/bin/sh
cat /proc/$$/environ > environ
printf '%s\\n' "$@" > arguments
echo "a last word" >&2
exit 3
"""
SLEEPER = "#!/bin/sh\nexec sleep 1000\n"
DESCRIPTORS = f"""#!{sys.executable}
import os, sys

def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

have = [fd for fd in range(1024) if is_open(fd)]
given = [int(fd) for fd in sys.argv[-1].split(",")]
sys.stderr.write(str(have == sorted([0, 1, 2, *given])))
"""
TOO_FEW_DESCRIPTORS = """
import asyncio, os, resource, tempfile
from ptc_kernel.config import JupyterPtcConfig
from ptc_kernel.host.launch import LaunchedKernel

def count():
    return len(os.listdir("/proc/self/fd")) - 1

async def main():
    left, kernel, room = set(), None, 0
    while kernel is None:
        room += 1
        before = count()
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, 4096))
        try:
            kernel = LaunchedKernel(JupyterPtcConfig())
        except OSError:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
            left.add(count() - before)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    folders = set(os.listdir(tempfile.gettempdir())) - {os.path.basename(kernel.folder)}
    print(sorted(left), len(folders))

asyncio.run(main())
"""


@pytest.fixture
def interpreter(tmp_path):
    """Make a stand-in for the interpreter of a kernel: a script."""

    def make(text, name="python"):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
async def make_kernel():
    """Make kernels, and leave nothing of them: no process, no descriptor, no folder."""
    kernels, descriptors = [], len(os.listdir("/proc/self/fd"))

    def make(**config):
        kernels.append(LaunchedKernel(JupyterPtcConfig(**config)))
        return kernels[-1]

    yield make
    for kernel in kernels:
        if hasattr(kernel, "process"):
            kernel.process.kill()
            await kernel.process.dead
        kernel.close()
    assert descriptors == len(os.listdir("/proc/self/fd"))
    assert [] == [kernel.folder for kernel in kernels if os.path.exists(kernel.folder)]


async def refusal(kernel):
    """The text of the LaunchError, without which this fails."""
    with pytest.raises(LaunchError) as caught:
        await launch(kernel, HELLO, lambda _: None)
    return str(caught.value)


def mode(path):
    """The permission bits of a file."""
    return stat.S_IMODE(os.stat(path).st_mode)


# ---------------------------------------------------------------------- the environment


def test_the_allow_list_is_the_contracts():
    """The allowed names are those of the contract, and no others."""
    assert set(CONTRACT.split()) == ALLOWED


def test_allowed_names_pass():
    """The allowed variables and every LC_ variable pass unchanged."""
    host = {name: f"value of {name}" for name in [*CONTRACT.split(), "LC_ALL", "LC_CTYPE", "LC_"]}
    assert {**host, **PRIVATE} == scrubbed_environment(host, {}, "/private")


@pytest.mark.parametrize("name", SECRETS)
def test_other_names_do_not_pass(name):
    """Whatever else the host has in its environment stays there."""
    assert PRIVATE == scrubbed_environment({name: "secret"}, {}, "/private")


@pytest.mark.parametrize("name", [*PRIVATE, "JUPYTER_PATH"])
def test_folders_of_the_host_are_replaced(name):
    """IPython's and Jupyter's folders are private, whatever the host's are."""
    assert PRIVATE == scrubbed_environment({name: "/of/the/host"}, {}, "/private")


def test_what_is_configured_is_added_last():
    """The configured variables are added, and win over the host's and over ours."""
    extra = {"API_KEY": "meant for the program", "PATH": "/mine", "IPYTHONDIR": "/mine/ipython"}
    env = scrubbed_environment({"PATH": "/usr/bin", "HOME": "/home/me"}, extra, "/private")
    assert {**PRIVATE, **extra, "HOME": "/home/me"} == env


def test_nothing_that_was_given_is_changed():
    """The host's environment and the configured one are read only."""
    host, extra = {"PATH": "/usr/bin", "SECRET": "x"}, {"A": "b"}
    scrubbed_environment(host, extra, "/private")
    assert ({"PATH": "/usr/bin", "SECRET": "x"}, {"A": "b"}) == (host, extra)


async def test_the_process_never_sees_the_rest(make_kernel, interpreter, monkeypatch):
    """The block that the process is started with holds the scrubbed variables and nothing else."""
    monkeypatch.setenv("SECRET_TOKEN", "do not leak")
    monkeypatch.setenv("LC_TIME", "C")
    kernel = make_kernel(python_executable=interpreter(REPORTER), env={"EXTRA": "1"})
    await refusal(kernel)
    with open(f"{kernel.folder}/environ") as file:
        block = dict(line.split("=", 1) for line in file.read().split("\0") if line)
    assert scrubbed_environment(os.environ, {"EXTRA": "1"}, kernel.folder) == block
    assert ("C", "1") == (block["LC_TIME"], block["EXTRA"])


# ---------------------------------------------------------------------- the folder


async def test_the_folder_is_private(make_kernel, interpreter):
    """The folder, the connection file and the log are this user's alone."""
    kernel = make_kernel(python_executable=interpreter(REPORTER))
    assert 0o700 == mode(kernel.folder)
    await refusal(kernel)
    assert (0o600, 0o600) == (mode(f"{kernel.folder}/connection.json"), mode(f"{kernel.folder}/log"))


async def test_every_kernel_has_its_own(make_kernel, interpreter):
    """Two kernels share no folder, no key, no comm."""
    one, other = make_kernel(), make_kernel()
    for kernel in (one, other):
        kernel.config = JupyterPtcConfig(python_executable=interpreter(REPORTER))
        await refusal(kernel)
    assert one.folder != other.folder
    assert one.address.key != other.address.key
    assert one.comm_id != other.comm_id


async def test_the_connection_file(make_kernel, interpreter):
    """The connection file names five sockets in the folder, and a key."""
    kernel = make_kernel(python_executable=interpreter(REPORTER))
    await refusal(kernel)
    with open(f"{kernel.folder}/connection.json") as file:
        info = json.load(file)
    assert kernel.address.connection_info() == info
    assert ("ipc", f"{kernel.folder}/k", "hmac-sha256") == (
        info["transport"],
        info["ip"],
        info["signature_scheme"],
    )
    channels = ("shell", "iopub", "stdin", "control", "hb")
    urls = {kernel.address.url(channel) for channel in channels}
    assert {f"ipc://{info['ip']}-{info[f'{channel}_port']}" for channel in channels} == urls
    assert len(urls) == 5
    assert len(info["key"]) >= 32


async def test_a_temporary_folder_is_used(make_kernel, interpreter, monkeypatch, tmp_path):
    """The folder is made where temporary files go."""
    short = tempfile.mkdtemp(dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", short)
    try:
        kernel = make_kernel(python_executable=interpreter(REPORTER))
        await refusal(kernel)
        assert short == os.path.dirname(kernel.folder)
        kernel.close()
        assert [] == os.listdir(short)
    finally:
        shutil.rmtree(short)


@pytest.mark.parametrize("name", ["x" * 100, "\u20ac" * 34])
async def test_a_long_temporary_folder_is_not(make_kernel, interpreter, monkeypatch, tmp_path, name):
    """Where temporary files have paths too long for a Unix socket, a short folder is made instead."""
    long = tmp_path / name
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    kernel = make_kernel(python_executable=interpreter(REPORTER))
    await refusal(kernel)
    longest = max(len(os.fsencode(kernel.address.url(channel))) for channel in ("shell", "iopub", "hb"))
    assert longest - len("ipc://") <= LONGEST_ADDRESS
    assert (0o700, []) == (mode(kernel.folder), os.listdir(long))


async def test_a_folder_of_exactly_the_longest_path(make_kernel, interpreter, monkeypatch):
    """A path that just fits is used: its sockets have 107 bytes."""
    parent = tempfile.mkdtemp(dir="/tmp")
    room = LONGEST_ADDRESS - len("/k-5") - len("/ptc-12345678") - len(parent) - 1
    place = os.path.join(parent, "x" * room)
    os.mkdir(place)
    monkeypatch.setattr(tempfile, "tempdir", place)
    try:
        kernel = make_kernel(python_executable=interpreter(REPORTER))
        await refusal(kernel)
        assert place == os.path.dirname(kernel.folder)
        assert LONGEST_ADDRESS == len(kernel.address.url("hb")) - len("ipc://")
        kernel.close()
    finally:
        shutil.rmtree(parent)


async def test_closing_twice(make_kernel, interpreter):
    """Closing again is a no-op."""
    kernel = make_kernel(python_executable=interpreter(REPORTER))
    await refusal(kernel)
    kernel.close()
    kernel.close()
    assert not os.path.exists(kernel.folder)


# ---------------------------------------------------------------------- the process


async def test_the_command_line(make_kernel, interpreter):
    """The worker is started by its path, in safe-path mode, with connection file and descriptors."""
    kernel = make_kernel(python_executable=interpreter(REPORTER))
    await refusal(kernel)
    with open(f"{kernel.folder}/arguments") as file:
        safe, worker, flag, connection, option, fds = file.read().splitlines()
    assert ("-P", "-f", "--ptc-fds") == (safe, flag, option)
    assert f"{kernel.folder}/connection.json" == connection
    assert os.path.isfile(worker)
    assert ("kernel", "__main__.py") == tuple(worker.split(os.sep)[-2:])
    assert 7 == len({int(fd) for fd in fds.split(",")})


async def test_descriptors_are_the_given_ones_only(make_kernel, interpreter):
    """A kernel inherits its three standard descriptors, the seven that it is told of, and nothing else."""
    with open(os.devnull) as open_in_the_host:
        os.set_inheritable(open_in_the_host.fileno(), True)
        kernel = make_kernel(python_executable=interpreter(DESCRIPTORS))
        await refusal(kernel)
    assert "True" == kernel.log_tail()


async def test_a_kernel_gets_ready(make_kernel):
    """A real kernel starts, and leads a session of its own."""
    kernel = make_kernel()
    exits = []
    await launch(kernel, HELLO, exits.append)
    pid = kernel.process.pid
    assert (pid, pid, []) == (os.getsid(pid), os.getpgid(pid), exits)
    kernel.process.kill()
    assert -signal.SIGKILL == await kernel.process.dead
    assert [-signal.SIGKILL] == exits


async def test_log_of_a_failed_start(make_kernel, interpreter):
    """What a kernel wrote to its own stderr is kept for the message."""
    kernel = make_kernel(python_executable=interpreter(REPORTER))
    assert "the kernel process ended with exit code 3 while it was starting" == await refusal(kernel)
    assert ("a last word", 3) == (kernel.log_tail(), kernel.process.dead.result())


async def test_only_the_end_of_a_long_log(make_kernel, interpreter):
    """Of a long log the end is kept, bounded; broken UTF-8 is no error."""
    script = "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x >&2\nprintf '\\377end\\n' >&2\n"
    kernel = make_kernel(python_executable=interpreter(script))
    await refusal(kernel)
    tail = kernel.log_tail()
    assert tail.endswith("xxx\ufffdend")
    assert len(tail) < 2001


async def test_no_log(make_kernel, interpreter):
    """A kernel whose folder is gone has an empty log."""
    kernel = make_kernel(python_executable=interpreter(REPORTER))
    await refusal(kernel)
    kernel.close()
    assert "" == kernel.log_tail()


# ---------------------------------------------------------------------- what can go wrong


async def test_an_interpreter_that_was_deleted(make_kernel, interpreter):
    """An interpreter that was there at configuration and is gone at start is a LaunchError."""
    path = interpreter(REPORTER)
    kernel = make_kernel(python_executable=path)
    os.remove(path)
    assert "the kernel could not be started: No such file or directory" == await refusal(kernel)


async def test_an_interpreter_that_lost_its_permission(make_kernel, interpreter):
    """An interpreter that cannot be executed any more is a LaunchError."""
    path = interpreter(REPORTER)
    kernel = make_kernel(python_executable=path)
    os.chmod(path, 0o644)
    assert "the kernel could not be started: Permission denied" == await refusal(kernel)


async def test_an_interpreter_that_is_no_program(make_kernel, interpreter):
    """A file that is executable and no program is a LaunchError."""
    kernel = make_kernel(python_executable=interpreter("\x7fELF, not quite"))
    assert "the kernel could not be started: Exec format error" == await refusal(kernel)


async def test_a_kernel_that_is_not_ready_in_time(make_kernel, interpreter):
    """A kernel that is not ready in time is killed, and the message names the limit."""
    kernel = make_kernel(python_executable=interpreter(SLEEPER), startup_timeout_ms=50)
    text = "the kernel was not ready within startup_timeout_ms (50 ms)"
    assert text == await refusal(kernel)
    assert -signal.SIGKILL == await kernel.process.dead


async def test_a_cancelled_start(make_kernel, interpreter):
    """A start that is cancelled leaves a kernel that can be killed and closed."""
    kernel = make_kernel(python_executable=interpreter(SLEEPER))
    starting = asyncio.ensure_future(launch(kernel, HELLO, lambda _: None))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert kernel.process.alive


def test_a_host_without_descriptors(tmp_path):
    """Where the host runs out of descriptors, a kernel that cannot be made leaves none, and no folder."""
    command = [sys.executable, "-c", TOO_FEW_DESCRIPTORS]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "[0] 0\n" == done.stdout
