"""One module per scenario: its docstring says what it shows, and its `run(lab)` returns the figures."""
