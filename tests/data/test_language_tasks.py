"""Local files give the documents that the stock tasks ask for."""

import bz2
import json

import pytest

from titans.data.language_tasks import local_task
from titans.errors import TitansError


def instruction(question, tail):
    return f"Please choose the correct answer to the question: {question}\n\n{tail}"


def test_piqa_with_its_labels(tmp_path):
    rows = [{"goal": f"goal\u2028{n}", "sol1": "one", "sol2": "two", "id": n} for n in range(3)]
    (tmp_path / "piqa_valid.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    (tmp_path / "piqa_valid-labels.lst").write_text("1\n0\n1\n")
    task = local_task(tmp_path, "piqa")
    assert [row["label"] for row in task.rows] == [1, 0, 1]
    assert task.rows[2] == {"goal": "goal\u20282", "sol1": "one", "sol2": "two", "label": 1}
    assert task.deviation == ""
    (tmp_path / "piqa_valid-labels.lst").write_text("1\n0\n")
    with pytest.raises(TitansError, match="holds 2 labels, expected 3"):
        local_task(tmp_path, "piqa")


@pytest.mark.parametrize(
    ("context", "first", "second"),
    [
        ("A man is on a roof. he", "A man is on a roof.", "he"),
        ("He stops! A dog? the dog in a Nike shirt", "He stops! A dog?", "the dog in a Nike shirt"),
        ("How to bake. Take flour.", "How to bake. Take flour.", ""),
        ('He says "so." then', 'He says "so."', "then"),
        ("no sentence at all", "no sentence at all", ""),
    ],
)
def test_hellaswag_of_six_lines(tmp_path, context, first, second):
    lines = [f"Roof removal: {context}", "3", "a [title] b", "c", "d", "e"]
    (tmp_path / "hellaswag_val_full.txt.bz2").write_bytes(bz2.compress("".join(f"{line}\n" for line in lines).encode()))
    (row,) = local_task(tmp_path, "hellaswag").rows
    assert row == {
        "activity_label": "Roof removal",
        "ctx_a": first,
        "ctx_b": second,
        "endings": ["a [title] b", "c", "d", "e"],
        "label": "3",
    }


def test_winogrande_and_arc_from_instructions(tmp_path):
    blank = instruction("Sarah, unlike Maria: _ won.", "Option1: Sarah Option2: Maria Answer format: option1/option2")
    (tmp_path / "winogrande.test.json").write_text(json.dumps([{"instruction": blank, "answer": "option2"}]))
    assert local_task(tmp_path, "winogrande").rows == [
        {"sentence": "Sarah, unlike Maria: _ won.", "option1": "Sarah", "option2": "Maria", "answer": "2"}
    ]
    answers = "Answer1: 1 m. Answer2: 2 m.\nAnswer3: no: 3\n\nAnswer format: answer1/answer2/answer3"
    question = instruction("How far:\n\nthis or that?", answers)
    (tmp_path / "ARC-Easy.test.json").write_text(json.dumps([{"instruction": question, "answer": "answer3"}]))
    (row,) = local_task(tmp_path, "arc_easy").rows
    assert row["question"] == "How far:\n\nthis or that?"
    assert row["choices"] == {"text": ["1 m.", "2 m.", "no: 3"], "label": ["answer1", "answer2", "answer3"]}
    assert row["answerKey"] == "answer3"
    assert local_task(tmp_path, "arc_challenge") is None


def test_wikitext_is_cut_into_its_articles(tmp_path):
    articles = [" = One = \n \n Text <unk> . \n \n = = Part = = \n \n More . \n \n", " = Two = \n \n = Three = 3 \n"]
    (tmp_path / "wikitext-2.valid.txt").write_text(" \n" + "".join(articles))
    task = local_task(tmp_path, "wikitext")
    assert [row["page"] for row in task.rows] == articles
    assert task.deviation == "WikiText: wikitext-2.valid.txt, with <unk> for rare words, not the raw test set"


def test_stock_documents_of_any_task(tmp_path):
    (tmp_path / "deep").mkdir()
    row = {"passage": "p", "question": "q", "label": 1}
    (tmp_path / "deep" / "boolq.jsonl").write_text(json.dumps(row) + "\n\n")
    assert local_task(tmp_path, "boolq").rows == [row]
    (tmp_path / "boolq.jsonl").write_text(json.dumps(row))
    with pytest.raises(TitansError, match="several files for boolq"):
        local_task(tmp_path, "boolq")


@pytest.mark.parametrize(
    ("name", "content", "task", "message"),
    [
        ("boolq.jsonl", "{", "boolq", "line 1, is no JSON"),
        ("boolq.jsonl", "[]", "boolq", "line 1, is list"),
        ("boolq.jsonl", "", "boolq", "holds no document"),
        ("lambada_test.jsonl", '{"txt": "a"}', "lambada_openai", "'text' is missing"),
        ("hellaswag_val.txt", "a: b\n0\nc\n", "hellaswag", "3 lines"),
        ("hellaswag_val.txt", "a: b\n4\nc\nd\ne\nf\n", "hellaswag", "line 1, starts no document"),
        ("hellaswag_val.txt.bz2", "no bz2", "hellaswag", "cannot decompress"),
        ("winogrande.json", '[{"instruction": "a", "answer": "option1"}]', "winogrande", "entry 1"),
        ("ARC-Easy.json", '[{"instruction": "a", "answer": "answer1"}]', "arc_easy", "entry 1"),
        ("ARC-Easy.json", "{}", "arc_easy", "no list of instructions"),
        ("wikitext-2.txt", "text", "wikitext", "no article"),
        ("piqa_valid.jsonl", '{"goal": "a"}', "piqa", "piqa_valid-labels.lst"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, task, message):
    (tmp_path / name).write_text(content)
    with pytest.raises((TitansError, OSError), match=message):
        local_task(tmp_path, task)
