"""Planning: which tensors become virtual, on what, and in which order the rest runs.

Pure functions from a `PlanGraph` to a strategy. Nothing here knows torch graphs or engines: what
planning must know of an engine (costs, accepted maps) is handed in.
"""
