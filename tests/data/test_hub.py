"""Where the hub does not answer, whatever asks it is answered from the cache, at once."""

import pytest
from huggingface_hub import constants

from titans import TitansConfig
from titans.data import documents, load_tokenizer
from titans.errors import TitansError
from titans.training import pretrained


@pytest.mark.parametrize("what", ["tokenizer", "config", "weights", "any weights", "documents"])
def test_what_is_loaded_asks_a_silent_hub_once(monkeypatch, what):
    tried, asked = [], []

    def load(*_, **__):
        tried.append(constants.HF_HUB_OFFLINE)
        raise OSError("not in the cache")

    class Session:
        def head(self, url, timeout):
            asked.append(timeout)
            raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.get_session", Session)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    if what == "documents":
        datasets = pytest.importorskip("datasets")
        monkeypatch.setattr(datasets, "load_dataset", load)
    elif what in ("tokenizer", "config"):
        monkeypatch.setattr(f"transformers.Auto{what.title()}.from_pretrained", load)
    else:
        monkeypatch.setattr(pretrained, "load_any_config", lambda name: TitansConfig())
        owner = "titans.TitansForCausalLM" if what == "weights" else "transformers.AutoModelForCausalLM"
        monkeypatch.setattr(f"{owner}.from_pretrained", load)
    with pytest.raises(TitansError, match="not in the cache"):
        {
            "tokenizer": load_tokenizer,
            "config": pretrained.load_config,
            "weights": pretrained.load_model,
            "any weights": pretrained.load_causal_model,
            "documents": lambda name: list(documents(name)),
        }[what]("owner/name")
    assert tried == [True]
    assert asked == [5.0]
    assert constants.HF_HUB_OFFLINE is False


def test_what_lies_in_a_folder_asks_nobody(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.get_session", lambda: pytest.fail("the hub was asked"))
    load_tokenizer().save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).bos_token_id == 256
