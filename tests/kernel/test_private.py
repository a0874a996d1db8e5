"""Modules that keep the builtins of the time of their import, whatever a program does to builtins later."""

from __future__ import annotations

import builtins
import importlib
import subprocess
import sys
from importlib.machinery import SourceFileLoader

import pytest

from ptc_kernel.kernel.private import BuiltinsKept

MODULE = """
first = ptc_test_builtin

def look():
    return ptc_test_builtin

class Looker:
    def look(self):
        return ptc_test_builtin
"""
BROKEN = """
import builtins, os, sys
sys.path.insert(0, sys.argv[1])
from ptc_kernel.kernel.private import BuiltinsKept

with BuiltinsKept():
    import ptc_kept
import ptc_open
functions = [name for name in vars(builtins) if name.islower() and not name.startswith("__")]
vars(builtins).update(dict.fromkeys(functions))
failed = ""
kept = ptc_kept.measure(["a", "bb"])
try:
    ptc_open.measure(["a"])
except TypeError as error:
    failed = error.args[0]
os.write(1, f"{kept} {failed}".encode())
os._exit(0)
"""
MEASURE = """
def measure(texts):
    return sorted(len(text) for text in texts if isinstance(text, str)), max(map(len, texts))
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Write modules into a folder on the path; nothing of them is left."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "ptc_test_builtin", "then", raising=False)
    before = set(sys.modules)

    def write(name, text=MODULE):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def change(monkeypatch):
    """What a program may do."""
    monkeypatch.setattr(builtins, "ptc_test_builtin", "now")


def test_a_kept_module_sees_the_builtins_of_its_import(modules, monkeypatch):
    """Functions and methods of a module that was imported meanwhile see no later change."""
    modules("ptc_kept.py")
    with BuiltinsKept():
        kept = importlib.import_module("ptc_kept")
    change(monkeypatch)
    assert ["then"] * 3 == [kept.first, kept.look(), kept.Looker().look()]


def test_builtins_that_are_taken_away(modules, monkeypatch):
    """A builtin that is deleted later is still there for a kept module."""
    modules("ptc_kept.py")
    with BuiltinsKept():
        kept = importlib.import_module("ptc_kept")
    monkeypatch.delattr(builtins, "ptc_test_builtin")
    assert "then" == kept.look()


def test_a_kept_module_changes_nothing_for_others(modules, monkeypatch):
    """Modules that are imported before or after see the builtins as they are."""
    for name in ("ptc_before.py", "ptc_kept.py", "ptc_after.py"):
        modules(name)
    before = importlib.import_module("ptc_before")
    with BuiltinsKept():
        importlib.import_module("ptc_kept")
    after = importlib.import_module("ptc_after")
    change(monkeypatch)
    assert ["now", "now"] == [before.look(), after.look()]


def test_what_a_kept_module_imports_is_kept(modules, monkeypatch):
    """Packages, submodules, and imports of imports are all kept."""
    modules("ptc_package/__init__.py", MODULE + "from ptc_package.inner import look as look_inside\n")
    modules("ptc_package/inner.py")
    with BuiltinsKept():
        package = importlib.import_module("ptc_package")
    change(monkeypatch)
    assert ["then", "then"] == [package.look(), package.look_inside()]


def test_what_a_kept_module_imports_later_is_open(modules, monkeypatch):
    """An import that a kept module's function makes after the end is an ordinary one."""
    modules("ptc_kept.py", MODULE + "\ndef late():\n    import ptc_late\n    return ptc_late.look()\n")
    modules("ptc_late.py")
    with BuiltinsKept():
        kept = importlib.import_module("ptc_kept")
    change(monkeypatch)
    assert "now" == kept.late()


def test_a_module_from_its_bytecode_is_kept(modules, monkeypatch):
    """A module that was compiled before is kept like one that is compiled now."""
    modules("ptc_kept.py")
    importlib.import_module("ptc_kept")
    del sys.modules["ptc_kept"]
    with BuiltinsKept():
        kept = importlib.import_module("ptc_kept")
    change(monkeypatch)
    assert "then" == kept.look()


def test_a_module_that_was_imported_already_is_left_alone(modules, monkeypatch):
    """Importing a known module again changes nothing in it."""
    modules("ptc_open.py")
    known = importlib.import_module("ptc_open")
    with BuiltinsKept():
        assert known is importlib.import_module("ptc_open")
    change(monkeypatch)
    assert "now" == known.look()


def test_the_loader_is_restored(modules):
    """Afterwards the import system is as it was, after an import that failed, too."""
    modules("ptc_broken.py", "1 / 0")
    before = SourceFileLoader.exec_module
    with pytest.raises(ZeroDivisionError), BuiltinsKept():
        importlib.import_module("ptc_broken")
    assert before is SourceFileLoader.exec_module
    assert "exec_module" not in vars(SourceFileLoader)


def test_without_any_builtin(tmp_path):
    """With every function among the builtins gone, a kept module works, and an ordinary one does not."""
    for name in ("ptc_kept", "ptc_open"):
        (tmp_path / f"{name}.py").write_text(MEASURE)
    command = [sys.executable, "-c", BROKEN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "([1, 2], 2) 'NoneType' object is not callable" == done.stdout
