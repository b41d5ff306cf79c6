"""Files as Titans reads and writes them: written whole, texts, YAML and recipes; any package may use these."""
