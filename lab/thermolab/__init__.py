"""Boots real Linux kernels in QEMU, under software emulation, and runs scenarios with real programs in them.

The host is not modified: kernels and root file systems are kept in a cache outside the tree, guests write to
temporary snapshots, and every process that a guest needs exits with it.
"""
