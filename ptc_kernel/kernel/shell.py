"""The IPython shell of a hosted kernel, and how it displays."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from ipykernel.jsonutil import encode_images, json_clean
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell
from IPython.core import page
from IPython.display import display
from traitlets import Type

from ptc_kernel.kernel.programs import refuse_stdin

if TYPE_CHECKING:
    from ptc_kernel.kernel.streams import Output

__all__ = ("HostedShell", "OrderedPublisher")


class OrderedPublisher(ZMQDisplayPublisher):
    """Sends displays through the program's output, at their place in the order."""

    output: Output

    def publish(  # type: ignore[override]
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        """Display a mimebundle."""
        self._validate_data(data, metadata or {})
        bundle = {"data": encode_images(data), "metadata": metadata or {}, "transient": transient or {}}
        content: dict[str, Any] = json_clean(bundle)
        self.output.display("update_display_data" if update else "display_data", content)

    def clear_output(self, wait: bool = False) -> None:
        """Tell viewers to clear; what was written stays part of the output."""
        self.output.display("clear_output", {"wait": wait})

    def _flush_streams(self) -> None:
        self.output.flush()


class HostedShell(ZMQInteractiveShell):
    """An IPython shell without history, terminal, colours or a way out."""

    display_pub_class = Type(OrderedPublisher)

    def init_environment(self) -> None:
        """Keep pagers out; ipykernel would force colours on every child process."""
        os.environ.update(PAGER="cat", GIT_PAGER="cat")

    def init_hooks(self) -> None:
        """Show what IPython would page (`obj?`) as a display."""
        super().init_hooks()
        self.set_hook("show_in_pager", page.as_hook(show_page), 98)

    def enable_gui(self, gui: str | None = None) -> None:
        """Refuse another event loop: this kernel has one."""
        if gui:
            msg = f"the {gui} event loop cannot run here: a program shares the kernel's asyncio event loop"
            raise RuntimeError(msg)

    def init_magics(self) -> None:
        """Replace the magics that need a terminal or another event loop by clear refusals."""
        super().init_magics()
        for name in ("debug", "pdb"):
            self.register_magic_function(refuse_stdin(f"%{name}"), "line_cell", name)  # type: ignore[arg-type]
        gui: Any = lambda line: self.enable_gui(line or None)  # noqa: E731
        self.register_magic_function(gui, "line", "gui")

    def ask_exit(self) -> None:
        """End the program, never the kernel: it belongs to its host."""
        raise SystemExit

    def system(self, cmd: str) -> None:
        """Run `!cmd` without a terminal and without stdin; its output goes to the program's."""
        command = self.var_expand(cmd, depth=1)
        code = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, check=False).returncode  # noqa: S602
        if code:
            sys.stderr.write(f"exit code {code}\n")

    system_raw = system_piped = system


def show_page(text: str | dict[str, Any], *_: Any, **__: Any) -> None:
    """Display what a pager would show."""
    display(text if isinstance(text, dict) else {"text/plain": text}, raw=True)
