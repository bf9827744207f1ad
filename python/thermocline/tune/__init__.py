"""The autotuner: better parameters for a fleet, found on its own traces (000 section 5.3).

Parts, each a value handed to the next:

- `space`: which knobs are searched, out of the program's one table of knobs.
- `designers`, `bayes`: where to look next, given what was found; pure functions.
- `program`: one look, by a run of `thermocline model` or of a command of the operator's.
- `choose`: what to take from what a look found: the most stored within the objective.
- `study`: what was looked at, on disk.
- `search`: the loop over these.
- `drift`, `retune`: whether the fleet has changed since, and what to do about it.
- `findings`, `words`, `page`: what a study has found, as a value, as text, and as a page.
- `parameters`: what the agents are to be given.
"""
