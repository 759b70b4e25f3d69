"""HTML pages that need no other file: Jinja2 templates with autoescape, one style sheet, no script.

A package keeps its template beside the code that fills it and extends `base.html.j2`. Everything that a template prints
is escaped, except `Markup` from `charts`, whose parts were escaped when they were built.
"""
