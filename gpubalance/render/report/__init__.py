"""Results as a page to look at, one HTML file with charts, and as Markdown and CSV."""
