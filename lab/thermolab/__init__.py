"""Boots real Linux kernels in QEMU, under software emulation, and runs scenarios with real programs in them.

Nothing of the host is changed: kernels and root file systems live in a cache outside the tree, guests write to
snapshots that are thrown away, and every process that a guest needs ends with it.
"""
