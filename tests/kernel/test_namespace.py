"""The host's functions as the program sees them: namespaces, members, calls, rejections, error classes.

The bridge below them is the real one; this file plays the host at the other end of the comm.
"""

from __future__ import annotations

import asyncio
import collections.abc
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from ptc_kernel.kernel.bridge import Bridge
from ptc_kernel.kernel.interrupts import Interrupts
from ptc_kernel.kernel.namespace import Member, Namespace, Namespaces
from ptc_kernel.kernel.ring import Ring
from ptc_kernel.kernel.runs import Run, Runs
from ptc_kernel.kernel.streams import Output

ERRORS = {"tools": ("ToolCallError", "toolName")}
OVER = "the run that made this call is over"


class Kernel:
    """The worker's half of the bindings, and a host that answers on another thread."""

    def __init__(self, *, max_calls=128, max_bytes=10_000):
        self.runs = Runs()
        self.interrupts = Interrupts(self.runs, ())
        fd = os.memfd_create("ring")
        os.ftruncate(fd, 4096)
        output = Output(self.runs, self.interrupts, Ring(fd), lambda *_: None)
        os.close(fd)
        hello = {"comm_id": "comm", "max_pending_calls": max_calls, "max_message_bytes": max_bytes}
        self.bridge = Bridge(hello, self.runs, self.interrupts, output, self._on_message)
        self.namespaces = Namespaces(self.bridge, self.interrupts)
        self.globals = {}
        self.kinds, self.data = [], []
        self.handler = None
        self.control = ThreadPoolExecutor(1)
        self.begun = 0

    def begin(self, names, errors=ERRORS):
        """Begin a run that declares these members; returns its first namespace."""
        self.begun += 1
        run = Run(f"run {self.begun}", {}, owned=True, cap=1000)
        self.runs.active = run
        self.bridge.begin_run(run)
        self.namespaces.bind(run, names, errors, self.globals)
        return self.globals[next(iter(names))]

    def end(self):
        """End the active run."""
        run, self.runs.active = self.runs.active, None
        self.runs.last = run
        self.bridge.end_run(run)

    def _on_message(self, kind, content, run, buffers):
        self.kinds.append(kind)
        self.data.append(content["data"])
        if self.handler is not None:
            for ident, namespace, member, text in content["data"].get("calls", ()):
                self.answer(ident, *self.handler(namespace, member, text))

    def answer(self, ident, ok, text):
        """Answer a call, in the control thread; what is returned is done when the worker has taken it."""
        return self.control.submit(self.bridge.on_message, {"answers": [[ident, ok, text]]}, [])

    @property
    def calls(self):
        """The calls that the host was sent: id, namespace, member, argument text."""
        return [tuple(row) for data in self.data for row in data.get("calls", ())]


@pytest.fixture
def make_kernel():
    """Make kernels with any limits."""
    kernels = []

    def make(**limits):
        kernels.append(Kernel(**limits))
        return kernels[-1]

    yield make
    for kernel in kernels:
        kernel.control.shutdown()


@pytest.fixture
def kernel(make_kernel):
    """A kernel with ordinary limits."""
    return make_kernel()


@pytest.fixture
def tools(kernel):
    """A namespace of three members, one of them with an exotic name."""
    return kernel.begin({"tools": ["sub", "add", "my-tool"]})


