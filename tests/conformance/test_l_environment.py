"""Area L: what a program sees of its host, and what the host has of its programs: nothing unasked."""

from __future__ import annotations

import os
import signal
import sys
import tempfile

import pytest

from tests.support import Session, kind, text

pytestmark = pytest.mark.live

SECRETS = {
    "SECRET": "hidden-7f3a",
    "OPENAI_API_KEY": "hidden-7f3a",
    "AWS_SECRET_ACCESS_KEY": "hidden-7f3a",
    "PYTHONSTARTUP": "hidden-7f3a",
    "PYTHONHASHSEED": "7",
    "JPY_PARENT_PID": "1",
    "LD_PRELOAD_NOT": "hidden-7f3a",
    "FORCE_COLOR": "1",
    "CLICOLOR_FORCE": "1",
    "LCX": "hidden-7f3a",
}
LOOKS = {
    "os.environ": "import os\ndict(os.environ)",
    "the process": """
data = open("/proc/self/environ", "rb").read()
dict(item.decode().split("=", 1) for item in data.split(b"\\0") if item)
""",
    "a child": """
import subprocess
data = subprocess.check_output(["env", "-0"])
dict(item.decode().split("=", 1) for item in data.split(b"\\0") if item)
""",
    "a shell": """
import os
data = os.popen("env -0").read()
dict(item.split("=", 1) for item in data.split("\\0") if item)
""",
    "the parent's block through the shell": """
import subprocess
data = subprocess.check_output(["sh", "-c", "cat /proc/$PPID/environ"])
dict(item.decode().split("=", 1) for item in data.split(b"\\0") if item)
""",
}


async def test_secrets_of_the_host_stay_there(session, monkeypatch):
    """L01, L06: a variable that is not allowed reaches neither the program, its block nor its children."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for look in LOOKS.values():
        found = await session.value(look)
        assert [] == sorted(SECRETS.keys() & found.keys())
        assert "hidden-7f3a" not in str(found)
        assert os.environ["PATH"] == found["PATH"]
    assert "hidden-7f3a" == os.environ["SECRET"]


async def test_secrets_do_not_reach_one_shot_runs(runtime, monkeypatch):
    """L01: the same without an owner; a secret that is set later does not come in either."""
    session = Session(runtime, None)
    for name in ("SECRET", "LATER_SECRET"):
        monkeypatch.setenv(name, "hidden-7f3a")
        assert "hidden-7f3a" not in str(await session.value(LOOKS["os.environ"]))


async def test_what_is_allowed_comes_through(session, monkeypatch):
    """L01, 12: the variables of the allow-list reach the program as the host has them."""
    allowed = {
        "HOME": "/home/nobody",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "LC_TIME": "C",
        "TZ": "Asia/Tokyo",
        "USER": "somebody",
        "LOGNAME": "somebody",
        "SHELL": "/bin/sh",
        "VIRTUAL_ENV": "/an/environment",
        "CONDA_PREFIX": "/another",
        "SSL_CERT_FILE": "/a/file",
        "SSL_CERT_DIR": "/a/folder",
        "CUDA_VISIBLE_DEVICES": "0",
        "LD_LIBRARY_PATH": "/a/library",
    }
    for name, value in allowed.items():
        monkeypatch.setenv(name, value)
    found = await session.value(LOOKS["a child"])
    assert allowed == {name: found.get(name) for name in allowed}
    assert "Asia/Tokyo" == await session.value("import os, time\nos.environ['TZ']")


async def test_what_is_configured_comes_through(make_session, monkeypatch):
    """12: `env` of the configuration adds variables, may name a secret, and wins over the host's."""
    monkeypatch.setenv("SECRET", "hidden-7f3a")
    monkeypatch.setenv("LANG", "C")
    given = {"SECRET": "given", "MINE": "ä=b", "EMPTY": "", "LANG": "C.UTF-8"}
    session = make_session(env=given)
    for look in LOOKS.values():
        found = await session.value(look)
        assert given == {name: found.get(name) for name in given}


async def test_a_program_changes_only_its_own_environment(session, monkeypatch):
    """L08: what a program sets or deletes in its environment does not change the host's."""
    before = dict(os.environ)
    await session.run("import os\nos.environ['NEW'] = '1'\nos.environ.pop('PATH')")
    assert before == dict(os.environ)
    assert ["1", False] == await session.value("[os.environ['NEW'], 'PATH' in os.environ]")


async def test_private_folders(session):
    """12: the folders of IPython and Jupyter are private ones, for this user alone."""
    program = """
import os
names = [name for name in os.environ if name.startswith(("IPYTHON", "JUPYTER_"))]
folders = {os.environ[name].removesuffix("/ipython") for name in names}
folders = sorted(folders)
[sorted(names), folders, [os.stat(folder).st_mode & 0o777 for folder in folders], os.path.expanduser("~")]
"""
    names, folders, modes, home = await session.value(program)
    assert "IPYTHONDIR" in names
    assert "JUPYTER_CONFIG_DIR" in names
    assert ([0o700], 1) == (modes, len(folders))
    assert folders[0].startswith(tempfile.gettempdir())
    assert not folders[0].startswith(f"{home}/.")


async def test_the_command_line_tells_nothing(session, monkeypatch):
    """L01, 13: neither arguments nor modules of the host's process show in the kernel's."""
    monkeypatch.setattr(sys, "argv", ["program", "--token=hidden-7f3a"])
    program = "import sys\n[open('/proc/self/cmdline').read(), sys.argv, 'pytest' in sys.modules]"
    command, arguments, pytest_is_there = await session.value(program)
    assert "hidden-7f3a" not in command
    assert ([""], False) == (arguments, pytest_is_there)


