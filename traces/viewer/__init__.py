"""The block-map view that the live page, the inspector and the reports share: one script, one delta format."""
