"""What is measured: one module for each implementation, run by `worker.py` under that one's own Python."""