async def turn():
    """Let the loop go round once: the calls of this turn are sent."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


# ---------------------------------------------------------------------- attributes and items


def test_members_by_attribute_and_by_item(tools):
    """A member is the same object by attribute and by subscript; exotic names go by subscript."""
    assert [Member, Member] == [type(tools.add), type(tools["my-tool"])]
    assert tools.add is tools["add"]
    assert tools["my-tool"] is getattr(tools, "my-tool")


def test_an_undeclared_attribute(tools):
    """An undeclared attribute is an AttributeError that lists what there is."""
    with pytest.raises(AttributeError) as caught:
        _ = tools.mul
    assert "tools has no member 'mul'; it has add, my-tool, sub" == str(caught.value)
    assert (False, None) == (hasattr(tools, "mul"), getattr(tools, "mul", None))


@pytest.mark.parametrize("name", ["mul", "", "ADD", 5, None, "__class__"])
def test_an_undeclared_item(tools, name):
    """An undeclared subscript is a KeyError, also where an attribute would be inherited."""
    with pytest.raises(KeyError) as caught:
        tools[name]
    assert (name,) == caught.value.args


@pytest.mark.parametrize("name", ["__nothing__", "_members_", "_name", "_members"])
def test_private_names_are_hidden(tools, name):
    """Nothing of how a namespace is made can be seen as an attribute."""
    with pytest.raises(AttributeError):
        getattr(tools, name)


DECLARED = [
    "__class__",
    "__dict__",
    "__doc__",
    "__init__",
    "__len__",
    "__iter__",
    "__getitem__",
    "__getattribute__",
    "__repr__",
    "__slots__",
    "_members",
    "_name",
    "keys",
    "sync",
    "self",
    "class",
    "",
    " ",
    "a.b",
]


@pytest.mark.parametrize("name", DECLARED)
def test_declared_names_win(kernel, name):
    """A declared name wins over everything that is inherited, and Python's protocols go on working."""
    tools = kernel.begin({"tools": [name, "add"]})
    assert (Member, tools[name]) == (type(tools[name]), getattr(tools, name))
    assert (2, [name, "add"], True) == (len(tools), list(tools), name in tools)
    assert tools.add is tools["add"]
    assert repr(tools).startswith("<tools: ")
    assert isinstance(tools, Namespace)


def test_dunders_that_are_not_declared(tools):
    """What Python itself looks at is there."""
    assert Namespace is tools.__class__
    assert Namespace.__doc__ == tools.__doc__


@pytest.mark.parametrize("name", ["add", "new", "__class__", "__dict__", "_members", "_name"])
def test_namespaces_are_read_only(tools, name):
    """No attribute can be set or deleted, declared or not, and no item."""
    with pytest.raises(AttributeError, match="tools is read-only"):
        setattr(tools, name, 1)
    with pytest.raises(AttributeError, match="tools is read-only"):
        delattr(tools, name)
    with pytest.raises(TypeError):
        tools[name] = 1
    with pytest.raises(TypeError):
        del tools[name]
    assert {"add", "sub", "my-tool"} == set(tools)


def test_listings(tools):
    """`dir` is sorted, iteration has the declared order, `in` and `len` count declared names only."""
    assert ["add", "my-tool", "sub"] == dir(tools)
    assert ["sub", "add", "my-tool"] == list(tools)
    assert [True, True, False, False, False] == [
        name in tools for name in ("add", "my-tool", "mul", "__class__", 5)
    ]
    assert 3 == len(tools)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "<tools: no members>"),
        (["b", "a"], "<tools: a, b>"),
        ([f"f{number:02}" for number in range(20)], f"<tools: {', '.join(f'f{n:02}' for n in range(20))}>"),
        (
            [f"f{number:02}" for number in range(23)],
            f"<tools: {', '.join(f'f{n:02}' for n in range(20))} and 3 more>",
        ),
    ],
)
def test_repr_of_a_namespace(kernel, names, text):
    """The repr lists up to twenty members."""
    assert text == repr(kernel.begin({"tools": names}))


def test_an_empty_namespace(kernel):
    """A namespace without members is there, is true, and says that it has none."""
    tools = kernel.begin({"tools": []})
    assert (True, 0, [], []) == (bool(tools), len(tools), list(tools), dir(tools))
    with pytest.raises(AttributeError, match="tools has no member 'add'; it has no members"):
        _ = tools.add


def test_repr_of_members(tools):
    """The repr of a member is the way to write it."""
    assert ["tools.add", "tools['my-tool']"] == [repr(tools.add), repr(tools["my-tool"])]


# ---------------------------------------------------------------------- arguments

