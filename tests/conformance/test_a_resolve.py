"""Area A: descriptors, resolve and configuration; what is misuse raises, and starts no process."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from ptc_kernel import (
    UNSET,
    AbortController,
    ConfigError,
    JupyterPtcConfig,
    JupyterPtcRuntime,
    PtcRunRequest,
    PtcRunSpec,
    SandboxExecutionPolicy,
    StateOwner,
    UsageError,
    UsageTypeError,
    UsageValueError,
)
from tests.support import Session, children, echo, kind, namespace

MOST = 2**31 - 1
POLICY = SandboxExecutionPolicy(mode="danger-full-access", workspace_root="/")


def request(**fields):
    """A request of a program that does nothing."""
    return PtcRunRequest(**{"program": "1", **fields})


def script(path, text):
    """An executable file that stands in for an interpreter; returns its path."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


# ---------------------------------------------------------------------- descriptors


@pytest.mark.core
async def test_descriptors(runtime):
    """A01: the descriptors say what this provider is, on the class and on the object."""
    for place in (JupyterPtcRuntime, runtime):
        assert "python" == place.language
        assert "process" == place.isolation
        assert "repl" == place.program_format
        assert place.retains_state is True
        assert place.sandbox_mode is None
    assert (120_000, 600_000) == (runtime.timeout.default_ms, runtime.timeout.max_ms)


@pytest.mark.core
async def test_default_above_the_maximum(make_runtime):
    """A02: a default above the maximum is reported, and resolved, as the maximum."""
    runtime = make_runtime(timeout_ms=2_000, max_timeout_ms=1_000)
    assert (1_000, 1_000) == (runtime.timeout.default_ms, runtime.timeout.max_ms)
    assert 1_000 == runtime.resolve(request()).timeout_ms


async def test_instructions(make_runtime):
    """A15: the instructions are the same text each time, name the rules, and hold no host path."""
    runtime, other = make_runtime(), make_runtime()
    instructions = runtime.execution_instructions
    assert instructions == runtime.execution_instructions == other.execution_instructions
    lower = instructions.lower()
    for word in (
        "repl",
        "await",
        "last expression",
        "return",
        "variables",
        "reset",
        "json",
        "stdin",
        "asyncio.run",
    ):
        assert word in lower
    assert re.search(r"(stay|persist|kept|keep)", lower)
    for path in (os.getcwd(), sys.prefix, os.path.expanduser("~"), "/tmp", "/usr", "/home"):
        assert path not in instructions
    assert not re.search(r"(?<![\w.])/\w+/\w", instructions)


async def test_instructions_say_how_many_calls_run_at_once(make_runtime):
    """A15: the instructions carry the configured number of simultaneous calls."""
    assert "128" in make_runtime().execution_instructions
    instructions = make_runtime(max_pending_calls=17).execution_instructions
    assert "17" in instructions
    assert "128" not in instructions


# ---------------------------------------------------------------------- resolve


@pytest.mark.core
@pytest.mark.parametrize(
    ("chosen", "resolved"),
    [
        pytest.param({}, 120_000, id="A03-omitted"),
        pytest.param({"timeout_ms": UNSET}, 120_000, id="A03-unset"),
        pytest.param({"timeout_ms": 900_000}, 600_000, id="A03-above-the-maximum"),
        pytest.param({"timeout_ms": 600_000}, 600_000, id="A03-the-maximum"),
        pytest.param({"timeout_ms": 5}, 5, id="A03-small"),
        pytest.param({"timeout_ms": 0.25}, 0.25, id="A03-a-fraction"),
        pytest.param({"timeout_ms": 5e-324}, 5e-324, id="A03-the-smallest-float"),
        pytest.param({"timeout_ms": 10**400}, 600_000, id="A03-an-int-beyond-every-float"),
        pytest.param({"timeout_ms": None}, None, id="A04-no-deadline"),
    ],
)
async def test_resolved_timeout(runtime, chosen, resolved):
    """A03, A04: an omitted budget is the default, a number is capped, and None stays None."""
    assert resolved == runtime.resolve(request(**chosen)).timeout_ms


@pytest.mark.core
@pytest.mark.parametrize(
    "timeout_ms",
    [0, 0.0, -1, -0.0, pytest.param(-(10**400), id="below-every-float"), math.nan, math.inf, -math.inf],
)
async def test_timeout_that_is_no_budget(runtime, timeout_ms):
    """A05: a budget that is not positive and finite raises at resolve."""
    with pytest.raises(UsageValueError, match="timeout_ms"):
        runtime.resolve(request(timeout_ms=timeout_ms))


