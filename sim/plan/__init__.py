"""How many machines a trace needs, and which: searches over simulated fleets. Stands on the replay and on the sweep's workers."""
