"""Real programs on emulated slow memory: how much of their memory can be slow at a tolerable slowdown, and the cost."""
