"""Triton's interpreter, mended where it differs from a GPU, so that kernels can be tested on a CPU.

With ``TRITON_INTERPRET=1`` kernels run in numpy. In Triton 3.7 to 3.9, then,

* bfloat16 is cut off where a GPU rounds to the nearest, and ``tl.dot`` multiplies its bit patterns;
* every call of one function by another patches ``triton.language`` anew, most of the time of a small kernel.
"""

from __future__ import annotations

import os
from typing import Any

ON = os.environ.get("TRITON_INTERPRET", "0") == "1"


def mend() -> None:
    """Once, before a kernel is launched; nothing where the interpreter is not in use."""
    if not ON:
        return
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    builder, Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    if getattr(builder, "parsimax_mended", False):
        return
    builder.parsimax_mended = True
    np.seterr(all="ignore")  # a GPU says nothing of 0/0 in lanes that a condition leaves out
    cast, convert, dot = builder.cast_impl, builder.create_fp_to_fp, builder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = np.ascontiguousarray(handle.data).view(np.uint16).astype(np.uint32) << 16
        return Handle(bits.view(np.float32), tl.float32)

    def rounded(handle: Any) -> Any:
        x = np.ascontiguousarray(handle.data.astype(np.float32))
        bits = x.view(np.uint32)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return Handle(np.where(np.isnan(x), 0x7FC0, nearest).astype(np.uint16), tl.bfloat16)

    def any_cast(self: Any, handle: Any, kind: Any) -> Any:
        source, target = handle.dtype.scalar, kind.scalar
        if tl.bfloat16 not in (source, target) or source == target:
            return cast(self, handle, kind)
        if target == tl.bfloat16:
            return rounded(handle)
        wide = widened(handle)
        return wide if target == tl.float32 else cast(self, wide, kind)

    def to_float(self: Any, handle: Any, kind: Any, rounding: Any) -> Any:
        if tl.bfloat16 in (handle.dtype.scalar, kind.scalar):
            return any_cast(self, handle, kind)
        return convert(self, handle, kind, rounding)

    def product(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, widened(a), widened(b), *rest)

    builder.cast_impl, builder.create_fp_to_fp, builder.create_dot = any_cast, to_float, product
    patched: set[int] = set()

    def call(self: Any, *args: Any, **options: Any) -> Any:
        # A launch patches its own module, and what a call within it patches is never undone: once is enough.
        if id(self.fn.__globals__) not in patched:
            patched.add(id(self.fn.__globals__))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **options)

    interpreter.InterpretedFunction.__call__ = call
