"""One loop that steps a learner and knows no method's name; callbacks, budget, schedule, optimizer, checkpoints."""
