"""Show a study: terminal, tables, charts and the report."""
