"""The public API is typed completely, as pyright sees it from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys

FRONT_DOOR = (
    "__init__",
    "abort",
    "attachments",
    "blocking",
    "config",
    "context",
    "errors",
    "rendering",
    "repl",
    "runtime",
    "types",
)


def test_public_api_is_typed():
    """Every symbol of the modules behind the front door has a type that every checker agrees on."""
    folder = os.path.dirname(sys.executable)
    path = f"{folder}:{os.environ['PATH']}"
    environment = {**os.environ, "VIRTUAL_ENV": os.path.dirname(folder), "PATH": path}
    command = [f"{folder}/pyright", "--verifytypes", "ptc_kernel", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    report = json.loads(done.stdout)["typeCompleteness"]

    problems = [
        (symbol["name"], diagnostic["message"])
        for symbol in report["symbols"]
        for diagnostic in symbol["diagnostics"]
        if os.path.basename(diagnostic["file"]).removesuffix(".py") in FRONT_DOOR
        and os.path.basename(os.path.dirname(diagnostic["file"])) == "ptc_kernel"
    ]
    assert [] == problems
    assert 30 < sum(symbol["name"].count(".") == 2 for symbol in report["symbols"] if symbol["isExported"])
