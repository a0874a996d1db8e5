"""AbortController, AbortSignal and the text of a reason."""

# The test law asks for `assert expected == actual`.

from __future__ import annotations

import threading

import pytest

from ptc_kernel.abort import AbortController, reason_text


def test_a_new_signal_waits():
    """A signal has not fired and has no reason until its controller aborts."""
    signal = AbortController().signal
    assert (False, None) == (signal.aborted, signal.reason)


@pytest.mark.parametrize("reason", [None, "stop", 5, ValueError("x")], ids=repr)
def test_abort_sets_the_reason(reason):
    """An aborted signal carries the very reason that was given."""
    controller = AbortController()
    controller.abort(reason)
    assert controller.signal.aborted
    assert reason is controller.signal.reason


def test_only_the_first_abort_counts():
    """A second abort changes no reason and calls no listener."""
    controller, heard = AbortController(), []
    controller.signal.add_listener(lambda: heard.append(controller.signal.reason))
    controller.abort("first")
    controller.abort("second")
    assert (["first"], "first") == (heard, controller.signal.reason)


def test_listeners_are_called_in_order_and_see_the_state():
    """Listeners are called in the order in which they were added, when the signal already says aborted."""
    controller, heard = AbortController(), []
    for name in ("a", "b", "c"):
        controller.signal.add_listener(lambda name=name: heard.append((name, controller.signal.aborted)))
    controller.abort()
    assert [("a", True), ("b", True), ("c", True)] == heard


def test_late_listener_is_called_at_once():
    """A listener of a signal that has fired is called at once, and its remover does nothing."""
    controller, heard = AbortController(), []
    controller.abort()
    remove = controller.signal.add_listener(lambda: heard.append(1))
    assert [1] == heard
    remove()
    remove()


def test_removed_listener_is_not_called():
    """A removed listener hears nothing, the others do, and removing twice is fine."""
    controller, heard = AbortController(), []
    remove = controller.signal.add_listener(lambda: heard.append("removed"))
    controller.signal.add_listener(lambda: heard.append("kept"))
    remove()
    remove()
    controller.abort()
    remove()
    assert ["kept"] == heard


def test_the_same_listener_twice():
    """Each registration of one function is a listener of its own."""
    controller, heard = AbortController(), []

    def listener():
        heard.append(1)

    remove = controller.signal.add_listener(listener)
    controller.signal.add_listener(listener)
    remove()
    controller.abort()
    assert [1] == heard


def test_no_growing_listener_list():
    """H12: 500 users of one signal that remove their listeners leave none behind."""
    signal = AbortController().signal
    for _ in range(500):
        signal.add_listener(lambda: None)()
    assert "<AbortSignal waiting, 0 listeners>" == repr(signal)


def test_listeners_are_let_go_when_the_signal_fires():
    """H12: a signal that has fired holds no listener."""
    controller = AbortController()
    controller.signal.add_listener(lambda: None)
    controller.abort()
    assert "<AbortSignal aborted, 0 listeners>" == repr(controller.signal)


def test_listener_may_use_the_signal():
    """A listener can add, remove and abort again without a deadlock."""
    controller, heard = AbortController(), []

    def listener():
        controller.abort("again")
        remove()
        controller.signal.add_listener(lambda: heard.append("inner"))

    remove = controller.signal.add_listener(listener)
    controller.abort("first")
    assert (["inner"], "first") == (heard, controller.signal.reason)


def test_abort_from_another_thread():
    """H08: abort works from any thread, and of many at once exactly one counts."""
    controller, heard = AbortController(), []
    controller.signal.add_listener(lambda: heard.append(controller.signal.reason))
    threads = [threading.Thread(target=controller.abort, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [controller.signal.reason] == heard


class Hostile:
    """An object whose text is whatever `make` does."""

    def __init__(self, make):
        self.make = make

    def __str__(self):
        return self.make()

    def __repr__(self):
        raise RuntimeError("no repr")


class Lie(str):
    """A str that is not exactly one."""

    __slots__ = ()


class PrivateError(BaseException):
    """An exception that `except Exception` does not see."""


def fail(error):
    """Raise this error."""
    raise error


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", "stop"),
        (5, "5"),
        (ValueError("boom"), "boom"),
        (Lie("lie"), "lie"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_reason_text(reason, expected):
    """The text of a reason is what str makes of it."""
    assert expected == reason_text(reason)


@pytest.mark.parametrize(
    "reason", [None, "", Hostile(lambda: ""), ValueError()], ids=["none", "empty", "hostile", "error"]
)
def test_reason_without_a_text(reason):
    """H07: a reason without a text still gives one."""
    assert "aborted" == reason_text(reason)


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param(Hostile(lambda: 5), id="no-str"),
        pytest.param(Hostile(lambda: fail(ValueError("x"))), id="exception"),
        pytest.param(Hostile(lambda: fail(RecursionError())), id="recursion"),
        pytest.param(Hostile(lambda: fail(SystemExit(3))), id="system-exit"),
        pytest.param(Hostile(lambda: fail(PrivateError())), id="base-exception"),
    ],
)
def test_reason_that_cannot_be_printed(reason):
    """Contract 2: a hostile __str__ gives a placeholder and never raises."""
    text = reason_text(reason)
    assert type(text) is str
    assert text.startswith("aborted")


def test_reason_text_is_exactly_a_str():
    """A __str__ that gives a str subclass cannot smuggle it into the result."""
    assert str is type(reason_text(Hostile(lambda: Lie("x"))))
