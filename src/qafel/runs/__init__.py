"""What a run leaves behind: its directory, and the pictures and pages made from it.

run_directory   written while a run goes on, atomically where it matters
runs            read back
plots           PNG and PDF figures
report          a self-contained page that compares runs
"""