@pytest.mark.parametrize("timeout_ms", [True, False, "1", b"1", [1], Decimal(5), Fraction(1), 1j, object()])
async def test_timeout_of_a_wrong_type(runtime, timeout_ms):
    """A05: a budget that is no int or float raises at resolve; a bool is no number."""
    with pytest.raises(UsageTypeError, match="timeout_ms"):
        runtime.resolve(request(timeout_ms=timeout_ms))


@pytest.mark.core
@pytest.mark.parametrize("cwd", ["relative", "", ".", "./a", "../a", "~", "~/a", "file:///tmp", "/a\0b"])
async def test_cwd_that_is_not_absolute(runtime, cwd):
    """A07: a working directory that is no absolute path raises at resolve."""
    with pytest.raises(UsageValueError, match="cwd"):
        runtime.resolve(request(cwd=cwd))


@pytest.mark.parametrize("cwd", [Path("/"), b"/", 1, ["/"], True])
async def test_cwd_of_a_wrong_type(runtime, cwd):
    """A07: a working directory that is no str raises at resolve."""
    with pytest.raises(UsageTypeError, match="cwd"):
        runtime.resolve(request(cwd=cwd))


@pytest.mark.core
async def test_resolve_fills_the_gaps_and_nothing_else(runtime):
    """A08: the spec has an absolute directory and every field of the request, which is unchanged."""
    bindings = [namespace(echo=echo)]
    owner, signal = StateOwner("resolve"), AbortController().signal
    wanted = request(bindings=bindings, state_owner=owner, signal=signal, discard_completion=True)
    before = {field.name: getattr(wanted, field.name) for field in dataclasses.fields(wanted)}
    spec = runtime.resolve(wanted)
    assert isinstance(spec, PtcRunSpec)
    assert os.path.isabs(spec.cwd)
    assert os.path.isdir(spec.cwd)
    assert before == {field.name: getattr(wanted, field.name) for field in dataclasses.fields(wanted)}
    assert (None, UNSET) == (wanted.cwd, wanted.timeout_ms)
    assert "1" == spec.program
    assert spec.bindings is bindings
    assert spec.state_owner is owner
    assert spec.signal is signal
    assert spec.discard_completion is True
    assert spec.display_completion is False
    assert spec.sandbox_policy is None


async def test_resolve_is_repeatable(runtime):
    """A08: a spec resolves to an equal spec, and an absolute cwd is kept as it is spelled."""
    spec = runtime.resolve(request(cwd="/usr/../tmp/", timeout_ms=5))
    assert "/usr/../tmp/" == spec.cwd
    assert spec == runtime.resolve(spec)


async def test_default_cwd(make_runtime, tmp_path):
    """A08: the configured directory is the default; without one it is the host's."""
    assert os.getcwd() == make_runtime().resolve(request()).cwd
    assert str(tmp_path) == make_runtime(cwd=str(tmp_path)).resolve(request()).cwd
    assert "/" == make_runtime(cwd=str(tmp_path)).resolve(request(cwd="/")).cwd


async def test_request_and_spec_are_frozen(runtime):
    """A08: neither a request nor a spec can be changed after it was made."""
    for value in (request(), runtime.resolve(request())):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.timeout_ms = 1


@pytest.mark.core
@pytest.mark.parametrize("mode", ["danger-full-access", "read-only", "workspace-write"])
async def test_policy_is_refused(runtime, mode):
    """A09: a provider that does not confine refuses each policy, at resolve and when smuggled into a spec."""
    policy = SandboxExecutionPolicy(mode=mode, workspace_root="/", session_id="s")
    with pytest.raises(UsageValueError, match="sandbox_policy"):
        runtime.resolve(request(sandbox_policy=policy))
    before = children()
    spec = dataclasses.replace(runtime.resolve(request()), sandbox_policy=policy)
    with pytest.raises(UsageValueError, match="sandbox_policy"):
        await runtime.run(spec)
    assert before == children()


