"""Charts, in data-flow order. Nothing here knows what a run is: `report`, `paper` and `tuning` turn runs into panels.

chart      a chart as values: panels, curves, bars, bands; their colours and dashes
printed    draws it with matplotlib, for print
page       draws it with Plotly in a self-contained HTML page; its look and script are page.html, page.css and page.js
"""
