"""The manual's site: `scripts/docs` builds it.

`pages.py` makes the generator's pages of this repository's Markdown, `conf.py` configures the
generator, Sphinx.
"""
