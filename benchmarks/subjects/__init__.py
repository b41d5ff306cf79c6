"""What is measured: one module for each contestant, run by `worker.py` under the contestant's own Python."""