ARGUMENTS = [
    ((), {}, "{}"),
    (({},), {}, "{}"),
    (({"a": 1},), {}, '{"a":1}'),
    ((), {"a": 1, "b": [2]}, '{"a":1,"b":[2]}'),
    ((None,), {}, "null"),
    (([1, 2],), {}, "[1,2]"),
    (("text",), {}, '"text"'),
    ((False,), {}, "false"),
    ((), {"a": None}, '{"a":null}'),
    ((), {"self": 1}, '{"self":1}'),
    ((), {"args": 1, "kwargs": 2, "self": 3, "loop": 4}, '{"args":1,"kwargs":2,"self":3,"loop":4}'),
]


@pytest.mark.parametrize(("args", "kwargs", "text"), ARGUMENTS)
async def test_arguments(kernel, tools, args, kwargs, text):
    """One positional value is the argument; keyword arguments of any name become one object; none is {}."""
    tools.add(*args, **kwargs)
    await turn()
    assert [(1, "tools", "add", text)] == kernel.calls


@pytest.mark.parametrize(("args", "kwargs", "text"), ARGUMENTS)
async def test_arguments_of_sync(kernel, tools, args, kwargs, text):
    """`.sync` takes the same arguments."""
    kernel.handler = lambda *_: (True, "5")
    assert 5 == tools.add.sync(*args, **kwargs)
    assert [(1, "tools", "add", text)] == kernel.calls


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1, 2), {}), (({}, {}), {}), ((1,), {"a": 2}), (({},), {"a": 1}), ((1, 2, 3), {})]
)
@pytest.mark.parametrize("sync", [False, True])
async def test_wrong_arguments(kernel, tools, args, kwargs, sync):
    """Anything else is a TypeError that shows the right call; the host never hears of it."""
    for name, shown in (("add", "tools.add"), ("my-tool", "tools['my-tool']")):
        member = tools[name]
        with pytest.raises(TypeError) as caught:
            (member.sync if sync else member)(*args, **kwargs)
        right = f"await {shown}({{'name': value}}) or await {shown}(name=value)"
        assert f"{shown} takes one JSON value or keyword arguments: {right}" == str(caught.value)
    await turn()
    assert [] == kernel.calls


@pytest.mark.parametrize("argument", [(1,), {1: 2}, float("nan"), object(), b"x", {"a": {1}}, 2**60 + 1])
async def test_a_lossy_argument_is_a_rejection(kernel, tools, argument):
    """An argument that is not lossless JSON rejects the call when it is awaited; the host is not called."""
    call = tools.add(argument)
    with pytest.raises(
        kernel.globals["ToolCallError"], match=r"^the argument must be lossless JSON: "
    ) as caught:
        await call
    assert ("add", []) == (caught.value.toolName, kernel.calls)


async def test_an_argument_is_taken_when_the_call_is_made(kernel, tools):
    """A list that is changed after the call was made is sent as it was."""
    argument = [1]
    tools.add(argument)
    argument.append(2)
    await turn()
    assert [(1, "tools", "add", "[1]")] == kernel.calls


def test_no_event_loop(tools):
    """Where no event loop runs, the text of the error names the blocking form."""
    with pytest.raises(RuntimeError) as caught:
        tools["my-tool"](1)
    assert "no event loop runs in this thread; use tools['my-tool'].sync(...)" == str(caught.value)


# ---------------------------------------------------------------------- calls and answers


async def test_the_comm_is_opened_once(kernel, tools):
    """The first run opens the comm, a later one does not."""
    kernel.end()
    kernel.begin({"tools": ["add"]})
    assert ["comm_open"] == kernel.kinds


async def test_an_answer(kernel, tools):
    """An awaited call gives the decoded answer."""
    kernel.handler = lambda namespace, member, text: (True, '{"n":[1,null,"\u20ac"]}')
    assert {"n": [1, None, "\u20ac"]} == await tools.add({"a": 1})


