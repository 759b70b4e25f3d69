"""`headstart launch`: the job of a recipe, for the scheduler of a cluster."""
