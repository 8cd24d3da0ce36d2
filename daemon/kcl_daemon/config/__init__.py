"""From the text of a properties file to typed settings.

`properties` reads the file and the `KCL_...` variables, `load` says which entry counts and makes `Settings`;
all problems are reported at once. Each section is a file of dataclasses: a field declares its property with
`java(...)` or `ours(...)`, and the docstring below the field is its text in the reference. `kinds` has the kinds of
values, `checks` compares properties with each other.

Defaults are the Java daemon's unless a comment says why not. What Java would silently read as 0 or a default is
refused. `INERT` properties only cause a warning, so that a file from Java starts.
"""
