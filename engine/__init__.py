"""The pure core (`engine.core`) and the live engine around it."""
