"""Charts: `chart` is a chart as values, in the colours and dashes of `styles`; `printed` draws it with matplotlib for
print, `page` with Plotly in a self-contained HTML page, whose look and script are `page.css` and `page.js`.

Nothing here knows what a run is: `report`, `paper` and `tuning` turn runs into panels.
"""
