"""Inspector: any step of a recording as a block map, and the story of any request."""
