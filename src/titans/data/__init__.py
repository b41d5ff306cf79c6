"""Data: documents from anywhere, tokenizers, and the order in which training reads them."""

from titans.data.corpora import Document, HubSource, Source, documents
from titans.data.indexed_dataset import IndexedDataset, build_indexed_dataset
from titans.data.packing import PieceDataset, Schedule, make_schedule
from titans.data.tokenizers import byte_tokenizer, check_vocabulary, encode, load_tokenizer

__all__ = [
    "Document",
    "HubSource",
    "IndexedDataset",
    "PieceDataset",
    "Schedule",
    "Source",
    "build_indexed_dataset",
    "byte_tokenizer",
    "check_vocabulary",
    "documents",
    "encode",
    "load_tokenizer",
    "make_schedule",
]
