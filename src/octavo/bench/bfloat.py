"""A GGUF file's weights as bfloat16, for measuring what rounding plain weights costs.

Owns: writing that file.
Does not know: what is measured with it.
"""

from __future__ import annotations

from pathlib import Path


def write_bfloat(source: str, target: Path) -> None:
    """Writes the GGUF file `source` anew with its matrices dequantised to bfloat16; vectors and
    metadata stay as they are."""
    import gguf
    from gguf.quants import dequantize, quantize

    reader = gguf.GGUFReader(source)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(target, architecture, use_temp_file=False)
    for field in reader.fields.values():
        # The writer has its own of these.
        if field.name == gguf.Keys.General.ARCHITECTURE or field.name.startswith("GGUF."):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    kind = gguf.GGMLQuantizationType.BF16
    for tensor in reader.tensors:
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
