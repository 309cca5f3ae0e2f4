"""Tile programs: fused loads, arithmetic, reductions and stores over an iteration space.

`scalars` is the one table of scalar operators, `tile` the kernel, `module` a model as a sequence of
kernels over buffers. Sizes, strides and offsets may be symbolic; nothing here knows a device.
"""
