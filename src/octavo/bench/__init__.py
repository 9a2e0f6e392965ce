"""Measuring: how fast the scheduler, a model, the machine and a server are.

Owns: nothing itself; `scheduler` measures the core alone, `decode` a model in this process,
`ceilings` the machine, `roofline` each op of a step against it, `load` any server over HTTP.
Does not know: how results are shown.
"""
