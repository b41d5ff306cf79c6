"""The demonstration: train a Titans model and its twin without memory on real text, test recall, report."""
