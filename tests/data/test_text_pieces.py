import pytest
import torch

from titans.data.corpora import Document
from titans.data.synthetic.task import Size
from titans.data.synthetic.text_pieces import TextPieces
from titans.errors import TitansError


def document(text):
    return Document("one", lambda: iter((text[:5], text[5:])))


def test_parts_are_disjoint_and_whole():
    text = "".join(chr(32 + i % 90) for i in range(1000))
    task = TextPieces.read([document(text)])
    parts = [task.part(name) for name in ("train", "validation", "test")]
    assert [len(part.text) for part in parts] == [900, 50, 50]
    assert bytes(torch.cat([part.text for part in parts]).tolist()).decode() == text


def test_the_label_of_a_byte_is_the_next():
    task = TextPieces.read([document("abcdefghijklmnopqrstuvwxyz" * 40)])
    ids, labels = task.batch(500, Size(7), torch.Generator().manual_seed(0))
    assert ids.shape == (500, 7)
    assert torch.equal(ids[:, 1:], labels[:, :-1])
    assert torch.equal((ids - 97 + 1) % 26, labels - 97)
    assert len(ids[:, 0].unique()) == 26


def test_reads_documents_up_to_a_limit():
    documents = [document("first one"), document("second one")]
    assert bytes(TextPieces.read(documents).text.tolist()) == b"first one\n\nsecond one"
    assert bytes(TextPieces.read(documents, limit=14).text.tolist()) == b"first one\n\nsec"


def test_refuses_what_is_too_short():
    with pytest.raises(TitansError, match="the data is empty"):
        TextPieces.read([document("")])
    with pytest.raises(TitansError, match="has 50 bytes, not the 51 that a piece of 50 takes"):
        TextPieces.read([document("x" * 1000)]).check(Size(50))
    TextPieces.read([document("x" * 1000)]).check(Size(49))


def test_streams_go_on_where_they_stopped_or_start_anew():
    text = TextPieces.read([document("abcdefghijklmnopqrstuvwxyz" * 40)])
    streams = text.streams(torch.Generator().manual_seed(0))
    last, kept, started = None, 0, 0
    for _ in range(50):
        ids, labels, reset = streams.batch(3, 20, 0.3)
        assert torch.equal(ids[:, 1:], labels[:, :-1])
        if last is None:
            assert reset.all()
        else:
            assert torch.equal(ids[~reset, 0], last[~reset])  # the byte after the piece before
            kept, started = kept + int((~reset).sum()), started + int(reset.sum())
        last = labels[:, -1]
    assert kept > started > 20
    assert streams.batch(2, 20, 0.0)[2].all()  # another number of rows: all anew
    never = text.streams(torch.Generator().manual_seed(0))
    resets = [never.batch(1, 100, 0.0)[2].item() for _ in range(40)]
    assert resets[0]
    assert 3 < sum(resets) < 20  # at the end of the text only