async def test_calls_of_one_turn_travel_together(kernel, tools):
    """Calls of one turn of the loop are one message, in the order in which they were made."""
    kernel.handler = lambda namespace, member, text: (True, text)
    assert [1, 2, 3] == await asyncio.gather(tools.add(1), tools.sub(2), tools["my-tool"](3))
    rows = [(1, "tools", "add", "1"), (2, "tools", "sub", "2"), (3, "tools", "my-tool", "3")]
    assert (rows, ["comm_open", "comm_msg"]) == (kernel.calls, kernel.kinds)


async def test_answers_in_any_order(kernel, tools):
    """Answers find their calls by id."""
    one, two = tools.add(1), tools.add(2)
    await turn()
    kernel.answer(2, True, '"two"')
    kernel.answer(1, True, '"one"')
    assert ["one", "two"] == [await one, await two]


async def test_an_answer_counts_once(kernel, tools):
    """A second answer, and one to no call, are ignored."""
    call = tools.add(1)
    await turn()
    for ident, text in ((1, '"first"'), (1, '"second"'), (99, '"nobody"')):
        kernel.answer(ident, True, text)
    assert "first" == await call


async def test_a_call_can_be_awaited_again(kernel, tools):
    """Awaiting a call again gives the same answer without another call."""
    kernel.handler = lambda *_: (True, "5")
    call = tools.add(1)
    assert [5, 5, 1] == [await call, await call, len(kernel.calls)]


async def test_a_call_is_a_coroutine(kernel, tools):
    """What a member returns is good for `gather`, `create_task`, `wait_for` and `shield`."""
    kernel.handler = lambda namespace, member, text: (True, text)
    call = tools.add(1)
    assert asyncio.iscoroutine(call)
    assert isinstance(call, collections.abc.Coroutine)
    assert 1 == await asyncio.create_task(call)
    assert 2 == await asyncio.wait_for(tools.add(2), 30)
    assert 3 == await asyncio.shield(tools.add(3))


async def test_calls_wait_for_a_slot(make_kernel):
    """More calls than slots are held back, and go out in order as answers come."""
    kernel = make_kernel(max_calls=2)
    tools = kernel.begin({"tools": ["add"]})
    calls = [tools.add(number) for number in range(5)]
    await turn()
    assert ["0", "1"] == [text for *_, text in kernel.calls]
    kernel.answer(2, True, "1").result()
    assert ["0", "1", "2"] == [text for *_, text in kernel.calls]
    kernel.handler = lambda namespace, member, text: (True, text)
    kernel.answer(1, True, "0")
    kernel.answer(3, True, "2")
    assert [0, 1, 2, 3, 4] == await asyncio.gather(*calls)
    assert list(range(1, 6)) == [ident for ident, *_ in kernel.calls]


async def test_arguments_wait_for_room(make_kernel):
    """Arguments that are together over the cap are held back; a later small one does not overtake."""
    kernel = make_kernel(max_bytes=10)
    tools = kernel.begin({"tools": ["add"]})
    calls = [tools.add(text) for text in ("123456", "abcdef", "x")]
    await turn()
    assert ['"123456"'] == [text for *_, text in kernel.calls]
    kernel.handler = lambda namespace, member, text: (True, text)
    kernel.answer(1, True, "0")
    assert [0, "abcdef", "x"] == await asyncio.gather(*calls)


async def test_an_argument_over_the_cap(make_kernel):
    """An argument that can never be sent is a rejection that names the cap."""
    kernel = make_kernel(max_bytes=10)
    tools = kernel.begin({"tools": ["add"]})
    with pytest.raises(kernel.globals["ToolCallError"]) as caught:
        await tools.add("\u20ac" * 3)
    assert "tools['add']: the argument has 11 bytes; max_message_bytes is 10" == str(caught.value)
    assert [] == kernel.calls


async def test_a_cancelled_call_is_abandoned(kernel, tools):
    """When the waiting task is cancelled, the host is told; its answer is dropped."""
    task = asyncio.create_task(tools.add(1))
    await turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await turn()
    assert {"abandoned": [1], "run": "run 1"} == kernel.data[-1]
    kernel.answer(1, True, "1")
    kernel.handler = lambda *_: (True, "2")
    assert 2 == await tools.add(2)


