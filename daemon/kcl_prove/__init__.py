"""`kcl-daemon prove`: what the daemon promises, shown in the user's own AWS account, or on local endpoints.

It runs real daemons as processes, and knows nothing of their inside. A scene (`scenes`) makes a stream, starts workers
(`fleet`), writes numbered records (`producer`), disturbs the workers meanwhile, and settles: what was written is
compared with what the children noted in their ledgers (`account`). It has passed if nothing was lost, out of order or
before its parents, and if it did what it is for.

Somebody else's account is used, so:

- Nothing is made before credentials and permissions are known to do (`permissions`), and the cost is agreed to.
- Whatever is made is written down in a file before (`inventory`), and removed at the end of its scene (`removal`),
  also after a failure or Ctrl-C. After a crash `--clean` does it, by that file (`cleaning`).
- What costs money is counted before it is used (`prices`). A step that would go above `--most` ends the run.
- Reports name no account, ARN, key, host or home folder.
"""
