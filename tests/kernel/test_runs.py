"""Which run a task, a thread, or work in an executor belongs to."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ptc_kernel.kernel.runs import Run, Runs

SUBMIT = ThreadPoolExecutor.submit  # as it is without the worker


def run(ident="run", *, owned=True, cap=1000):
    """A run of which only the identity counts."""
    return Run(ident, {}, owned=owned, cap=cap)


@pytest.fixture
def runs():
    """Nothing runs yet."""
    return Runs()


@pytest.fixture
async def followed(runs, monkeypatch):
    """Tasks, threads and executors are followed, as in the kernel."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)
    runs.follow_threads()
    asyncio.get_running_loop().set_task_factory(runs.task_factory)
    yield runs
    asyncio.get_running_loop().set_task_factory(None)


def in_run(runs, which):
    """A context that belongs to a run, as the one of the run's main task."""
    context = contextvars.copy_context()
    context.run(runs.variable.set, which)
    return context


def in_thread(function):
    """What a function returns in a new thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


# ---------------------------------------------------------------------- Run


@pytest.mark.parametrize(
    ("owned", "cap", "texts", "over"),
    [
        (True, 10, ["123456"], False),
        (True, 10, ["1234567"], True),
        (True, 10, ["123", "4567"], True),
        (True, 0, [], False),
        (False, 0, ["1234567"], False),
    ],
)
def test_over(owned, cap, texts, over):
    """The owner's run is over once its meter is; a visitor's has no meter and is never over."""
    item = run(owned=owned, cap=cap)
    for text in texts:
        if item.meter is not None:
            item.meter.fit_text("stdout", text)
    assert (over, owned) == (item.over, item.meter is not None)


def test_a_new_run():
    """A new run was not stopped, has no tasks and declares no names; its first step is never too early."""
    item = run("an id")
    assert ("an id", 0, [], {}, None) == (item.id, item.step, list(item.tasks), item.names, item.main)
    assert item.stepped_at < -(10**300)


# ---------------------------------------------------------------------- current


def test_nothing_runs(runs):
    """Before the first run there is none."""
    assert runs.current() is None


def test_active_then_last(runs):
    """Code that belongs to no run counts for the active one, and between runs for the last."""
    active, last = run(), run()
    runs.last = last
    assert last is runs.current()
    runs.active = active
    assert active is runs.current()


def test_the_context_decides(runs):
    """Code in the context of a run belongs to it, whatever is active."""
    mine, active = run(), run()
    runs.active = active
    assert (mine, active) == (in_run(runs, mine).run(runs.current), runs.current())


def test_a_thread_that_nobody_followed(runs):
    """A thread of which nothing is known counts for the active run."""
    runs.active = run()
    assert runs.active is in_thread(runs.current)


def test_a_thread_that_python_does_not_know(runs):
    """A thread that was not made by `threading` counts for the active run."""
    import _thread

    runs.active = run()
    found, done = [], threading.Event()

    def look():
        found.append(runs.current())
        done.set()

    _thread.start_new_thread(look, ())
    done.wait()
    assert [runs.active] == found


# ---------------------------------------------------------------------- tasks


async def test_a_task_is_recorded_with_its_run(followed):
    """A task belongs to the run in whose context it is created, and so do the tasks that it creates."""
    mine = run()

    async def child():
        return followed.current()

    async def main():
        task = asyncio.create_task(child())
        return task, await task

    main_task = asyncio.get_running_loop().create_task(main(), context=in_run(followed, mine))
    followed.active = run()
    child_task, found = await main_task
    assert mine is found
    assert {main_task, child_task} == set(mine.tasks)
    assert [] == list(followed.active.tasks)


async def test_a_task_without_a_run(followed):
    """A task of the worker's own belongs to no run."""
    followed.active = run()
    await asyncio.get_running_loop().create_task(asyncio.sleep(0))
    assert [] == list(followed.active.tasks)


async def test_a_task_with_a_context_of_its_own(followed):
    """The context that is given decides, not the one of whoever creates the task."""
    one, other = run(), run()

    async def create():
        loop = asyncio.get_running_loop()
        given = loop.create_task(asyncio.sleep(0), context=in_run(followed, other))
        empty = loop.create_task(asyncio.sleep(0), context=contextvars.Context())
        await asyncio.wait({given, empty})
        return given, empty

    task = asyncio.get_running_loop().create_task(create(), context=in_run(followed, one))
    given, empty = await task
    assert ({task}, {given}) == (set(one.tasks), set(other.tasks))
    assert empty.done()


