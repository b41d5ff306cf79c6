"""The demonstration: train Titans models and a twin without memory on real text, test recall, report."""
