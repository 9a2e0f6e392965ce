"""A load client for servers that speak OpenAI's API: what is sent, when, and what it took.

Owns: workloads, arrivals, the HTTP client, the runs, the figures.
Does not know: how a server works, or how figures are shown (cli). It imports nothing of the engine,
so that any server can be measured.
"""
