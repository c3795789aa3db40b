"""Sphinx's configuration. The site loads nothing from elsewhere: no font, no script."""

from gpubalance._version import __version__

project = "gpubalance"
html_title = f"gpubalance {__version__}"
extensions = ["myst_parser"]
# Markdown as GitHub shows it: no roles, targets or comments of MyST's own.
myst_disable_syntax = [
    "myst_role",
    "myst_target",
    "myst_line_comment",
    "myst_block_break",
]
myst_heading_anchors = 4
smartquotes = False  # or `--` in a sentence would be a dash
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
