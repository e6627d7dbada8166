"""Runs an engine's Triton kernels on CPU tensors with numpy, each load and store checked against its tensor.

``install("package")`` takes the kernels of a package; nothing else of the process changes. The kernels' own source is
executed. ``docs/adr/0010-array-tl.md`` says why, and what is equal to Triton's interpreter.
"""
