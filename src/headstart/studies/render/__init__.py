"""Show a study: terminal, tables, pictures and the report."""