async def test_a_call_that_was_not_sent_yet_is_taken_back(make_kernel):
    """A call that is cancelled while it waits for a slot is never sent."""
    kernel = make_kernel(max_calls=1)
    tools = kernel.begin({"tools": ["add"]})
    first, second, third = (asyncio.create_task(tools.add(number)) for number in range(3))
    await turn()
    second.cancel()
    await turn()
    kernel.handler = lambda *_: (True, "5")
    kernel.answer(1, True, "4")
    assert [4, 5] == [await first, await third]
    assert ["0", "2"] == [text for *_, text in kernel.calls]
    assert second.cancelled()


async def test_sync_from_another_thread(kernel, tools):
    """`.sync` blocks a thread, while the loop goes on."""
    kernel.handler = lambda namespace, member, text: (True, text)
    results = await asyncio.gather(*[asyncio.to_thread(tools.add.sync, number) for number in range(10)])
    assert list(range(10)) == results


async def test_a_call_from_a_loop_of_its_own(kernel, tools):
    """A thread with an event loop of its own gets its answer on that loop."""
    kernel.handler = lambda namespace, member, text: (True, text)

    async def ask():
        return await asyncio.gather(tools.add(1), tools.add(2))

    assert [1, 2] == await asyncio.to_thread(asyncio.run, ask())


# ---------------------------------------------------------------------- rejections


async def test_a_rejection_is_typed(kernel, tools):
    """A rejected call raises the namespace's class, with the text and the member's name."""
    kernel.handler = lambda *_: (False, "no such thing: \u20ac\n")
    error_class = kernel.globals["ToolCallError"]
    with pytest.raises(error_class) as caught:
        await tools["my-tool"]()
    error = caught.value
    assert ("ToolCallError", "no such thing: \u20ac\n", "my-tool") == (
        type(error).__name__,
        str(error),
        error.toolName,
    )
    assert (("no such thing: \u20ac\n",), (Exception,)) == (error.args, error_class.__bases__)


async def test_a_rejection_of_sync_is_typed(kernel, tools):
    """`.sync` raises the same."""
    kernel.handler = lambda *_: (False, "no")
    with pytest.raises(kernel.globals["ToolCallError"]) as caught:
        tools.add.sync()
    assert "add" == caught.value.toolName


@pytest.mark.parametrize("name", ["code", "tool-name", " ", "__", "args_", "with space", "class"])
async def test_any_member_property(kernel, name):
    """The member's name is found under whatever property was chosen."""
    tools = kernel.begin({"tools": ["add"]}, {"tools": ("E", name)})
    kernel.handler = lambda *_: (False, "no")
    with pytest.raises(kernel.globals["E"]) as caught:
        await tools.add()
    assert {name: "add"} == vars(caught.value)


async def test_without_an_error_class(kernel):
    """Without an error class a rejection is a plain RuntimeError."""
    tools = kernel.begin({"tools": ["add"]}, {})
    kernel.handler = lambda *_: (False, "no")
    with pytest.raises(RuntimeError) as caught:
        await tools.add()
    assert (RuntimeError, "no", {}) == (type(caught.value), str(caught.value), vars(caught.value))
    assert {"tools"} == set(kernel.globals)


async def test_a_rejection_can_be_raised_again_and_again(kernel, tools):
    """Each await of a rejected call raises an exception of its own."""
    kernel.handler = lambda *_: (False, "no")
    call, seen = tools.add(), []
    for _ in range(2):
        try:
            await call
        except kernel.globals["ToolCallError"] as error:
            seen.append(error)
    assert (2, False) == (len(seen), seen[0] is seen[1])


# ---------------------------------------------------------------------- runs


