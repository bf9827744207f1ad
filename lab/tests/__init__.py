"""Tests of the harness. Tests marked `guest` boot a guest; the others need neither network nor QEMU."""
