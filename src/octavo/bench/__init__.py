"""Measuring: how fast the scheduler and a model are on this machine.

Owns: nothing itself; `scheduler` measures the core alone, `decode` a model in this process.
Does not know: servers.
"""
