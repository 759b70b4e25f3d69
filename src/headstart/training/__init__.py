"""One loop that steps a learner and knows no method's name; budget, schedule, optimizer, checkpoints, progress."""
