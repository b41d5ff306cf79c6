"""Hugging Face models over stacks of token mixers."""
