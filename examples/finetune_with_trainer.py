"""Fine-tune with transformers' own Trainer: packed rows for the language model, then a classifier from its weights.

python examples/finetune_with_trainer.py
"""

import argparse
import tempfile

import torch
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments, pipeline

from titans import TitansConfig, TitansForCausalLM, TitansForSequenceClassification
from titans.data import byte_tokenizer

THINGS = ("day", "song", "dinner", "walk", "book", "town", "friend", "garden", "film", "train")
GOOD = [f"{start} {thing} was fine" for start in ("the", "my") for thing in THINGS]
BAD = [f"{start} {thing} was bad" for start in ("the", "my") for thing in THINGS]


def arguments(folder: str, steps: int) -> TrainingArguments:
    """Return the settings of both trainings."""
    return TrainingArguments(
        folder, max_steps=steps, per_device_train_batch_size=8, learning_rate=5e-3, logging_steps=10, report_to=[],
        save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip


def main() -> None:
    """Train both, and ask the classifier."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = TitansConfig(
        variant="mac", vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        segment_length=16, num_persistent_tokens=2, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        # The documents stand end to end in one row; each is read as a stream of its own.
        texts = [{"input_ids": tokenizer(text)["input_ids"]} for text in GOOD + BAD]
        model = TitansForCausalLM(config)
        Trainer(
            model, arguments(folder, args.steps), data_collator=DataCollatorWithFlattening(), train_dataset=texts
        ).train()
        model.save_pretrained(folder)

        labelled = [{**tokenizer(text), "labels": int(text in GOOD)} for text in GOOD + BAD]
        classifier = TitansForSequenceClassification.from_pretrained(
            folder, num_labels=2, id2label={0: "bad", 1: "good"}
        )
        Trainer(classifier, arguments(folder, args.steps), processing_class=tokenizer, train_dataset=labelled).train()
    classify = pipeline("text-classification", model=classifier, tokenizer=tokenizer, device="cpu")
    for text in ("the house was fine", "the house was bad"):
        print(text, "->", classify(text)[0])


if __name__ == "__main__":
    main()
