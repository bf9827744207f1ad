"""What a Thermocline fleet runs in Python, beside the one binary that its machines run."""
