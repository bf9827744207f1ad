"""Figures: what the papers show, of the generated fleet, by commands that anyone can run again."""
