"""A host for `test_host_death.py` to kill: starts a kernel, runs a program, tells when it is there.

    python -m tests.live.host_process PROGRAM [fork]

Prints the pids of the kernel and of this process's fork, if any, as JSON once the program says
`await host.ready({...})`, or once it ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from ptc_kernel import JupyterPtcRuntime, PtcBindingNamespace, PtcRunRequest, StateOwner


async def main(program: str, fork: bool) -> None:
    """Run the program and stay until killed."""
    told = False

    def tell(facts: dict[str, object]) -> None:
        nonlocal told
        if told:
            return
        told = True
        child = os.fork() if fork else 0
        if fork and child == 0:
            time.sleep(600)  # a pre-fork server's worker that outlives the host
            os._exit(0)
        sys.stdout.write(json.dumps({**facts, "fork": child}) + "\n")
        sys.stdout.flush()

    async def ready(facts: dict[str, object]) -> None:
        asyncio.get_running_loop().call_later(0.05, tell, facts)

    runtime = JupyterPtcRuntime()
    host = PtcBindingNamespace(global_name="host", functions={"ready": ready})
    request = PtcRunRequest(program=program, bindings=(host,), state_owner=StateOwner(), timeout_ms=None)
    await runtime.run(runtime.resolve(request))
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1], "fork" in sys.argv[2:]))
