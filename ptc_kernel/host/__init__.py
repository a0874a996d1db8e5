"""The agent's side: owns the kernel processes, their channels, time, and the host's functions."""
