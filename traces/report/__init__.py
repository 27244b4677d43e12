"""Reports as pages: a document of findings, charts, maps and tables, and the one HTML file that it becomes. Knows no replay and no server."""
