"""Everything that this package raises.

    PtcError
    ├── UsageError (RuntimeError)   the caller broke the contract: run after disposal, a re-entrant run
    │   ├── UsageValueError         ... a bad value: a reserved binding name, a relative cwd
    │   └── UsageTypeError          ... a wrong type: a program that is not a str
    ├── ConfigError (ValueError)    bad configuration; names the field
    ├── ReleaseError (RuntimeError) managed clean-up failed; a later release may retry
    └── PtcRunError                 only from `PtcRunResult.raise_for_error()`

What a program does is never raised: it is data in `PtcRunResult.error`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptc_kernel.types import PtcRunResult

__all__ = (
    "ConfigError",
    "PtcError",
    "PtcRunError",
    "ReleaseError",
    "UsageError",
    "UsageTypeError",
    "UsageValueError",
)


class PtcError(Exception):
    """The parent of every exception that ptc_kernel raises."""


class UsageError(PtcError, RuntimeError):
    """The caller broke the contract; nothing was started."""


class UsageValueError(UsageError, ValueError):
    """An argument has a value that the contract does not allow; nothing was started."""


class UsageTypeError(UsageError, TypeError):
    """An argument has a type that the contract does not allow; nothing was started."""


class ConfigError(PtcError, ValueError):
    """A configuration field is not usable; the message names the field and the allowed values."""


class ReleaseError(PtcError, RuntimeError):
    """The managed clean-up of an environment failed; a later release may retry it."""


class PtcRunError(PtcError):
    """A run failed, and the caller asked for an exception.

    Attributes:
        result: the whole result, with the output that was captured before the failure.
        kind: the failure kind, one of `FAILURE_KINDS`.
    """

    def __init__(self, result: PtcRunResult) -> None:
        error = result.error
        super().__init__("the run did not fail" if error is None else f"{error.kind}: {error.message}")
        self.result = result
        self.kind = None if error is None else error.kind