@pytest.mark.core
@pytest.mark.parametrize(
    ("smuggled", "named"),
    [
        pytest.param({"timeout_ms": 700_000}, "timeout_ms", id="A10-above-the-maximum"),
        pytest.param({"timeout_ms": 600_000.5}, "timeout_ms", id="A10-just-above-the-maximum"),
        pytest.param({"timeout_ms": 10**400}, "timeout_ms", id="A10-an-int-beyond-every-float"),
        pytest.param({"timeout_ms": math.inf}, "timeout_ms", id="A10-inf"),
        pytest.param({"timeout_ms": math.nan}, "timeout_ms", id="A10-nan"),
        pytest.param({"timeout_ms": 0}, "timeout_ms", id="A10-zero"),
        pytest.param({"timeout_ms": -5}, "timeout_ms", id="A10-negative"),
        pytest.param({"timeout_ms": UNSET}, "timeout_ms", id="A10-unset"),
        pytest.param({"timeout_ms": True}, "timeout_ms", id="A10-a-bool"),
        pytest.param({"timeout_ms": "5"}, "timeout_ms", id="A10-a-str"),
        pytest.param({"cwd": "relative"}, "cwd", id="A10-relative-cwd"),
        pytest.param({"cwd": ""}, "cwd", id="A10-empty-cwd"),
        pytest.param({"cwd": None}, "cwd", id="A10-no-cwd"),
        pytest.param({"state_owner": 5}, "state_owner", id="A10-a-primitive-owner"),
        pytest.param({"signal": "abort"}, "signal", id="A10-no-signal"),
    ],
)
@pytest.mark.parametrize("way", ["run", "stream"])
async def test_run_fills_no_gap(runtime, smuggled, named, way):
    """A10: a spec that resolve would not have made raises at run and at stream, and starts nothing."""
    before = children()
    spec = dataclasses.replace(runtime.resolve(request()), **smuggled)
    with pytest.raises(UsageError, match=named):
        await runtime.run(spec) if way == "run" else runtime.stream(spec)
    assert before == children()


@pytest.mark.core
async def test_run_takes_only_specs(runtime):
    """A10: a request that was not resolved, or anything else, raises at run; resolve takes requests only."""
    before = children()
    for unresolved in (request(), "1", None, object()):
        with pytest.raises(UsageTypeError):
            await runtime.run(unresolved)
    for other in ("1", None, {"program": "1"}):
        with pytest.raises(UsageTypeError):
            runtime.resolve(other)
    assert before == children()


@pytest.mark.core
async def test_order_of_checks(runtime):
    """A09, A10: the policy is checked before cwd and budget, and these before the bindings."""
    spec = runtime.resolve(request(bindings=[namespace("console")]))
    with pytest.raises(UsageValueError, match="sandbox_policy"):
        await runtime.run(dataclasses.replace(spec, sandbox_policy=POLICY, cwd="relative"))
    with pytest.raises(UsageValueError, match="cwd"):
        await runtime.run(dataclasses.replace(spec, cwd="relative"))
    with pytest.raises(UsageValueError, match="timeout_ms"):
        await runtime.run(dataclasses.replace(spec, timeout_ms=-1))
    with pytest.raises(UsageValueError, match="console"):
        await runtime.run(spec)


class Text(str):
    """A str subclass, which is no str."""

    __slots__ = ()


@pytest.mark.parametrize("program", [b"1", None, 1, ["1"], bytearray(b"1"), Text("1")])
async def test_program_that_is_no_str(program):
    """A16: a program that is not exactly a str raises."""
    with pytest.raises(UsageTypeError, match="program"):
        PtcRunRequest(program=program)


async def test_request_takes_keywords_only():
    """A16: a request needs a program, and takes keywords only."""
    with pytest.raises(TypeError):
        PtcRunRequest("1")
    with pytest.raises(TypeError):
        PtcRunRequest()


# ---------------------------------------------------------------------- configuration

REFUSED = [
    ("timeout_ms", [0, -1, math.nan, math.inf, -math.inf, MOST + 1, 2.0**31, 10**400, True, "120000", None]),
    ("max_timeout_ms", [0, -1, math.nan, math.inf, MOST + 1, False, "1"]),
    ("grace_ms", [0, -0.5, math.nan, MOST + 1, True, "3000"]),
    ("startup_timeout_ms", [0, math.nan, MOST + 1, True, None]),
    ("max_pending_calls", [0, -1, 1.5, 128.0, True, "1", math.nan]),
    ("max_output_bytes", [3, 0, -4, 4.5, 64.0, True, "4", math.nan, None]),
    ("max_message_bytes", [0, -1, 1.5, 2**32, True, "1"]),
    ("max_memory_mb", [0, -1, 1.5, True, "512", math.nan]),
    ("stop", ["Kill", "", None, True]),
    ("cwd", ["relative", "", b"/", Path("/")]),
    ("env", [{"A": 1}, {1: "a"}, {"": "a"}, {"A=B": "a"}, {"A": "a\0"}, {"A\0": "a"}, 5, "A=1"]),
    ("python_executable", [None, b"/bin/sh", 5]),
]


