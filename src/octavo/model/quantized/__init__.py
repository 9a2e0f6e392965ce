"""Quantised safetensors: one module a scheme, the settings that choose one, and a checkpoint's use
of it.

  settings   config.json -> Scheme             scheme    what a scheme is
  gptq, awq, integers, fp8: the schemes        modules   their tensors among a checkpoint's
"""
