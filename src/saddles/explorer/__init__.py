"""The explorer: a web page on this machine that shows learning happen."""
