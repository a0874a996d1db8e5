"""The rules of one run, without I/O: no sockets, no event loop, no clock.

The host and the worker inside the kernel both use these modules, so they import the standard
library only and must run on any Python >= 3.11.
"""
