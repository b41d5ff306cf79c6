"""Every token is predicted once, streams follow documents, little is padded, any step can be addressed."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from titans.data import IndexedDataset, PieceDataset, make_schedule
from titans.errors import TitansError

PAD = 9


def make(lengths, sequence_length, rows, carry_state, **options):
    starts = np.cumsum([0, *lengths])
    ids = [list(range(100 + a, 100 + b)) for a, b in itertools.pairwise(starts)]  # no id occurs twice
    return PieceDataset(
        IndexedDataset.from_lists(ids),
        sequence_length,
        rows,
        carry_state=carry_state,
        pad_token_id=PAD,
        **options,
    )


corpora = st.lists(st.integers(0, 60), min_size=1, max_size=20).filter(lambda lengths: max(lengths) > 1)


@settings(max_examples=60)
@given(corpora, st.integers(1, 16), st.integers(1, 5), st.booleans(), st.integers(0, 3))
def test_every_token_is_input_and_target_once(lengths, sequence_length, rows, carry_state, seed):
    dataset = make(lengths, sequence_length, rows, carry_state, seed=seed)
    inputs, targets = [], []
    for step in range(len(dataset)):
        batch = dataset[step]
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
        assert (batch["input_ids"][~mask] == PAD).all()
        assert torch.equal(batch["labels"] != -100, mask)
        assert torch.equal(batch["labels"][mask], batch["input_ids"][mask] + 1)  # the next token of the same document
        inputs += batch["input_ids"][mask].tolist()
        targets += batch["labels"][mask].tolist()
    store = dataset.documents
    documents = [store.read(i, 0, 99).tolist() for i in range(len(store))]
    assert sorted(inputs) == sorted(i for document in documents for i in document[:-1])
    assert sorted(targets) == sorted(i for document in documents for i in document[1:])


@settings(max_examples=60)
@given(corpora, st.integers(1, 16), st.integers(1, 5), st.integers(0, 3))
def test_a_streamed_row_goes_on_where_it_stopped(lengths, sequence_length, rows, seed):
    dataset = make(lengths, sequence_length, rows, True, seed=seed)
    expected = [None] * rows
    for step in range(len(dataset)):
        batch = dataset[step]
        if not batch["streamed"]:
            assert batch["reset"].all()
            continue
        for row in range(rows):
            labels = batch["labels"][row]
            read = int((labels != -100).sum())
            if read and not batch["reset"][row]:
                assert batch["input_ids"][row, 0] == expected[row]
            if read:
                expected[row] = labels[read - 1]


@given(corpora, st.integers(1, 16))
def test_pieces_concatenated_are_the_documents(lengths, sequence_length):
    dataset = make(lengths, sequence_length, 1, True)  # one row, so that no document is cut
    read, current = [], []
    for step in range(len(dataset)):
        batch = dataset[step]
        if batch["reset"][0] and batch["streamed"]:
            current = []
        elif not batch["streamed"]:
            continue
        current += batch["input_ids"][0].tolist()
        last = int(batch["labels"][0, -1])
        read = [*read[:-1], [*current, last]] if not batch["reset"][0] else [*read, [*current, last]]
    long = [dataset.documents.read(i, 0, 99).tolist() for i, n in enumerate(lengths) if n - 1 > sequence_length]
    assert sorted(read) == sorted(long)


@given(corpora, st.integers(1, 16), st.integers(1, 5), st.booleans())
def test_steps_do_not_depend_on_the_seed(lengths, sequence_length, rows, carry_state):
    def steps(seed):
        return len(make_schedule(np.array(lengths), sequence_length, rows, carry_state=carry_state, seed=seed))

    assert steps(0) == steps(1) == steps((3, 4))


def test_any_step_of_any_epoch_can_be_addressed():
    dataset, again = make([50, 9, 3, 70, 8], 8, 2, True), make([50, 9, 3, 70, 8], 8, 2, True)
    steps = len(dataset)
    in_order = [dataset[i] for i in range(3 * steps)]
    for i in (2 * steps + 1, 0, steps, 3 * steps - 1, 1):
        assert all(torch.equal(torch.as_tensor(in_order[i][key]), torch.as_tensor(again[i][key])) for key in again[i])
    epochs = [[in_order[e * steps + i]["input_ids"].tolist() for i in range(steps)] for e in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]


def test_one_long_document_keeps_all_rows_busy():
    dataset = make([8 * 100 + 1], 8, 4, True)
    assert len(dataset) == 25
    assert all("attention_mask" not in dataset[i] for i in range(25))
    assert sum(int(dataset[i]["reset"].sum()) for i in range(25)) == 4


@pytest.mark.parametrize("carry_state", [True, False])
def test_little_is_padded(carry_state):
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(6.5, 1.0, 4000)).astype(int) + 2  # like web text: median 700 tokens, a long tail
    sequence_length, rows = 4096, 8
    schedule = make_schedule(lengths, sequence_length, rows, carry_state=carry_state, seed=0)
    real = np.where(
        schedule.document >= 0,
        np.minimum(lengths[schedule.document] - 1 - schedule.start, sequence_length),
        0,
    )
    waste = 1 - real.sum() / (real.max(axis=1) * rows).sum()
    assert waste < 0.12


def test_processes_share_the_rows():
    whole = make([50, 9, 3, 70, 8, 33], 8, 4, True)
    parts = [make([50, 9, 3, 70, 8, 33], 8, 4, True, process=p, processes=2) for p in range(2)]
    for step in range(len(whole)):
        rows = [row[row >= 100].tolist() for part in parts for row in part[step]["input_ids"]]
        assert rows == [row[row >= 100].tolist() for row in whole[step]["input_ids"]]
        assert torch.equal(torch.cat([part[step]["reset"] for part in parts]), whole[step]["reset"])
        assert all(part[step]["input_ids"].shape[1] >= 1 for part in parts)


def test_nothing_to_predict_is_refused():
    with pytest.raises(TitansError, match="data is empty"):
        make([1, 0, 1], 8, 2, True)
