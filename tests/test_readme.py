"""The README's Python runs as it is printed."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).parent.parent / "README.md"


def test_quickstart():
    """The quickstart has at most ten lines, and the second program sees the first one's variable."""
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert ("", 0) == (done.stderr, done.returncode)
    assert "42\n" == done.stdout
    assert 10 >= len(program.splitlines())
