"""`octavo pull`: fetch a model into the cache.

Owns: the progress shown meanwhile.
Does not know: where models come from (model.fetch).
"""

from __future__ import annotations

from octavo.cli.console import Steps, write
from octavo.config import Options
from octavo.deploy import find_model


def pull(options: Options) -> None:
    """Fetches, reads the headers (so that what is broken is found now), prints the path."""
    with Steps(1) as steps:
        steps.begin(f"Fetching {options.model}")
        model = find_model(options, steps.progress)
    write(f"{model.path}\n")
