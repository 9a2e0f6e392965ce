"""Durable batches: files of requests that are run row by row, and survive whatever happens.

    files, blobs  ─┐                     ┌─ execute (an argument: the server's own handlers)
    database ── store ── validate ── runner
                 └── objects: what clients see

Nothing here knows HTTP, engines or models.
"""
