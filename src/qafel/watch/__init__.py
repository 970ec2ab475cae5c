"""Any runs on one page, live: what goes on in run directories, or what else tells of runs, served to a browser.

watched    a run as it is seen at a moment; how long it will take
sources    where runs are seen: in folders, or told by somebody, such as a deployed server's broker
page       the page: a card for each run, and the report's charts
serve      the page's server, with server-sent events; it needs the extra `watch`
"""
