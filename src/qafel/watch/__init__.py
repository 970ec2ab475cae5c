"""A live page of runs, from run directories or a broker, for a browser.

watched  a run at one moment, and forecasts of its duration
sources  where runs come from: folders, or reported states such as a broker's
page     the page: a card per run, and the report's charts
serve    the page's server, with server-sent events; needs the extra `watch`
"""
