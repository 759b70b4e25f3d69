"""Prompting for multiple choice: prompts, examples and scores of the answers."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from transformers import GPT2Config, GPT2LMHeadModel

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.stages.finetune.learner import run_model
from headstart.tasks.prompt_choice import PromptChoice

ANSWERS = ["the sea", "a long and winding road to the sea", "bread"]
TRAIN = Examples(
    {"question": [f"question {i}" for i in range(6)], "choices": [[f"no {i}", f"yes {i}"] for i in range(6)]}, [1] * 6,
    "train.csv",
)  # fmt: skip
ROWS = Examples({"question": ["What is it?", "And what now?"], "choices": [ANSWERS, ANSWERS[1:]]}, [0, 0], "rows")


def task_of(train: Examples = TRAIN, **settings) -> PromptChoice:
    task = PromptChoice(PromptChoice.Config.model_validate(settings))
    task.fit_labels(train)
    return task


@pytest.fixture(scope="module")
def decoder(tiny_tokenizer):
    torch.manual_seed(0)
    shape = {"n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tiny_tokenizer), **shape)).eval()


@pytest.mark.parametrize("normalize", ["tokens", "none"])
def test_answers_are_scored_as_continuations(tiny_tokenizer, decoder, normalize):
    """The scores are those of a plain forward pass over prompt and answer."""
    task, spec = task_of(normalize=normalize), InputSpec(tiny_tokenizer, "decoder", 128)
    features = task.encode(ROWS, spec)
    outputs = run_model(decoder, task, features, spec)
    prefix = tiny_tokenizer("a")["input_ids"][:1]
    for row, scores in enumerate(task.scores(outputs, features, spec)):
        expected = []
        for answer in ROWS.columns["choices"][row]:
            stem = f"Question: {ROWS.columns['question'][row]}\nAnswer:"
            before, whole = (
                prefix + tiny_tokenizer(text, add_special_tokens=False)["input_ids"]
                for text in (stem, f"{stem} {answer}")
            )
            with torch.no_grad():
                log_probs = decoder(torch.tensor([whole])).logits[0].log_softmax(-1)
            tokens = [log_probs[i - 1, whole[i]].item() for i in range(len(before), len(whole))]
            expected.append(sum(tokens) / (len(tokens) if normalize == "tokens" else 1))
        found = torch.tensor(list(scores.values()))
        torch.testing.assert_close(found, torch.tensor(expected).softmax(0).to(found), atol=1e-4, rtol=1e-3)
        assert task.decode(outputs, features, spec)[row] == int(torch.tensor(expected).argmax())


def test_examples_are_shown_with_their_answers(tiny_tokenizer):
    task = task_of(shots=2, between=" ; ")
    ids = task.encode(ROWS, InputSpec(tiny_tokenizer, "decoder", 256))[0]["input_ids"]
    text = tiny_tokenizer.decode(ids)
    assert text.count(";") == 2 and text.count("yes") == 2 and "no " not in text.split("What")[0]
    shown = [list(task.shown)]
    task.show(TRAIN, 1)
    assert task.shown not in shown
    again = PromptChoice(task.config)
    again.restore(task.state())
    assert again.shown == task.shown


def test_wrong_settings_and_rows_are_refused():
    with pytest.raises(ValidationError, match=r"has no \{question\}"):
        task_of(template="{label}")
    with pytest.raises(DataError, match=r"task\.shots is 7, but there are only 6"):
        task_of(shots=7)
    wrong = Examples({"question": ["a"], "choices": [["b", "c"]]}, [2], "wrong.csv")
    with pytest.raises(DataError, match=r"wrong\.csv, row 1 has the answer 2, but only 2 choices"):
        task_of(wrong)
