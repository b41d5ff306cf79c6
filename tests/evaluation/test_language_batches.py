"""lm-evaluation-harness's own model on ours: padding on either side changes nothing, and memories never read it."""

from types import SimpleNamespace

import pytest
import torch

from titans import TitansConfig, TitansForCausalLM
from titans.data import byte_tokenizer

TEXTS = ("a", "some longer words", "one, two, three: ", "the end of a text that is the longest")


@pytest.fixture(scope="module", params=["mac", "lmm"])
def lms(request, byte_sizes):
    """The harness's model with batches of 1 and of 4."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    torch.manual_seed(0)
    config = TitansConfig(
        variant=request.param, **byte_sizes, bos_token_id=256, eos_token_id=257, pad_token_id=258, initializer_range=0.5
    )
    model = TitansForCausalLM(config).eval()

    def make(batch_size):
        return huggingface.HFLM(
            pretrained=model, tokenizer=byte_tokenizer(), backend="causal", batch_size=batch_size, max_length=64
        )

    return make(1), make(4)


def requests(*arguments):
    return [SimpleNamespace(args=one, task_name="test") for one in arguments]


def test_log_likelihoods_do_not_depend_on_the_batch(lms):
    asked = [(text, f" {text[:n]} so") for n, text in enumerate(TEXTS, start=1)]
    one, four = (torch.tensor([x for x, _ in lm.loglikelihood(requests(*asked), disable_tqdm=True)]) for lm in lms)
    assert (one < -5).all()
    torch.testing.assert_close(four, one, rtol=1e-5, atol=1e-4)


def test_whole_documents_do_not_depend_on_the_batch(lms):
    asked = [(text * 5,) for text in TEXTS]  # the longest has three windows
    one, four = (torch.tensor(lm.loglikelihood_rolling(requests(*asked), disable_tqdm=True)) for lm in lms)
    torch.testing.assert_close(four, one, rtol=1e-5, atol=1e-4)


def test_generations_do_not_depend_on_the_batch(lms):
    asked = [(text, {"until": ["\n\n"], "max_gen_toks": 8}) for text in TEXTS]
    one, four = (lm.generate_until(requests(*asked), disable_tqdm=True) for lm in lms)
    assert four == one
    assert len(set(one)) > 1


def test_padding_before_a_prompt_would_show_in_a_generation(lms):
    """Without the mask that says so, the same padding is read, and the logits change."""
    lm = lms[1]
    ids, mask = lm.tok_batch_encode(list(TEXTS))
    assert not mask.all()
    with torch.no_grad():
        masked = lm.model(ids, attention_mask=mask).logits[:, -1]
        read = lm.model(ids).logits[:, -1]
    padded = ~mask.bool().all(1)
    assert ((masked - read).abs().amax(1) > 1e-2).eq(padded).all()
