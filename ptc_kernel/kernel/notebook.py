"""The kernel as a person starts it from a launcher: a plain Python kernel without a host.

IPython's and ipykernel's defaults all stand; no bindings exist.
"""

from __future__ import annotations

from ipykernel.kernelapp import IPKernelApp

__all__ = ("run_notebook_kernel",)


def run_notebook_kernel() -> None:
    """Run until the notebook shuts the kernel down."""
    IPKernelApp.launch_instance()
