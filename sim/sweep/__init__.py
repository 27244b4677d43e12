"""Many replays at once: axes of settings, worker processes, a cache of what has been computed."""
