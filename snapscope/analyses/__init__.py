"""Analyses: one question, one file, one function, one frozen result.

They read a `DeviceHistory` and know nothing of text, terminals or argv.
"""
