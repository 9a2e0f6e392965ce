"""`python -m octavo.entrypoints.api_server`: the command line that vLLM's first server had.

Owns: that spelling; it is `octavo serve` with the same flags and their older names.
Does not know: anything of its own. `/generate` is among the server's routes.
"""

from __future__ import annotations

import sys

from octavo.cli import main

if __name__ == "__main__":
    main(["serve", *sys.argv[1:]])
