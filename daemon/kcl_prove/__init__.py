"""`kcl-daemon prove`: what the daemon promises, shown in the user's own AWS account, from outside.

It runs the daemon as processes, and knows nothing of its inside.
"""
