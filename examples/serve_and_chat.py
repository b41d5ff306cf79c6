"""Serve a model with a memory for each user, and talk with it as with any server of the OpenAI API.

The model here is made on the spot and knows nothing: what it says is noise, but its memory is kept, by user and name,
and a request sends only what is new. With a model of your own: `titans serve MODEL --memories FOLDER`.

    python examples/serve_and_chat.py
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import torch

from titans import TitansConfig, TitansForCausalLM
from titans.data import byte_tokenizer


def make_model(folder: Path) -> None:
    """Save a small byte-level model and its tokenizer."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = TitansConfig(
        variant="mac", vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        segment_length=16, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    TitansForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def chat(url: str, user: str, text: str) -> dict:
    """Say something to the user's memory "notes"; returns the answer."""
    body = {
        "model": "model", "user": user, "memory": "notes", "max_tokens": 8,
        "messages": [{"role": "user", "content": text}],
    }  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def main() -> None:
    """Start the server, talk as two users, and stop it."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder, "model"))
        command = [sys.executable, "-m", "titans.cli", "serve", f"{folder}/model", "--memories", f"{folder}/memories"]
        server = subprocess.Popen(
            [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            url = next(m[0] for line in server.stdout if (m := re.search(r"http://127\.0\.0\.1:\d+", line)))
            for user, text in (("ann", "The code is 4711."), ("bob", "Good morning."), ("ann", "What is the code?")):
                memory = chat(url, user, text)["memory"]
                print(f"{user}: {text!r}; the memory has read {memory['tokens']} tokens, {memory['bytes']:,} bytes")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
