"""Guarded scripts: the server itself stops one that breaks a rule while it runs."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mx_rmq.net.caller import Caller
from mx_rmq.store.script import compose
from tests.lab.lua_lint import CHANNEL, KEYLESS, NOTES, PROBES, READS, WRITES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mx_rmq.net.connection import Check, Value
    from mx_rmq.net.topology import Servers
    from mx_rmq.store.script import Script


def _set(names: Iterable[str]) -> str:
    return "{" + ", ".join(f"{name} = true" for name in names) + "}"


PRELUDE: Final = f"""\
local redis = (function(server)
  local reads, writes, notes = {_set(READS)}, {_set(WRITES)}, {_set(NOTES)}
  local keyless = {_set(KEYLESS)}
  local declared, proven, written = {{}}, {{}}, false
  for _, key in ipairs(KEYS) do declared[key] = true end
  local function guard(run)
    return function(command, key, ...)
      if keyless[command] then return run(command) end
      if not declared[key] and command ~= '{CHANNEL}' then
        error(command .. ' on a key that is not declared: ' .. key)
      end
      if reads[command] then
        if written then error(command .. ' reads after ' .. written .. ' has written') end
        proven[key] = true
      elseif writes[command] then
        if not proven[key] then error(command .. ' writes a key that nothing has read: ' .. key) end
        written = command
      elseif notes[command] then
        if run == server.call then error(command .. ' is a note, which may fail: use pcall') end
        if not written then error(command .. ' tells of what was not done') end
      else
        error(command .. ' is neither a known read nor a known write')
      end
      return run(command, key, ...)
    end
  end
  return {{
    call = guard(server.call), pcall = guard(server.pcall), acl_check_cmd = server.acl_check_cmd,
    sha1hex = server.sha1hex
  }}
end)(redis)
"""


class Guarded(Caller):
    """Runs every script guarded, and notes which ones ran."""

    def __init__(self, servers: Servers) -> None:
        super().__init__(servers, patience=10.0)
        self.ran: set[str] = set()

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Value],
        check: Check | None = None,
    ) -> Any:
        self.ran.add(script.name)
        if script.name not in PROBES:
            source = PRELUDE + script.source
            sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
            lines = (*compose("guard", PRELUDE), *script.lines)
            script = replace(script, source=source, lines=lines, sha=sha)
        return await super().run(script, keys, args, check)
