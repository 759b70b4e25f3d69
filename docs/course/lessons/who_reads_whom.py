"""Who reads whom: an encoder reads both sides of a blank, a decoder only the left. One minute, no training, no GPU."""

# %% [markdown]
# # Who reads whom
#
# **Claim.** An encoder and a decoder are stacks of the same layer. What differs is the *attention mask*: which token
# may read which. And reading both sides helps to fill a blank (Devlin et al. 2019).
#
# **Plan.** Look at the masks. Check that real networks obey them: change one word, and see which other words notice.
# Then measure on a book how much the right side of a blank is worth, by counting.

# %%
import gzip
import itertools
import math
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from headstart.objectives.attention import DIRECTIONS, attention_mask

TEXT = Path(__file__).resolve().parents[3] / "recipes" / "quickstart" / "data" / "kjv.txt.gz"

# %% [markdown]
# ## Look at the masks
# Row *i* shows which tokens token *i* reads: `#` is read, `.` is not.

# %%
masks = attention_mask(torch.arange(len(DIRECTIONS)), 6)
for name, mask in zip(DIRECTIONS, masks, strict=True):
    print(name, *("".join("#" if read else "." for read in row) for row in mask.tolist()), sep="\n  ")

# %% [markdown]
# ## Change one word
# Two tiny networks with random weights, one of each kind. Token 3 of 6 is replaced. Which states change?

# %%
torch.manual_seed(0)
SIZE = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
networks = {"encoder": BertModel(BertConfig(**SIZE)).eval(), "decoder": LlamaModel(LlamaConfig(**SIZE)).eval()}
before = torch.tensor([[11, 12, 13, 14, 15, 16]])
after = before.clone()
after[0, 3] = 99
noticed = {}
for name, network in networks.items():
    with torch.no_grad():
        states = [network(input_ids=ids).last_hidden_state[0] for ids in (before, after)]
    noticed[name] = ((states[0] - states[1]).abs().amax(dim=-1) > 1e-6).tolist()
    print(name, "".join("#" if changed else "." for changed in noticed[name]))

assert noticed["encoder"] == [True] * 6, "every token of an encoder reads token 3"
assert noticed["decoder"] == [False] * 3 + [True] * 3, "in a decoder, only token 3 and those after it do"

# %% [markdown]
# ## What is the right side worth?
# Hide each word of some verses, and guess it from its neighbors, by how often they occur together in the rest of the
# book. Three guesses: from nothing (how frequent is the word?), from the left neighbor, from both neighbors. The loss
# is the mean of -log p of the hidden word, as in pre-training. A guess from a neighbor is mixed with the frequency of
# the word, so that no probability is zero (Witten and Bell 1991).

# %%
with gzip.open(TEXT, "rt", encoding="utf-8") as file:
    verses = [["<s>", *re.findall("[a-z]+", line.lower()), "</s>"] for line in file if line.strip()]
hidden = verses[::200]
known = [verse for i, verse in enumerate(verses) if i % 200]

frequencies = Counter(word for verse in known for word in verse[1:-1])
vocabulary = {word: i for i, word in enumerate(frequencies)}
unigram = np.array(list(frequencies.values())) / frequencies.total()
beside: dict[tuple[str, str], Counter[int]] = {}
for verse in known:
    for a, b in itertools.pairwise(verse):
        if b in vocabulary:
            beside.setdefault(("left", a), Counter())[vocabulary[b]] += 1
        if a in vocabulary:
            beside.setdefault(("right", b), Counter())[vocabulary[a]] += 1


@lru_cache(maxsize=500)
def guess(side: str, neighbor: str) -> np.ndarray:
    """Return the probability of every word that has this neighbor on this side."""
    counts = beside.get((side, neighbor), Counter())
    probabilities = max(len(counts), 1) * unigram
    probabilities[list(counts.keys())] += list(counts.values())
    return probabilities / probabilities.sum()


losses: dict[str, list[float]] = {"nothing": [], "left": [], "both": []}
for verse in hidden:
    for left, word, right in zip(verse, verse[1:], verse[2:], strict=False):
        if word in vocabulary:
            from_left, from_right = guess("left", left), guess("right", right)
            # As if both neighbors were independent, given the word: multiply, and divide by what both include.
            from_both = from_left * from_right / unigram
            i = vocabulary[word]
            losses["nothing"].append(-np.log(unigram[i]))
            losses["left"].append(-np.log(from_left[i]))
            losses["both"].append(-np.log(from_both[i] / from_both.sum()))

mean = {name: float(np.mean(values)) for name, values in losses.items()}
for name, loss in mean.items():
    print(f"from {name:>7}: {loss:.2f} nats, a choice among {math.exp(loss):.0f} words")

# %% [markdown]
# **Verdict.** The claim is confirmed for this book: with both neighbors, a hidden word is a choice among fewer words
# than with the left one alone. `masked_lm` uses this, and `causal_lm` cannot. In return, a decoder learns from every
# token, an encoder from 15 % of them. docs/results/claims.md says which of the two is better to *fine-tune* at equal
# compute.
#
# To see it with networks, train the quickstart's encoder with a decoder's mask, and compare the losses:
# `headstart pretrain recipes/quickstart/pretrain.yaml objective.attention=left output=runs/left`

# %%
assert mean["both"] < mean["left"] - 0.5, "the claim is not confirmed"

# %% [markdown]
# ## Exercise
# Of the 36 pairs of six tokens, how many may be read in each mask? Replace the answers below by your own and run the
# cell.

# %%
PAIRS = {"both": 36, "left": 21, "right": 21, "prefix": 24}
assert {name: int(mask.sum()) for name, mask in zip(DIRECTIONS, masks, strict=True)} == PAIRS