@pytest.mark.parametrize(
    ("field", "value"),
    [pytest.param(field, value, id=f"A11-{field}-{value!r:.20}") for field, vs in REFUSED for value in vs],
)
def test_bad_configuration(field, value):
    """A11, A13: a bad field raises at construction and is named, for the configuration and the runtime."""
    with pytest.raises(ConfigError, match=field):
        JupyterPtcConfig(**{field: value})
    with pytest.raises(ConfigError, match=field):
        JupyterPtcRuntime(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_output_bytes", 4),
        ("timeout_ms", MOST),
        ("timeout_ms", 0.5),
        ("max_timeout_ms", MOST),
        ("grace_ms", MOST),
        ("startup_timeout_ms", MOST),
        ("max_message_bytes", 2**32 - 1),
        ("max_message_bytes", 1),
        ("max_pending_calls", 1),
        ("max_memory_mb", 1),
        ("max_memory_mb", None),
        ("cwd", "/"),
        ("stop", "kill"),
        ("env", {"A": "", "b_1": "=\n"}),
    ],
    ids=lambda value: f"A12-{value!r:.20}",
)
async def test_configuration_at_its_limits(make_runtime, field, value):
    """A12: the values at the limits are accepted and kept."""
    assert value == getattr(make_runtime(**{field: value}).config, field)


async def test_configuration_object(make_runtime):
    """A12: a configuration object and keyword fields combine; a name that is no field is refused."""
    config = JupyterPtcConfig(timeout_ms=7, grace_ms=9)
    runtime = make_runtime(config=config, timeout_ms=8)
    assert (8, 9) == (runtime.config.timeout_ms, runtime.config.grace_ms)
    assert (7, 9) == (config.timeout_ms, config.grace_ms)
    with pytest.raises(ConfigError, match="timeout"):
        JupyterPtcRuntime(timeout=5)


def test_configuration_cannot_change():
    """A12: a configuration is frozen, and its environment is a copy that cannot change either."""
    env = {"A": "1"}
    config = JupyterPtcConfig(env=env)
    env["A"] = "2"
    assert {"A": "1"} == dict(config.env)
    with pytest.raises(TypeError):
        config.env["A"] = "3"
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.timeout_ms = 1


def test_interpreter_that_cannot_be_one(tmp_path):
    """A14: an interpreter that is empty, has NUL, is missing, a directory or not executable raises."""
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    plain.chmod(0o644)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nothing")
    for path in (
        "",
        f"{sys.executable}\0",
        str(tmp_path),
        str(plain),
        str(tmp_path / "missing"),
        str(dangling),
        os.devnull,
    ):
        with pytest.raises(ConfigError, match="python_executable"):
            JupyterPtcRuntime(python_executable=path)


def test_interpreter_is_made_absolute_and_symlinks_are_kept(tmp_path, monkeypatch):
    """A14: the interpreter's path becomes absolute at construction, and a symlink stays one."""
    (tmp_path / "link").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "link") == JupyterPtcConfig(python_executable="link").python_executable
    assert sys.executable == JupyterPtcConfig().python_executable


# ---------------------------------------------------------------------- an interpreter that does not start


async def test_interpreter_that_went_away(make_runtime, tmp_path):
    """A17: a missing interpreter is a worker-exit that started nothing; once it is back, runs work."""
    path = script(tmp_path / "python", f'exec "{sys.executable}" "$@"')
    runtime = make_runtime(python_executable=path)
    os.rename(path, tmp_path / "away")
    for owner in (StateOwner("away"), None):
        session = Session(runtime, owner)
        result = await session.run("6 * 7")
        assert "worker-exit" == kind(result)
        assert result.error.message
        assert not result.started
        assert [] == list(result.output)
        os.rename(tmp_path / "away", path)
        assert 42 == await session.value("6 * 7")
        await runtime.release(owner)
        os.rename(path, tmp_path / "away")


async def test_interpreter_that_is_none(make_runtime, tmp_path):
    """A17: an interpreter that ends at once is a worker-exit with its exit code and its last words."""
    path = script(tmp_path / "python", "echo 'no such wheel' >&2; exit 23")
    result = await Session(make_runtime(python_executable=path)).run("1")
    assert "worker-exit" == kind(result)
    assert "23" in result.error.message
    assert "no such wheel" in result.error.message
    assert not result.started


async def test_interpreter_that_is_never_ready(make_runtime, tmp_path):
    """A17: a kernel that is not ready in startup_timeout_ms is a worker-exit, also without a deadline."""
    path = script(tmp_path / "python", "exec sleep 60")
    before = children()
    runtime = make_runtime(python_executable=path, startup_timeout_ms=200, grace_ms=500)
    result = await Session(runtime).run("1", timeout_ms=None)
    assert "worker-exit" == kind(result)
    assert not result.started
    assert before == children()
