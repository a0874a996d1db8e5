"""The front door: what it exports, and what opening it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ptc_kernel

HEAVY = ("zmq", "jupyter_client", "ipykernel", "IPython", "PIL", "matplotlib", "nbformat", "mcp", "asyncio")


def test_all_names_resolve():
    """Every name in __all__ can be imported, and __all__ is complete and has no doubles."""
    names = list(ptc_kernel.__all__)

    assert sorted(ptc_kernel._HOME_OF) == sorted(names)
    assert [] == [name for name in names if not hasattr(ptc_kernel, name)]


def test_unknown_name():
    """A name that does not exist raises AttributeError and names the module."""
    with pytest.raises(AttributeError, match="ptc_kernel"):
        _ = ptc_kernel.nothing_of_this_name


def test_import_is_light():
    """Importing the package loads nothing heavy until a name is used."""
    code = f"import sys, ptc_kernel; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]\n" == done.stdout


def test_vocabulary_is_light():
    """The seam's vocabulary comes without Jupyter."""
    code = (
        f"from ptc_kernel import PtcRunRequest; import sys; print([n for n in {HEAVY} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]\n" == done.stdout
