"""What transformers leaves out of MPT and the models' own code computes: the largest ALiBi bias,
and biases where no_bias is false.

Owns: these changes to transformers' classes, for the scripts beside it.
Does not know: Octavo.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.mpt import modeling_mpt


def apply() -> None:
    _alibi()
    _biases(modeling_mpt.MptBlock, ("norm_1", "norm_2"))
    _biases(modeling_mpt.MptModel, ("norm_f",))


def _alibi() -> None:
    def build(self: Any, heads: int, length: int, _: float = 8, device: Any = None) -> Any:
        largest = self.config.attn_config.alibi_bias_max
        return modeling_mpt.build_mpt_alibi_tensor(heads, length, largest, device)

    modeling_mpt.MptModel.build_mpt_alibi_tensor = build


def _biases(module: type, norms: tuple[str, ...]) -> None:
    plain = module.__init__

    def init(self: Any, config: Any, *rest: Any, **named: Any) -> None:
        plain(self, config, *rest, **named)
        if config.no_bias:
            return
        for norm in norms:
            inner = getattr(self, norm)
            inner.bias = torch.nn.Parameter(torch.zeros_like(inner.weight))
        for linear in self.modules():
            if isinstance(linear, torch.nn.Linear):
                linear.bias = torch.nn.Parameter(torch.zeros(linear.out_features))

    module.__init__ = init
