"""The picture of the conversation's tables, drawn from the tables so that it cannot lie."""

from __future__ import annotations

from kcl_protocol.conversation import SAYS, State


def state_diagram() -> str:
    """Every state and transition as the text of a mermaid `stateDiagram-v2`, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.START.value}"]
    for role, table in SAYS.items():
        lines.extend(
            f"    {state.value} --> {following.value} : {role.value} says {kind.value}"
            for state, row in table.items()
            for kind, following in row.items()
        )
    lines.append(f"    {State.OVER.value} --> [*]")
    return "\n".join(lines) + "\n"
