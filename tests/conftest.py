"""Fixtures of the live tests. Every runtime must leave no process behind."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from ptc_kernel import JupyterPtcRuntime
from tests.support import Session, children

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture
async def make_runtime() -> AsyncIterator[Callable[..., JupyterPtcRuntime]]:
    """Make runtimes with any configuration; all are closed, and none leaves a child process."""
    before = children()
    async with AsyncExitStack() as stack:

        def make(**config: Any) -> JupyterPtcRuntime:
            runtime = JupyterPtcRuntime(**config)
            stack.push_async_callback(runtime.aclose)
            return runtime

        yield make
    assert set() == children() - before


@pytest.fixture
async def runtime(make_runtime: Callable[..., JupyterPtcRuntime]) -> JupyterPtcRuntime:
    """A runtime with the default configuration."""
    return make_runtime()


@pytest.fixture
def session(runtime: JupyterPtcRuntime) -> Session:
    """One owner of the default runtime."""
    return Session(runtime)


@pytest.fixture
def make_session(make_runtime: Callable[..., JupyterPtcRuntime]) -> Callable[..., Session]:
    """Make one owner of a runtime with this configuration."""
    return lambda **config: Session(make_runtime(**config))
