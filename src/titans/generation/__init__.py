"""From what a model predicts to text: choosing tokens, and putting them together as characters."""

from titans.generation.ending import end_tokens
from titans.generation.sampling import sample
from titans.generation.stream import generate_text
from titans.generation.text import StopFilter, TextWriter

__all__ = ["StopFilter", "TextWriter", "end_tokens", "generate_text", "sample"]
