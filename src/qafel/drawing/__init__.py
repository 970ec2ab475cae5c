"""Charts. Nothing here knows runs: other packages turn runs into panels.

chart      a chart as values: panels, curves, bars; their colours and dashes
printed    draws charts with matplotlib, for print and notebooks; loads on first use
page       draws charts with Plotly in a self-contained HTML page: page.html, page.css, page.js
"""

from typing import TYPE_CHECKING, Any

from qafel.lazy import lazily, require_installed

if TYPE_CHECKING:
    from qafel.drawing import printed as printed

_load, __dir__ = lazily(__name__, {"printed": f"{__name__}.printed"})


def require_drawing() -> None:
    """Raise `ConfigError` if Matplotlib or Plotly is missing. Call it before long work."""
    require_installed("a chart", "draw", matplotlib="Matplotlib", plotly="Plotly")


def __getattr__(name: str) -> Any:
    if name == "printed":
        require_drawing()
    return _load(name)
