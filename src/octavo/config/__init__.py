"""The configuration: every option, in one table, and where each value came from.

Owns: the public names of the package. `options` holds the table, `kinds` the parsing of values,
`resolve` the layers (default < file < environment < flag < derived), `vllm_names` the options of
vLLM that are refused by name.
Does not know: what any option does.
"""

from octavo.config.options import DEFAULT_MODEL, Option, Options, Source, table
from octavo.config.resolve import ConfigError, resolve

__all__ = ["DEFAULT_MODEL", "ConfigError", "Option", "Options", "Source", "resolve", "table"]
