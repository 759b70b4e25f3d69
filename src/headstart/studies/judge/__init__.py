"""Read the results of a study, compare systems and judge claims."""
