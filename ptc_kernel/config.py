"""The configuration of a runtime: validated once, every default visible."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, final

from ptc_kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ptc_kernel.attachments import AttachmentStore

__all__ = ("JupyterPtcConfig",)

MAX_MS: Final = 2_147_483_647
MAX_MESSAGE: Final = 4_294_967_295
LEAST_OUTPUT: Final = 4  # an empty list and an empty message


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JupyterPtcConfig:
    """How a `JupyterPtcRuntime` runs programs. Times are milliseconds, sizes are bytes.

    Attributes:
        timeout_ms: the elapsed budget of a run that does not choose one.
        max_timeout_ms: the largest budget that a run can choose; None (no deadline) is not capped.
        max_output_bytes: text, images and value (or message) of one run together.
        max_message_bytes: one control frame, and the outstanding arguments of one run.
        max_pending_calls: binding calls of one run whose handlers may run at the same time.
        grace_ms: how long an interrupted program, or a process told to end, may take.
        startup_timeout_ms: how long a kernel may take to be ready.
        max_memory_mb: address space of a kernel in MiB; None does not limit it.
        python_executable: the interpreter of the kernels: CPython 3.11 or newer with ipykernel.
        env: variables added to the scrubbed environment of the kernels.
        cwd: working directory of runs that name none; None is the host's, at resolve.
        attachments: where images are stored; None is a private folder that ends with the runtime.
        stop: `interrupt` tries to keep the variables of a stopped program, `kill` does not.

    Raises:
        ConfigError: a field has a value or a type that it must not have.
    """

    timeout_ms: float = 120_000
    max_timeout_ms: float = 600_000
    max_output_bytes: int = 67_108_864
    max_message_bytes: int = 134_217_728
    max_pending_calls: int = 128
    grace_ms: float = 3_000
    startup_timeout_ms: float = 60_000
    max_memory_mb: int | None = None
    python_executable: str = field(default_factory=lambda: sys.executable)
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    stop: Literal["interrupt", "kill"] = "interrupt"
    attachments: AttachmentStore | None = None

    def __post_init__(self) -> None:
        for name in ("timeout_ms", "max_timeout_ms", "grace_ms", "startup_timeout_ms"):
            _milliseconds(name, getattr(self, name))
        _whole("max_output_bytes", self.max_output_bytes, LEAST_OUTPUT, None)
        _whole("max_message_bytes", self.max_message_bytes, 1, MAX_MESSAGE)
        _whole("max_pending_calls", self.max_pending_calls, 1, None)
        if self.max_memory_mb is not None:
            _whole("max_memory_mb", self.max_memory_mb, 1, None)
        if self.stop not in ("interrupt", "kill"):
            raise _refusal("stop", self.stop, "'interrupt' or 'kill'")
        if self.cwd is not None and not (type(self.cwd) is str and os.path.isabs(self.cwd)):
            raise _refusal("cwd", self.cwd, "an absolute path or None")
        if self.attachments is not None:
            store = self.attachments
            if not all(callable(getattr(store, name, None)) for name in ("put", "get", "path")):
                raise _refusal("attachments", self.attachments, "an AttachmentStore (put, get, path)")
        object.__setattr__(self, "python_executable", _interpreter(self.python_executable))
        object.__setattr__(self, "env", MappingProxyType(_environment(self.env)))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all fields."""
        return tuple(item.name for item in fields(cls))


def _refusal(name: str, value: object, allowed: str) -> ConfigError:
    shown = type(value).__name__
    if isinstance(value, (str, float, type(None))) or (isinstance(value, int) and value.bit_length() < 64):
        shown = repr(value)
    return ConfigError(f"{name} must be {allowed}, not {shown}")


def _milliseconds(name: str, value: Any) -> None:
    if type(value) not in (int, float) or not 0 < value <= MAX_MS:
        raise _refusal(name, value, f"a number of milliseconds above 0 and at most {MAX_MS}")


def _whole(name: str, value: Any, least: int, most: int | None) -> None:
    if type(value) is not int or value < least or (most is not None and value > most):
        end = "" if most is None else f" and at most {most}"
        raise _refusal(name, value, f"an integer of at least {least}{end}")


def _interpreter(path: Any) -> str:
    """The absolute path; symlinks are kept, because resolving them would leave a venv."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise _refusal("python_executable", path, "a path without NUL")
    absolute = os.path.abspath(path)
    try:
        mode = os.stat(absolute).st_mode
    except OSError as error:
        msg = f"python_executable {path!r} cannot be used: {error.strerror}"
        raise ConfigError(msg) from None
    if not stat.S_ISREG(mode) or not os.access(absolute, os.X_OK):
        msg = f"python_executable {path!r} is not an executable file"
        raise ConfigError(msg)
    return absolute


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    try:
        copy = dict(env)
    except (TypeError, ValueError):
        msg = f"env must be a mapping of str to str, not {type(env).__name__}"
        raise ConfigError(msg) from None
    for name, value in copy.items():
        good = type(name) is str and name and "=" not in name and "\0" not in name
        if not good or type(value) is not str or "\0" in value:
            msg = f"env must map names (no '=', no NUL) to str values; {name!r} does not"
            raise ConfigError(msg)
    return copy
