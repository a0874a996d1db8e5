"""The code that lives inside the Python kernel process.

It runs on the kernel's own interpreter, which needs ipykernel and nothing else of the host.
"""
