"""Charts, in data-flow order. Nothing here knows what a run is: `report` and `tuning` turn runs into panels.

chart      a chart as values: panels, curves, bars, bands; their colours and dashes
printed    draws it with matplotlib, for print and for a notebook; loads when `drawing.printed` is first used
page       draws it with Plotly in a self-contained HTML page; its look and script are page.html, page.css and page.js
"""

from typing import TYPE_CHECKING, Any

from qafel.lazy import lazily, require_installed

if TYPE_CHECKING:
    from qafel.drawing import printed as printed

_load, __dir__ = lazily(__name__, {"printed": f"{__name__}.printed"})


def require_drawing() -> None:
    """Raise, with what to install, if charts cannot be drawn: before hours of work, not after them."""
    require_installed("a chart", "draw", matplotlib="Matplotlib", plotly="Plotly")


def __getattr__(name: str) -> Any:
    if name == "printed":
        require_drawing()
    return _load(name)
