"""Serve a model over the OpenAI API, with memories that outlive the process."""
