"""One module per scenario: its docstring states what it shows, and its `run(lab)` returns the figures."""
