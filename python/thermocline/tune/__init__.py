"""The autotuner: searches better parameters for a fleet on the fleet's own traces (SDFM section 5.3).

Modules, in the order of the data flow:

- `space`: the knobs to search, from the program's table of knobs.
- `sampling`, `designers`, `bayes`: choose the next point from the results so far; pure functions.
- `program`: evaluates a point by a run of `thermocline model` or of a user's command.
- `choose`: selects the pair of K and S that stores most within the objective.
- `study`: the evaluations on disk.
- `search`: the loop over these.
- `drift`, `retune`: whether the fleet has changed since, and a new study if it has.
- `findings`, `text`, `page`: the results of a study as data, as text, and as an HTML page.
- `parameters`: the parameters for the agents.
"""
