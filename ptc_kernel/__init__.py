"""Programmatic tool calling on Jupyter kernels.

A model writes a program; the program calls the host's async functions; one persistent kernel per
state owner keeps its variables from run to run. `JupyterPtcRuntime` is the place to begin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptc_kernel._version import __version__ as __version__
    from ptc_kernel.abort import AbortController as AbortController
    from ptc_kernel.abort import AbortSignal as AbortSignal
    from ptc_kernel.attachments import AttachmentError as AttachmentError
    from ptc_kernel.attachments import AttachmentStore as AttachmentStore
    from ptc_kernel.attachments import LocalAttachmentStore as LocalAttachmentStore
    from ptc_kernel.config import JupyterPtcConfig as JupyterPtcConfig
    from ptc_kernel.context import PtcCallContext as PtcCallContext
    from ptc_kernel.errors import ConfigError as ConfigError
    from ptc_kernel.errors import PtcError as PtcError
    from ptc_kernel.errors import PtcRunError as PtcRunError
    from ptc_kernel.errors import ReleaseError as ReleaseError
    from ptc_kernel.errors import UsageError as UsageError
    from ptc_kernel.errors import UsageTypeError as UsageTypeError
    from ptc_kernel.errors import UsageValueError as UsageValueError
    from ptc_kernel.repl import open_repl as open_repl
    from ptc_kernel.runtime import JupyterPtcRuntime as JupyterPtcRuntime
    from ptc_kernel.runtime import PtcRuntime as PtcRuntime
    from ptc_kernel.types import ABSENT as ABSENT
    from ptc_kernel.types import UNSET as UNSET
    from ptc_kernel.types import CallEvent as CallEvent
    from ptc_kernel.types import ImageAttachmentRef as ImageAttachmentRef
    from ptc_kernel.types import ImageOutput as ImageOutput
    from ptc_kernel.types import OutputEvent as OutputEvent
    from ptc_kernel.types import PtcBindingErrorClass as PtcBindingErrorClass
    from ptc_kernel.types import PtcBindingNamespace as PtcBindingNamespace
    from ptc_kernel.types import PtcCallRecord as PtcCallRecord
    from ptc_kernel.types import PtcImage as PtcImage
    from ptc_kernel.types import PtcRunFailure as PtcRunFailure
    from ptc_kernel.types import PtcRunRequest as PtcRunRequest
    from ptc_kernel.types import PtcRunResult as PtcRunResult
    from ptc_kernel.types import PtcRunSandbox as PtcRunSandbox
    from ptc_kernel.types import PtcRunSpec as PtcRunSpec
    from ptc_kernel.types import ResultEvent as ResultEvent
    from ptc_kernel.types import SandboxExecutionPolicy as SandboxExecutionPolicy
    from ptc_kernel.types import StateOwner as StateOwner
    from ptc_kernel.types import TextOutput as TextOutput

_HOMES = {
    "_version": ("__version__",),
    "abort": ("AbortController", "AbortSignal"),
    "attachments": ("AttachmentError", "AttachmentStore", "LocalAttachmentStore"),
    "config": ("JupyterPtcConfig",),
    "context": ("PtcCallContext",),
    "errors": (
        "ConfigError",
        "PtcError",
        "PtcRunError",
        "ReleaseError",
        "UsageError",
        "UsageTypeError",
        "UsageValueError",
    ),
    "repl": ("open_repl",),
    "runtime": ("JupyterPtcRuntime", "PtcRuntime"),
    "types": (
        "ABSENT",
        "UNSET",
        "CallEvent",
        "ImageAttachmentRef",
        "ImageOutput",
        "OutputEvent",
        "PtcBindingErrorClass",
        "PtcBindingNamespace",
        "PtcCallRecord",
        "PtcImage",
        "PtcRunFailure",
        "PtcRunRequest",
        "PtcRunResult",
        "PtcRunSandbox",
        "PtcRunSpec",
        "ResultEvent",
        "SandboxExecutionPolicy",
        "StateOwner",
        "TextOutput",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = (
    "ABSENT",
    "UNSET",
    "AbortController",
    "AbortSignal",
    "AttachmentError",
    "AttachmentStore",
    "CallEvent",
    "ConfigError",
    "ImageAttachmentRef",
    "ImageOutput",
    "JupyterPtcConfig",
    "JupyterPtcRuntime",
    "LocalAttachmentStore",
    "OutputEvent",
    "PtcBindingErrorClass",
    "PtcBindingNamespace",
    "PtcCallContext",
    "PtcCallRecord",
    "PtcError",
    "PtcImage",
    "PtcRunError",
    "PtcRunFailure",
    "PtcRunRequest",
    "PtcRunResult",
    "PtcRunSandbox",
    "PtcRunSpec",
    "PtcRuntime",
    "ReleaseError",
    "ResultEvent",
    "SandboxExecutionPolicy",
    "StateOwner",
    "TextOutput",
    "UsageError",
    "UsageTypeError",
    "UsageValueError",
    "__version__",
    "open_repl",
)


def __getattr__(name: str) -> Any:
    """Import a public name from its home the first time that it is used (PEP 562)."""
    if name not in _HOME_OF:
        msg = f"module 'ptc_kernel' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"ptc_kernel.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
