"""What Sphinx is told. Pages are the Markdown that GitHub shows, and their headings have the same names."""

from __future__ import annotations

project = "Spillway"
html_title = "Spillway"
extensions = ["myst_parser"]
myst_heading_anchors = 6
highlight_language = "text"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
# Pages are read in many places, so none needs a network.
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b57a4", "color-brand-content": "#0b57a4"},
    "dark_css_variables": {"color-brand-primary": "#79b8ff", "color-brand-content": "#79b8ff"},
}