async def test_the_end_of_a_run_rejects_its_calls(make_kernel):
    """At the end of a run its calls with the host and those that wait are rejected; late answers are lost."""
    kernel = make_kernel(max_calls=1)
    tools = kernel.begin({"tools": ["add"]})
    calls = [asyncio.create_task(tools.add(number)) for number in range(3)]
    await turn()
    kernel.end()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [(kernel.globals["ToolCallError"], OVER)] * 3 == [(type(e), str(e)) for e in results]
    kernel.answer(1, True, "1")
    tools = kernel.begin({"tools": ["add"]})
    kernel.handler = lambda *_: (True, "7")
    assert 7 == await tools.add()


async def test_no_calls_between_runs(kernel, tools):
    """A call while no run is active is refused."""
    kernel.end()
    with pytest.raises(kernel.globals["ToolCallError"]) as caught:
        await tools.add()
    assert f"tools['add']: {OVER}" == str(caught.value)
    assert [] == kernel.calls


async def test_a_task_of_an_earlier_run_is_refused(kernel, tools):
    """Authority follows the run that the calling task belongs to, not the one that is active."""
    run_1 = kernel.runs.active
    kernel.end()
    tools = kernel.begin({"tools": ["add"]})
    kernel.runs.variable.set(run_1)
    with pytest.raises(kernel.globals["ToolCallError"], match=OVER):
        await tools.add()
    kernel.runs.variable.set(kernel.runs.active)
    kernel.handler = lambda *_: (True, "7")
    assert 7 == await tools.add()


async def test_a_stored_member_works_where_it_is_declared(kernel, tools):
    """A member that was stored works in a later run that declares it, and is refused in another."""
    add, kept = tools.add, tools
    kernel.end()
    kernel.begin({"tools": ["sub"]})
    with pytest.raises(kernel.globals["ToolCallError"]) as caught:
        await add()
    assert "tools['add']: this run does not declare tools['add']" == str(caught.value)
    kernel.end()
    kernel.begin({"tools": ["add"]})
    kernel.handler = lambda *_: (True, "7")
    assert [7, 7] == [await add(), await kept.add()]


def test_a_stored_namespace_follows_the_declaration(kernel, tools):
    """The same object serves every run, with the members of that run."""
    kernel.end()
    assert tools is kernel.begin({"tools": ["other"]})
    assert ["other"] == list(tools)


def test_a_stored_error_class_goes_on_matching(kernel, tools):
    """While name and property stay, the class object stays; another property is another class."""
    first = kernel.globals["ToolCallError"]
    kernel.begin({"tools": ["add"]})
    assert first is kernel.globals["ToolCallError"]
    kernel.begin({"tools": ["add"]}, {"tools": ("ToolCallError", "other")})
    assert first is not kernel.globals["ToolCallError"]
    kernel.begin({"tools": ["add"]})
    assert first is kernel.globals["ToolCallError"]


def test_injected_names_are_taken_away(kernel, tools):
    """Names of an earlier run that this one does not declare are gone."""
    kernel.globals["mine"] = 1
    kernel.begin({"files": ["read"]}, {"files": ("FileError", "member")})
    assert {"files", "FileError", "mine"} == set(kernel.globals)


def test_what_the_program_put_there_stays(kernel, tools):
    """A name that the program bound anew is not taken away."""
    kernel.globals["tools"] = "mine"
    del kernel.globals["ToolCallError"]
    kernel.begin({"files": ["read"]}, {})
    assert {"tools": "mine", "files": kernel.globals["files"]} == kernel.globals


def test_declared_names_are_bound_anew(kernel, tools):
    """A declared name wins over what the program had put there."""
    kernel.globals.update(tools=1, ToolCallError=2)
    assert tools is kernel.begin({"tools": ["add"]})
    assert "ToolCallError" == kernel.globals["ToolCallError"].__name__


def test_the_error_class_is_an_ordinary_class(kernel, tools):
    """The class says where it belongs, can be raised and subclassed, and has a docstring."""
    error_class = kernel.globals["ToolCallError"]
    assert ("__main__", "A call of a tools member was rejected.") == (
        error_class.__module__,
        error_class.__doc__,
    )
    assert issubclass(type("Mine", (error_class,), {}), error_class)
