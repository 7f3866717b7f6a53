"""Results in forms for people and other programs: CSV, a workbook, a page.

Everything here works on a decoded result, blocks, and takes its time; whoever calls it does so
outside an event loop.
"""
