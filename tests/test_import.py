"""`import titans`: the public names, and the registration with Hugging Face's Auto classes in any order of imports."""

import os
import subprocess
import sys

import pytest

import titans


@pytest.mark.slow  # each takes as long as importing transformers; tests/models has the usual order
@pytest.mark.parametrize("order", [
    "import titans\nimport transformers",
    "import transformers\nimport titans",
    "from transformers import AutoModelForCausalLM\nimport titans",
    "import titans\nfrom titans import TitansForCausalLM",
    "import titans\nfrom titans import TitansConfig\nTitansConfig()",
])  # fmt: skip
def test_registration_in_any_order(order):
    code = (
        f"{order}\n"
        "from transformers import AutoConfig, AutoModel, AutoModelForCausalLM\n"
        "config = AutoConfig.for_model('titans', vocab_size=9, hidden_size=16, num_hidden_layers=1)\n"
        "assert type(config) is titans.TitansConfig\n"
        "assert type(AutoModel.from_config(config)) is titans.TitansModel\n"
        "assert type(AutoModelForCausalLM.from_config(config)) is titans.TitansForCausalLM\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_public_names():
    for name in titans.__all__:
        assert getattr(titans, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        titans.magic  # noqa: B018
