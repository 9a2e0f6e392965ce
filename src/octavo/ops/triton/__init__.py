"""Kernels written in Triton, one a file.

Each stands beside a twin in plain torch and is compared with it; `TRITON_INTERPRET=1`, set before
the kernel is imported, runs it without a GPU. Nothing here is imported but by `octavo.ops.cuda`.
"""
