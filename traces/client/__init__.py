"""Load client for OpenAI-compatible servers: sends a trace's requests at their times, whatever the server does, and reports what came back."""
