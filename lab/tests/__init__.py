"""Tests of the harness; those marked `guest` boot one, the others need neither network nor QEMU."""
