"""`python -m ptc_kernel.kernel -f FILE`, or this file run by its path on another interpreter.

Run by path, only this package, `protocol`, `types` and `errors` are imported: a bare
`ptc_kernel` package stands in for the real one, and nothing of the host's site-packages gets
onto `sys.path`.
"""

import os
import sys

FDS_OPTION = "--ptc-fds"


def find_package() -> None:
    """Make `ptc_kernel.kernel` importable when this file was run by its path."""
    if "ptc_kernel" in sys.modules:
        return
    package = type(sys)("ptc_kernel")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["ptc_kernel"] = package


def main() -> None:
    """Run the hosted worker when a host passed its descriptors, a plain kernel otherwise."""
    find_package()
    if FDS_OPTION not in sys.argv:
        from ptc_kernel.kernel.notebook import run_notebook_kernel

        run_notebook_kernel()
        return
    at = sys.argv.index(FDS_OPTION)
    fds = [int(fd) for fd in sys.argv[at + 1].split(",")]
    del sys.argv[at : at + 2]
    from ptc_kernel.kernel import private

    with private.BuiltinsKept():
        from ptc_kernel.kernel import life

        hello = life.adopt(fds[0])  # before the slow imports: a host may die meanwhile
        from ptc_kernel.kernel.app import run_hosted_kernel
    run_hosted_kernel(life.Descriptors(*fds), hello)


if __name__ == "__main__":
    main()