async def test_nothing_is_inherited(session):
    """13: a kernel has none of the host's descriptors: what the host has open stays the host's."""
    with tempfile.NamedTemporaryFile() as file:
        os.set_inheritable(file.fileno(), True)
        program = """
import os
links = []
for fd in os.listdir("/proc/self/fd"):
    try:
        links.append(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        pass
links
"""
        assert file.name not in await session.value(program)


async def test_the_working_directory(session, tmp_path):
    """L03: a program runs in the folder of its spec, and without one in the host's."""
    assert str(tmp_path) == await session.value("import os\nos.getcwd()", cwd=str(tmp_path))
    assert os.getcwd() == await session.value("os.getcwd()")


async def test_relative_paths(session, tmp_path, make_session):
    """L04: what a program and its child write by a relative path lands in the working directory."""
    program = """
import subprocess
with open("mine.txt", "w") as file:
    file.write("mine")
subprocess.run(["sh", "-c", "printf theirs > child.txt"])
"""
    result = await session.run(program, cwd=str(tmp_path), discard_completion=True)
    assert None is kind(result)
    assert {"mine.txt": "mine", "child.txt": "theirs"} == {p.name: p.read_text() for p in tmp_path.iterdir()}
    (tmp_path / "helper.py").write_text("answer = 42\n")
    assert 42 == await session.value("import helper\nhelper.answer", cwd=str(tmp_path))
    configured = make_session(cwd=str(tmp_path))
    assert "mine" == await configured.value("open('mine.txt').read()")


@pytest.mark.parametrize("program", ["1", "1 / 0", "object()", "import os; os._exit(3)", "while True: pass"])
async def test_no_sandbox(session, program):
    """L05: a runtime that does not confine reports no sandbox, whatever the outcome."""
    result = await session.run(program, timeout_ms=700)
    assert None is result.sandbox


STDIN = {
    "read": "import sys\nsys.stdin.read()",
    "readline": "import sys\nsys.stdin.readline()",
    "iteration": "import sys\n''.join(sys.stdin)",
    "buffer": "import sys\nsys.stdin.buffer.read().decode()",
    "os.read": "import os\nos.read(0, 10).decode()",
    "child": "import subprocess\nsubprocess.run(['cat'], capture_output=True).stdout.decode()",
    "input": "input('name? ')",
    "getpass": "import getpass\ngetpass.getpass()",
    "breakpoint": "breakpoint()",
}


async def test_there_is_no_stdin(session):
    """L07: reading stdin, in any way, gives nothing or an exception at once, and never hangs."""
    for name, program in STDIN.items():
        result = await session.run(program, timeout_ms=10_000)
        assert kind(result) in (None, "exception"), name
        assert result.error is not None or "" == result.value, name
    assert 2 == await session.value("1 + 1")


async def test_stdin_closed_by_a_program(session):
    """L07: a program that closes or replaces stdin does not take it from the next one."""
    for program in (
        "import sys\nsys.stdin.close()",
        "import sys\nsys.stdin = None",
        "import os\nos.close(0)",
    ):
        await session.run(program)
        result = await session.run("import sys\nsys.stdin.read()", timeout_ms=10_000)
        assert (None, "") == (kind(result), result.value)


async def test_the_host_is_left_alone(make_runtime, capfd):
    """L08: signal handlers, folder, path, streams and descriptors of the host are as they were."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGIO, signal.SIGHUP, signal.SIGPIPE]

    def picture():
        return (
            [signal.getsignal(number) for number in numbers],
            os.getcwd(),
            list(sys.path),
            dict(os.environ),
            (sys.stdin, sys.stdout, sys.stderr, sys.displayhook, sys.excepthook),
            signal.set_wakeup_fd(-1),
            os.getpgrp(),
            os.umask(0o022),
        )

    os.umask(0o022)
    wakeup = signal.set_wakeup_fd(-1)
    before = picture()
    runtime = make_runtime(grace_ms=300)
    for owner in (object(), None):
        session = Session(runtime, owner)
        programs = (
            "import os, sys\nos.chdir('/')\nsys.path.append('/x')\nos.umask(0)\nprint('from the program')",
            "import os\nos.system('echo from the child')\nos.write(2, b'from the descriptor')",
            "1 / 0",
            "while True: pass",
            "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        )
        for program in programs:
            await session.run(program, timeout_ms=700)
    await runtime.aclose()
    after = picture()
    signal.set_wakeup_fd(wakeup)
    assert before == after
    assert ("", "") == capfd.readouterr()


async def test_a_signal_for_the_terminal_spares_the_kernel(session):
    """8.8: a kernel has a session and a group of its own, which Ctrl-C at the host's does not reach."""
    program = "import os\n[os.getpid(), os.getpgrp(), os.getsid(0), os.getppid()]"
    pid, group, leader, parent = await session.value(program)
    assert (pid, pid, os.getpid()) == (group, leader, parent)


async def test_a_program_is_not_told_its_host(session):
    """13: no name of the provider is among the program's globals, and help on them is plain Python."""
    names = await session.value("sorted(name for name in globals() if not name.startswith('__'))")
    assert [name for name in names if name != "_dh"] == []
    result = await session.run("print(__name__)\nimport __main__\n__main__.__dict__ is globals()")
    assert ("__main__\n", True) == (text(result), result.value)
