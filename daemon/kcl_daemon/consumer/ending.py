"""How a child is ended: asked first, then told, then killed, each with its time."""

from __future__ import annotations

from kcl_daemon.ports import Child, Clock, Log


async def end_child(child: Child, *, clock: Clock, grace_s: float, ask: bool, log: Log) -> None:
    """Close its stdin, then SIGTERM, then SIGKILL, `grace_s` seconds apart.

    Returns when it has ended, or when even that has not helped in time.

    Its stdout must be read meanwhile, or it may hang in a write.

    Args:
        child: the child.
        clock: for the waits.
        grace_s: how long each step may take.
        ask: False skips the first wait, for a child that has stopped answering.
        log: bound with the shard.
    """
    await child.close_stdin()
    if ask and await _ends_within(child, clock, grace_s):
        return
    if ask:
        log.warning("child_ignores_eof", pid=child.pid, grace_s=grace_s)
    child.terminate()
    if await _ends_within(child, clock, grace_s):
        return
    log.warning("child_ignores_sigterm", pid=child.pid, grace_s=grace_s)
    child.kill()
    if not await _ends_within(child, clock, grace_s):
        log.error(
            "child_survives_sigkill", pid=child.pid, advice="it hangs in the kernel; its lease is released"
        )


async def _ends_within(child: Child, clock: Clock, grace_s: float) -> bool:
    with clock.move_on_after(grace_s):
        await child.wait()
        return True
    return False
