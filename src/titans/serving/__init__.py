"""Serve a model over the OpenAI API, with a memory for each session that outlives the process."""
