"""`kcl-daemon watch`: looks at an application from outside."""
