"""The command line: what people and scripts ask of an application, with or without workers at work.

`root` knows the commands and imports one only when it is called, so `--help` stays fast. `common` has what commands
share: the settings of a file, exit codes, error reports, JSON; `application` opens the tables and streams.
`run_options`, `run_start`, `run_function`, `run_local` and `run_reload` are `kcl-daemon run STREAM MODULE:FUNCTION`.

- The result goes to stdout, as text or one JSON document; notes and errors go to stderr. What comes from a table, a
  record or a child is made safe for a terminal (`on_one_line`).
- Exit code 0 is done, 1 a failure that may pass, 2 a wrong command line, file or environment. A KclError becomes one
  line with advice; any other exception is a bug and shows its traceback. `NotChanged` is the refusal of a change.
- Workers may run meanwhile. Each write requires the row as it was read. A command that is killed leaves whole
  changes, and can be given again.
- What a command needs beyond the daemon's own packages is imported where it is used, and its absence is told.
"""

from kcl_daemon.cli.root import main

__all__ = ["main"]