async def test_gathered_and_grouped_tasks(followed):
    """`gather`, task groups and timers make tasks of the same run."""
    mine, found = run(), []

    async def look():
        found.append(followed.current())

    async def main():
        await asyncio.gather(look(), look())
        async with asyncio.TaskGroup() as group:
            group.create_task(look())
        await asyncio.wait_for(look(), 30)
        called = asyncio.Event()
        asyncio.get_running_loop().call_soon(lambda: (found.append(followed.current()), called.set()))
        await called.wait()

    await asyncio.get_running_loop().create_task(main(), context=in_run(followed, mine))
    assert [mine] * 5 == found


async def test_names_of_tasks(followed):
    """The options of a task pass through the factory."""
    task = asyncio.get_running_loop().create_task(asyncio.sleep(0, 5), name="mine")
    assert ("mine", 5) == (task.get_name(), await task)


async def test_finished_tasks_are_not_kept(followed):
    """A run keeps no task alive."""
    mine = run()
    task = asyncio.get_running_loop().create_task(asyncio.sleep(0), context=in_run(followed, mine))
    await task
    assert 1 == len(mine.tasks)
    del task
    await asyncio.sleep(0)  # the loop forgets whom it woke
    gc.collect()
    assert [] == list(mine.tasks)


# ---------------------------------------------------------------------- threads


async def test_a_thread_belongs_to_the_run_that_started_it(followed):
    """A thread remembers its run, and hands it to the threads that it starts."""
    mine = run()
    followed.active = run()

    def nested():
        return followed.current(), in_thread(followed.current)

    assert (mine, mine) == in_run(followed, mine).run(in_thread, nested)


async def test_a_late_thread(followed):
    """A thread that outlives its run still belongs to it."""
    mine, go, found = run(), threading.Event(), []
    followed.active = mine

    def wait():
        go.wait()
        found.append(followed.current())

    thread = threading.Thread(target=wait)
    thread.start()
    followed.last, followed.active = mine, run()
    go.set()
    thread.join()
    assert [mine] == found


async def test_subclasses_of_thread(followed):
    """Timers, and threads that override `run`, are followed too."""
    mine, found = run(), []

    class Mine(threading.Thread):
        def run(self):
            found.append(followed.current())

    def start():
        threads = [Mine(), threading.Timer(0, lambda: found.append(followed.current()))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    in_run(followed, mine).run(start)
    assert [mine, mine] == found


# ---------------------------------------------------------------------- executors


async def test_work_belongs_to_the_run_that_submitted_it(followed):
    """A pool may be older than the run: the work is the submitting run's, the thread's is its maker's."""
    one, other = run(), run()
    with ThreadPoolExecutor(1) as pool:

        def submit():
            return pool.submit(followed.current).result()

        found = [in_run(followed, which).run(submit) for which in (one, other, one)]
    assert [one, other, one] == found


async def test_work_of_a_loop(followed):
    """`to_thread`, `run_in_executor` and `map` carry the run."""
    mine = run()

    async def main():
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            mapped = list(pool.map(lambda _: followed.current(), range(2)))
            executed = await loop.run_in_executor(pool, followed.current)
        return [*mapped, executed, await asyncio.to_thread(followed.current)]

    task = asyncio.get_running_loop().create_task(main(), context=in_run(followed, mine))
    assert [mine] * 4 == await task


async def test_arguments_and_results_of_work(followed):
    """What is submitted gets its arguments, whatever their names, and gives its result or its exception."""
    with ThreadPoolExecutor(1) as pool:
        assert ((1, 2), {"fn": 3, "self": 4}) == pool.submit(
            lambda *a, **k: (a, k), 1, 2, fn=3, self=4
        ).result()
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result()


async def test_the_worker_thread_is_left_as_it_was(followed):
    """Work leaves no run behind in the pool's thread."""
    mine = run()
    with ThreadPoolExecutor(1) as pool:
        in_run(followed, mine).run(lambda: pool.submit(followed.current).result())
        assert SUBMIT(pool, followed.variable.get).result() is None


async def test_work_that_is_submitted_without_a_run(followed):
    """Work of nobody counts for the active run when it is submitted."""
    followed.active = first = run()
    with ThreadPoolExecutor(1) as pool:
        assert first is pool.submit(followed.current).result()
