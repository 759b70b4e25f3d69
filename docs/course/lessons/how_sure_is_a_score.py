"""How sure is a score: a difference between two single runs proves nothing. One minute, no network, no GPU."""

# %% [markdown]
# # How sure is a score?
#
# **Claim.** If two methods are equally good, their single runs still differ, often by more than a point. A test over
# seeds *and* examples keeps false discoveries rare.
#
# **Plan.** Simulate what we can never see in reality: two methods that are exactly equal. The score of each run varies
# with its seed (standard deviation: 2 points) and with the 500 test rows. Count how often we would believe in a
# difference.

# %%
import os

import numpy as np

from headstart.evaluation.comparison import compare_runs

STUDIES = 20 if "LESSON_STEPS" in os.environ else 200  # a few are enough to see that the lesson runs
ROWS, ACCURACY, SEED_NOISE = 500, 0.8, 0.02
rng = np.random.default_rng(0)


def run_once() -> list[int]:
    """Return the answers of one run: each row is right with the method's accuracy, plus the luck of the seed."""
    luck = np.clip(ACCURACY + rng.normal(0, SEED_NOISE), 0.01, 0.99)
    return (rng.random(ROWS) < luck).astype(int).tolist()


gold = [1] * ROWS

# %% [markdown]
# ## One run of each

# %%
differences = [100 * (np.mean(run_once()) - np.mean(run_once())) for _ in range(STUDIES)]
share = np.mean(np.abs(differences) > 1)
print(f"two equal methods differ by more than one point in {share:.0%} of {STUDIES} comparisons")
assert share > 0.4, "single runs should differ more often"


# %% [markdown]
# ## Six seeds, and a test
# `compare_runs` is what `headstart finetune` and `headstart study` use: an exact sign-flip test over seeds, a bootstrap
# over seeds and examples, and the larger p-value of both.


# %%
def discoveries(seeds: int) -> float:
    """Return how often a difference between equal methods is "significant"."""
    found = 0
    for _ in range(STUDIES):
        first, second = ({seed: run_once() for seed in range(seeds)} for _ in range(2))
        found += compare_runs(gold, first, second, "accuracy").is_decided
    return found / STUDIES


for seeds in (3, 6):
    rate = discoveries(seeds)
    print(f"{seeds} seeds: {rate:.1%} false discoveries")
    assert rate <= 0.1

# %% [markdown]
# **Verdict.** The claim is confirmed. With three seeds there is never a discovery, true or false: the smallest possible
# p-value is 2 · 0.5³ = 0.25. With six seeds, false discoveries stay rare.
#
# ## Exercise
# How many seeds does a two-sided sign-flip test need to reach p ≤ 0.05 at all? And p ≤ 0.01?

# %%
FEWEST = {0.05: 6, 0.01: 8}
for level, seeds in FEWEST.items():
    assert 2 * 0.5**seeds <= level < 2 * 0.5 ** (seeds - 1), f"not the fewest seeds for p ≤ {level}"
