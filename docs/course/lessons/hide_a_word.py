"""Hide a word: a network learns a language by filling blanks. Five minutes on two cores, no GPU."""

# %% [markdown]
# # Hide a word
#
# **Claim.** A network that only fills blanks learns more about a language than how frequent each word is. No labels
# are needed (Devlin et al. 2019).
#
# **Plan.** Train a tiny network on one book. Compare its loss on *held-out* chapters with that of a model that knows
# only word frequencies.

# %%
import math
import os
from pathlib import Path

import headstart

STEPS = int(os.environ.get("LESSON_STEPS", "1500"))  # a few steps are enough to see that the lesson runs
TEXT = Path(__file__).resolve().parents[3] / "recipes" / "quickstart" / "data" / "kjv.txt.gz"
VOCABULARY = 4096

# %%
run = headstart.pretrain({
    "output": f"runs/lesson-hide-a-word-{STEPS}",
    "corpus": {"files": [str(TEXT)], "validation": 0.02},
    "tokenizer": {"kind": "wordpiece", "vocab_size": VOCABULARY, "lowercase": True},
    "backbone": {"family": "encoder", "kind": "modernbert", "size": "tiny", "dropout": 0.0},
    "objective": {"name": "masked_lm", "rate": 0.15},
    "training": {"budget": f"{STEPS} steps", "seq_length": 64, "batch_tokens": 2048, "learning_rate": 2e-3},
})  # fmt: skip
run  # noqa: B018

# %% [markdown]
# ## Test it
# Three models, three losses, in nats per hidden token:
# - *uniform*: every token is equally likely;
# - *unigram*: every token is as likely as it is frequent;
# - the trained network.

# %%
uniform = math.log(VOCABULARY)
unigram = run.scores[0]["unigram_entropy"]
trained = run.scores[0]["loss"]
print(f"uniform {uniform:.2f}, unigram {unigram:.2f}, trained {trained:.2f} nats")
print(
    f"the network hesitates between {math.exp(trained):.0f} tokens, the unigram model between {math.exp(unigram):.0f}"
)

# %% [markdown]
# **Verdict.** The claim is confirmed if the trained loss is clearly below that of the unigram model: the network then
# uses the rest of the sentence. (This is one run. For a claim about networks in general, repeat it with several seeds.)

# %%
assert unigram < uniform
if STEPS >= 500:
    assert trained < unigram - 0.5, "the claim is not confirmed"

# %% [markdown]
# ## Look at it

# %%
for prompt in ("And the LORD said unto ___, Go in unto Pharaoh.", "And it came to ___ in those days."):
    (answer,) = headstart.generate(run.path, prompt)
    best = ", ".join(f"{candidate['text']} {candidate['probability']:.0%}" for candidate in answer["blanks"][0][:4])
    print(f"{prompt}  {best}")

# %% [markdown]
# ## Exercise
# The loss is the mean of -log p of the hidden tokens. If a network gave the right token p = 0.5 in half of the cases
# and p = 0.01 in the other half, what would its loss be? Is it better than one that always gives p = 0.1? Replace the
# answers below by your own and run the cell.

# %%
LOSS = (math.log(2) + math.log(100)) / 2
BETTER = False
assert math.isclose(LOSS, 2.649, abs_tol=1e-3)
assert BETTER is (-math.log(0.1) > LOSS)
