"""`python -m scripts.site FOLDER` builds the site in FOLDER/site, from pages in FOLDER/pages."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from scripts.site.pages import SiteError, write_pages


def build(folder: Path) -> int:
    """Builds the site anew; the exit code is not 0 if there was any warning."""
    pages, cache, site = (folder / name for name in ("pages", "site-cache", "site"))
    for old in (pages, cache, site):
        shutil.rmtree(old, ignore_errors=True)
    try:
        write_pages(pages)
    except SiteError as error:
        print(f"gpubalance: {error}", file=sys.stderr)
        return 1
    options = ["-W", "--keep-going", "-q", "-n", "-b", "html"]
    places = [str(Path(__file__).parent), str(cache), str(pages), str(site)]
    status = sphinx([*options, "-c", places[0], "-d", places[1], *places[2:]])
    if status == 0:
        print(f"{site / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
