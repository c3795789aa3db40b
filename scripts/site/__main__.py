"""`python -m scripts.site FOLDER [ROOT]` builds the site of a checkout in FOLDER/site.

The generator's pages are in FOLDER/pages. All three folders that it makes are cleared first.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from scripts.site.pages import ROOT, SiteError, write_pages


def build(folder: Path, root: Path = ROOT) -> int:
    """Builds the site anew; the exit code is not 0 if there was any warning."""
    pages, cache, site = (folder / name for name in ("pages", "site-cache", "site"))
    for old in (pages, cache, site):
        shutil.rmtree(old, ignore_errors=True)
    try:
        write_pages(pages, root)
    except SiteError as error:
        print(f"gpubalance: {error}", file=sys.stderr)
        return 1
    strict = ["-n", "-W", "--keep-going"]
    here = str(Path(__file__).parent)
    status = sphinx(
        [*strict, "-q", "-c", here, "-d", str(cache), str(pages), str(site)]
    )
    if status == 0:
        print(site / "index.html")
    return status


if __name__ == "__main__":
    sys.exit(build(*map(Path, sys.argv[1:])))
