"""What writes Markdown or draws pictures starts without Jinja2, which only the filling of a page needs."""

from __future__ import annotations

import subprocess
import sys


def test_markdown_and_charts_do_not_import_jinja2():
    code = (
        "import sys\n"
        "import headstart.core.pages.markdown, headstart.core.pages.charts, headstart.core.pages.spreadsheet\n"
        "assert 'jinja2' not in sys.modules\n"
        "import headstart.core.pages.page\n"
        "assert 'jinja2' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
