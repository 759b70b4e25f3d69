"""One verb per file: a recipe and `run(recipe)`. Only here do two noun packages meet."""
