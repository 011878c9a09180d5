"""
Predict a run
=============

Hello.
"""

print("hello")
