"""Real programs on emulated slow memory: what fits at a tolerable slowdown, and what it costs."""
