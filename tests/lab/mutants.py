"""One-line faults in the scripts. Each must be caught: that is how the tester is tested."""

from __future__ import annotations

from typing import NamedTuple

from mx_rmq.store.script import Script, load


class Mutant(NamedTuple):
    fault: str
    script: str
    old: str
    new: str

    def mutated(self) -> Script:
        """Return the script with the fault in it."""
        source = load(self.script).source
        assert source.count(self.old) == 1, f"{self.fault}: the line to change is not there once"
        return Script.parse(self.script, source.replace(self.old, self.new))


_HELD = "leases[n] == ARGV[at + 1] .. lease_end and not seen[id]"
_ANY = "leases[n] and not seen[id]"
_RECEIPT = "redis.call('SET', receipt, string.format('%.0f ', call) .. answer, 'PX', '600000')"
_BRIEF = _RECEIPT.replace("600000", "3000")
"""Shorter than it takes to give a reply up and to send the call again."""
_RING = "if rung == 0 then redis.call('RPUSH', doorbell, '1') end\n"
_ONE_HELD = "if lease ~= own then"

MUTANTS = [
    Mutant("complete without a token check", "complete_message", _HELD, _ANY),
    Mutant("retry without a token check", "retry_message", _HELD, _ANY),
    Mutant("release without a token check", "release_message", _HELD, _ANY),
    Mutant("extend without a token check", "extend_lease", _HELD, _ANY),
    Mutant("dead-letter without a token check", "move_to_dlq", _ONE_HELD, "if not lease then"),
    Mutant(
        "quarantine without a token check", "handle_parse_error", _ONE_HELD, "if not lease then"
    ),
    Mutant(
        "the worker is not part of the lease",
        "complete_message",
        _HELD,
        "string.match(leases[n] or '', '^%d+') == ARGV[at + 1] and not seen[id]",
    ),
    Mutant(
        "dispatch sets no deadline",
        "dispatch_message",
        "  redis.call('ZADD', expire_monitor, unpack(deadlines))\n",
        "",
    ),
    Mutant(
        "dispatch sets no lease",
        "dispatch_message",
        "  redis.call('HSET', processing, unpack(leases))\n",
        "",
    ),
    Mutant(
        "dispatch leaves the ids pending",
        "dispatch_message",
        "redis.call('LTRIM', key, '0', -take[level] - 1)",
        "redis.call('LTRIM', key, '0', '-1')",
    ),
    Mutant(
        "dispatch forgets the token counter",
        "dispatch_message",
        "'token', number or string.format('%.0f', token - 1), 'turn'",
        "'turn'",
    ),
    Mutant(
        "dispatch serves the newest first",
        "dispatch_message",
        "i = #tail, 1, -1 do\n      count",
        "i = 1, #tail do\n      count",
    ),
    Mutant("low starves", "dispatch_message", "[9] = {3, 1, 2}", "[9] = {1, 2, 3}"),
    Mutant("dispatch ignores the pause", "dispatch_message", "not paused and not", "not"),
    Mutant("dispatch is never alone", "dispatch_message", "alone == '1'", "false"),
    Mutant("a resent dispatch takes more", "dispatch_message", _RECEIPT, ""),
    Mutant("a dispatch is soon forgotten", "dispatch_message", _RECEIPT, _BRIEF),
    Mutant(
        "complete leaves the record",
        "complete_message",
        "redis.call('HDEL', payload, unpack(held))",
        "",
    ),
    Mutant(
        "complete leaves the deadline",
        "complete_message",
        "redis.call('ZREM', expire_monitor, unpack(held))",
        "redis.call('ZREM', expire_monitor, '')",
    ),
    Mutant("complete leaves no receipt", "complete_message", _RECEIPT, ""),
    Mutant("a result without a token check", "complete_with_result", _HELD, _ANY),
    Mutant("a completion with a result leaves no receipt", "complete_with_result", _RECEIPT, ""),
    Mutant(
        "a completion without its result",
        "complete_with_result",
        "redis.call('HSET', archive_payload, unpack(results))",
        "",
    ),
    Mutant(
        "a result without its completion",
        "complete_with_result",
        "redis.call('HDEL', payload, unpack(held))",
        "",
    ),
    Mutant("results have no cap", "complete_with_result", "if keep > 0 and", "if false and"),
    Mutant(
        "a result that is not listed",
        "complete_with_result",
        "redis.call('ZADD', archive, unpack(times))",
        "",
    ),
    Mutant("progress without a token check", "note_progress", _HELD, _ANY),
    Mutant(
        "retry leaves the lease",
        "retry_message",
        "redis.call('HDEL', processing, unpack(held))",
        "",
    ),
    Mutant(
        "retry keeps the old record",
        "retry_message",
        "redis.call('HSET', payload, unpack(records))",
        "",
    ),
    Mutant("retry knows one priority", "retry_message", "due_times[ARGV[i + 3]]", "due_times.low"),
    Mutant("retry leaves no receipt", "retry_message", _RECEIPT, ""),
    Mutant("release turns the order round", "release_message", "n = #mine, 1, -1", "n = 1, #mine"),
    Mutant(
        "release knows one priority", "release_message", "front[ARGV[mine[n] + 2]]", "front.low"
    ),
    Mutant("release rings nobody", "release_message", "if rung == 0 and not to_ring", "if false"),
    Mutant(
        "extend sets no deadline",
        "extend_lease",
        "redis.call('ZADD', expire_monitor, unpack(deadlines))\n",
        "",
    ),
    Mutant(
        "the time-out removes instead of taking over",
        "handle_timeout_message",
        "  redis.call('ZADD', expire_monitor, unpack(deadlines))\n",
        "  for i = 2, #deadlines, 2 do redis.call('ZREM', expire_monitor, deadlines[i]) end\n",
    ),
    Mutant(
        "the time-out leaves the old token valid",
        "handle_timeout_message",
        "  redis.call('HSET', processing, unpack(leases))\n",
        "",
    ),
    Mutant(
        "the time-out takes leases that are still good",
        "handle_timeout_message",
        "now - grace_ms)",
        "now - grace_ms + 1000)",
    ),
    Mutant(
        "the time-out gives no grace to those that serve the topic",
        "handle_timeout_message",
        "now - grace_ms)",
        "now)",
    ),
    Mutant(
        "a dead letter keeps its record",
        "move_to_dlq",
        "redis.call('HDEL', payload, id)",
        "redis.call('HLEN', payload)",
    ),
    Mutant(
        "quarantine keeps no bytes",
        "handle_parse_error",
        "info .. '\\n' .. record",
        "info .. '\\n'",
    ),
    Mutant(
        "the cap drops the newest dead letter",
        "move_to_dlq",
        "redis.call('ZRANGE', archive, #victims, #victims + surplus + #overwritten - 1)",
        "redis.call('ZRANGE', archive, -math.min(surplus, 100), -1)",
    ),
    Mutant(
        "the cap drops the index, not the letter",
        "move_to_dlq",
        "  redis.call('HDEL', archive_payload, unpack(victims, first, last_one))\n",
        "",
    ),
    Mutant(
        "the budget is not kept",
        "move_to_dlq",
        "while budget > 0 and load > budget and",
        "while false and",
    ),
    Mutant(
        "a requeued message still counts", "requeue_message", "  bytes = bytes - weights[n]\n", ""
    ),
    Mutant("a trimmed message still counts", "trim_archive", "  bytes = bytes - weights[n]\n", ""),
    Mutant(
        "an id is produced over a living one",
        "produce_normal_message",
        "if seen[id] or (own or surprise) and redis.call('HEXISTS', payload, id) == 1 then",
        "if seen[id] then",
    ),
    Mutant(
        "a dead letter's id is produced again",
        "produce_normal_message",
        "elseif own and any_dead and redis.call('HEXISTS', dlq_payload, id) == 1 then",
        "elseif false then",
    ),
    Mutant(
        "own ids are not remembered",
        "produce_normal_message",
        "  redis.call('ZADD', recent, unpack(marks))\n",
        "",
    ),
    Mutant(
        "a generated id that comes back is not recognised",
        "produce_normal_message",
        "elseif made and",
        "elseif false and",
    ),
    Mutant(
        "an own id is asked for in the place of another",
        "produce_normal_message",
        "if taken_until[n] and tonumber(taken_until[n]) > now and",
        "if taken_until[1] and tonumber(taken_until[1]) > now and",
    ),
    Mutant(
        "produce knows one priority",
        "produce_normal_message",
        "= own == '1', tonumber(maker), priority",
        "= own == '1', tonumber(maker), 'normal'",
    ),
    Mutant(
        "produce leaves no receipt",
        "produce_normal_message",
        f"\n{_RECEIPT}\n",
        "\n",
    ),
    Mutant(
        "a refused produce is soon forgotten",
        "produce_normal_message",
        f"if full or #fresh == 0 then\n  {_RECEIPT}",
        f"if full or #fresh == 0 then\n  {_BRIEF}",
    ),
    Mutant(
        "a refused delayed produce is soon forgotten",
        "produce_delay_message",
        f"if full or #fresh == 0 then\n  {_RECEIPT}",
        f"if full or #fresh == 0 then\n  {_BRIEF}",
    ),
    Mutant(
        "own ids of delayed messages are soon forgotten",
        "produce_delay_message",
        "math.max(recent_ttl, longest, 600000)",
        "dedup_ms",
    ),
    Mutant(
        "the scheduler is not woken",
        "produce_delay_message",
        "if earlier == 0 and",
        "if earlier > 0 and",
    ),
    Mutant(
        "promote leaves the due time",
        "process_delay_message",
        "  redis.call('ZREM', delayed, unpack(due))\n",
        "",
    ),
    Mutant(
        "promote comes early",
        "process_delay_message",
        "'-inf', now, 'LIMIT'",
        "'-inf', now + 400, 'LIMIT'",
    ),
    Mutant(
        "discard trusts an old view",
        "discard_message",
        "tonumber(redis.call('ZSCORE', archive, id)) == archived_ms",
        "redis.call('ZSCORE', archive, id)",
    ),
    Mutant("discard leaves no receipt", "discard_message", _RECEIPT, ""),
    Mutant(
        "requeue trusts an old view",
        "requeue_message",
        "tonumber(redis.call('ZSCORE', archive, id)) == archived_ms",
        "redis.call('ZSCORE', archive, id)",
    ),
    Mutant("requeue leaves no receipt", "requeue_message", _RECEIPT, ""),
    Mutant(
        "cancel takes what a worker holds",
        "cancel_message",
        "if redis.call('HEXISTS', processing, id) == 1 then",
        "if false then",
    ),
    Mutant(
        "cancel leaves the id pending", "cancel_message", "redis.call('LREM', list, from, id)", ""
    ),
    Mutant(
        "a cancelled id stays taken", "cancel_message", "  redis.call('ZREM', recent, id)\n", ""
    ),
    Mutant(
        "a generated id stays taken after its cancel",
        "cancel_message",
        "'!' .. id)",
        "'?' .. id)",
    ),
    Mutant(
        "a freed id is free for ever",
        "produce_normal_message",
        "    if freed then freed_marks[#freed_marks + 1] = '!' .. id end\n",
        "",
    ),
    Mutant(
        "cancel forgets that a place does not count",
        "cancel_message",
        "redis.call('SADD', cancelled, id)",
        "",
    ),
    Mutant(
        "dispatch gives what stands in a cancelled place", "dispatch_message", "places > 0", "false"
    ),
    Mutant(
        "a tick fires again and again",
        "produce_cron_message",
        "(tick_ms > now or last and last >= tick_ms)",
        "tick_ms > now",
    ),
    Mutant(
        "a tick fires before it is due",
        "produce_cron_message",
        "(tick_ms > now or last and last >= tick_ms)",
        "last and last >= tick_ms",
    ),
    Mutant(
        "a tick is not remembered",
        "produce_cron_message",
        "redis.call('LPUSH', behind, id)\nredis.call('HSET', meta, 'tick', tick)\n",
        "redis.call('LPUSH', behind, id)\n",
    ),
    Mutant(
        "a tick's message is stored and never pending",
        "produce_cron_message",
        "redis.call('LPUSH', behind, id)\n",
        "",
    ),
    Mutant(
        "a tick's message is stored over a living one",
        "produce_cron_message",
        "if report or live or",
        "if report or",
    ),
    Mutant(
        "a dead letter's id is used by a tick",
        "produce_cron_message",
        "live or dead or",
        "live or",
    ),
    Mutant(
        "a second look moves the baseline",
        "produce_cron_message",
        "if report and last then return {time, before, 0} end\n",
        "",
    ),
    Mutant("a tick rings nobody", "produce_cron_message", _RING, ""),
    Mutant(
        "a ring for nothing",
        "ring_doorbell",
        "if rung or waiting == 0 then",
        "if rung then",
    ),
    Mutant(
        "a ring on top of a ring",
        "ring_doorbell",
        "if rung or waiting == 0 then",
        "if waiting == 0 then",
    ),
    Mutant(
        "a ring that goes back is lost",
        "ring_doorbell",
        "redis.call('RPUSH', doorbell, '1')\n",
        "",
    ),
    Mutant(
        "the survey takes no notice of a pause",
        "survey_topics",
        "redis.pcall('HEXISTS', meta, 'paused') == 1 and 0 or waiting",
        "waiting",
    ),
    Mutant(
        "the survey takes a due time for a deadline",
        "survey_topics",
        "redis.pcall('ZRANGE', expire_monitor, 0, 0, 'WITHSCORES')",
        "redis.pcall('ZRANGE', delay_tasks, 0, 0, 'WITHSCORES')",
    ),
    Mutant(
        "a time-out takes no notice of a clock that was set ahead",
        "handle_timeout_message",
        " or now > expected_ms + jump_ms)",
        ")",
    ),
    Mutant(
        "a time-out takes no notice of a clock that was set back",
        "handle_timeout_message",
        "now < expected_ms - jump_ms or ",
        "",
    ),
    Mutant(
        "a time-out passes over what lies far ahead",
        "handle_timeout_message",
        "for _, id in ipairs(left) do",
        "for _, id in ipairs({}) do",
    ),
    Mutant(
        "a time-out takes what lies far ahead, whatever the clock",
        "handle_timeout_message",
        "if far_ms and behind > jump_ms then",
        "if far_ms then",
    ),
    Mutant(
        "dispatch leaves the time at which a message expires",
        "dispatch_message",
        "  redis.call('ZREM', expiry, unpack(ids, 1, fit))\n",
        "",
    ),
    Mutant(
        "a produced message never expires",
        "produce_normal_message",
        "if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end\n",
        "",
    ),
    Mutant(
        "a retried message never expires",
        "retry_message",
        "if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end\n",
        "",
    ),
    Mutant(
        "a message that was handed back never expires",
        "release_message",
        "if #expiries > 0 then redis.call('ZADD', expiry, unpack(expiries)) end\n",
        "",
    ),
    Mutant(
        "a cancelled message still expires",
        "cancel_message",
        "if waits and expires then redis.call('ZREM', expiry, id) end\n",
        "",
    ),
    Mutant(
        "messages expire early",
        "expire_message",
        "'-inf', now, 'LIMIT'",
        "'-inf', now + 400, 'LIMIT'",
    ),
    Mutant(
        "an expired message stays delayed",
        "expire_message",
        "redis.call('ZREM', one[1], unpack(one[2]))",
        "redis.call('ZREM', one[1], '')",
    ),
    Mutant(
        "an expired message stays pending",
        "expire_message",
        "  redis.call('LTRIM', tail[1], '0', -tail[2] - 1)\n",
        "",
    ),
    Mutant(
        "an expired message deep in a list keeps a place that counts",
        "expire_message",
        "if #deep > 0 then redis.call('SADD', cancelled, unpack(deep)) end\n",
        "",
    ),
    Mutant(
        "an expired message has no deadline",
        "expire_message",
        "  redis.call('ZADD', expire_monitor, unpack(deadlines))\n",
        "",
    ),
    Mutant(
        "a held message gets an expiry time",
        "set_expiry",
        "redis.call('HEXISTS', payload, id) > redis.call('HEXISTS', processing, id)",
        "redis.call('HEXISTS', payload, id) == 1",
    ),
    Mutant(
        "a message that is gone gets an expiry time",
        "set_expiry",
        "redis.call('HEXISTS', payload, id) > redis.call('HEXISTS', processing, id)",
        "redis.call('HEXISTS', processing, id) == 0",
    ),
    Mutant(
        "a default expiry time replaces the message's own",
        "set_expiry",
        "if waits and not redis.call('ZMSCORE', expiry, id)[1] then",
        "if waits then",
    ),
    Mutant(
        "abort ignores that the record has changed",
        "abort_message",
        "if not same then",
        "if false then",
    ),
    Mutant(
        "an aborted message keeps its lease",
        "abort_message",
        "redis.call('HDEL', processing, id)\n",
        "",
    ),
    Mutant(
        "an aborted message keeps its place",
        "abort_message",
        "local waits, leaving = not lease, {id}",
        "local waits, leaving = false, {id}",
    ),
    Mutant("a resent abort strikes again", "abort_message", _RECEIPT, ""),
    Mutant(
        "an aborted message still expires",
        "abort_message",
        "if waits and expires then redis.call('ZREM', expiry, id) end\n",
        "",
    ),
    Mutant(
        "reschedule takes what a worker holds",
        "reschedule_message",
        "if redis.call('HEXISTS', processing, id) == 1 then",
        "if false then",
    ),
    Mutant(
        "reschedule ignores that the record has changed",
        "reschedule_message",
        "elseif not same then",
        "elseif not current then",
    ),
    Mutant(
        "a rescheduled message never expires",
        "reschedule_message",
        "  if expires then redis.call('ZADD', expiry, expires, id) end\n",
        "",
    ),
    Mutant(
        "a rescheduled message keeps its place",
        "reschedule_message",
        "redis.call('LREM', list, from, id)",
        "",
    ),
    Mutant(
        "a message that is due now rings for nobody",
        "reschedule_message",
        "  if ringing == 0 and not to_ring then redis.call('RPUSH', doorbell, '1') end\n",
        "",
    ),
    Mutant(
        "an earlier due time rings for nobody",
        "reschedule_message",
        "  if earlier == 0 and rung == 0 then redis.call('RPUSH', doorbell_delay, '1') end\n",
        "",
    ),
    Mutant(
        "a replaced message is completed",
        "complete_message",
        "leases[n] == ARGV[at + 1] .. lease_end and not seen[id]",
        "string.match(leases[n] or '', '^[^ ]*') == ARGV[at + 1] .. lease_end and not seen[id]",
    ),
    Mutant(
        "a replaced message is lost",
        "retry_message",
        "replaced[#replaced + 1], answer[n] = true, id, 'r'",
        "answer[n] = true, '0'",
    ),
    Mutant(
        "a replaced message is not extended",
        "extend_lease",
        "for n = 1, #replaced do held[count + n] = replaced[n] end\n",
        "",
    ),
    Mutant(
        "a replaced message is dead",
        "move_to_dlq",
        _ONE_HELD,
        "if string.match(lease or '', '^[^ ]*') ~= own then",
    ),
    Mutant(
        "a takeover forgets the replacement",
        "handle_timeout_message",
        "leases[#leases] .. (mark or '')",
        "leases[#leases]",
    ),
    Mutant(
        "replace forgets that it runs",
        "replace_message",
        "local in_hand = answer == 'l' and lease",
        "local in_hand = false",
    ),
    Mutant(
        "the first replacement wins", "replace_message", "string.match(lease, '^[^ ]*')", "lease"
    ),
    Mutant(
        "replace leaves the old place",
        "replace_message",
        "local waits = answer == 'l' and not lease",
        "local waits = false",
    ),
    Mutant(
        "replace takes the place away",
        "replace_message",
        "(list == behind or not list and deep)",
        "false",
    ),
    Mutant("replace keeps the level", "replace_message", "(list == behind or not", "(list or not"),
    Mutant(
        "replace ignores the delay",
        "replace_message",
        "local later, stays = due > now and not in_hand, false",
        "local later, stays = false, false",
    ),
    Mutant(
        "a replaced message keeps its old expiry",
        "replace_message",
        "  elseif expires then\n    redis.call('ZREM', expiry, id)\n",
        "",
    ),
    Mutant(
        "a replaced message loses its new expiry",
        "replace_message",
        "if waits and ttl then expiries = {now + ttl, id} end\n",
        "",
    ),
    Mutant(
        "a revived message stays archived",
        "replace_message",
        "if archived and not full then",
        "if false then",
    ),
    Mutant(
        "replace does not start the window again",
        "replace_message",
        "if window > 0 then marks = {string.format('%.0f', now + window), id} end",
        "",
    ),
    Mutant("a resent replace takes effect again", "replace_message", _RECEIPT, ""),
    Mutant("replace is soon forgotten", "replace_message", _RECEIPT, _BRIEF),
    Mutant(
        "replace does not ring",
        "replace_message",
        "if rings == 0 and not to_ring then redis.call('RPUSH', doorbell, '1') end\n",
        "",
    ),
    Mutant(
        "a released replacement keeps its lease",
        "release_replaced",
        "redis.call('HDEL', processing, id)",
        "",
    ),
    Mutant(
        "a released replacement keeps its deadline",
        "release_replaced",
        "redis.call('ZREM', expire_monitor, id)",
        "",
    ),
    Mutant(
        "a released replacement is not delayed",
        "release_replaced",
        "local delayed = soonest > now",
        "local delayed = false",
    ),
    Mutant(
        "a released replacement never expires",
        "release_replaced",
        "if tonumber(expires_ms) then redis.call('ZADD', expiry, expires_ms, id) end",
        "",
    ),
    Mutant(
        "a message is released that was not replaced",
        "release_replaced",
        "token .. ':' .. worker .. ' '",
        "token .. ':' .. worker",
    ),
    Mutant(
        "anybody releases a replacement",
        "release_replaced",
        "if string.find(lease, own, 1, true) ~= 1 then",
        "if not string.find(lease, ' ', 1, true) then",
    ),
    Mutant(
        "a window of its own is ignored",
        "produce_normal_message",
        "window = tonumber(window) or dedup_ms",
        "window = dedup_ms",
    ),
    Mutant(
        "a duplicate in processing is called pending",
        "produce_normal_message",
        "then status = 'p' end",
        "then status = 'l' end",
    ),
    Mutant(
        "a delayed duplicate is called pending",
        "produce_delay_message",
        "then status = 'w' end",
        "then status = 'l' end",
    ),
    Mutant("pause stays open", "pause_topic", "redis.call('HSET', meta, 'paused', '1')", ""),
    Mutant("resume stays paused", "resume_topic", "redis.call('HDEL', meta, 'paused')", ""),
    # lines by key
    Mutant(
        "a key runs one more than its limit",
        "dispatch_in_turn",
        "line.places = math.max(0, line.limit - busy)",
        "line.places = math.max(0, line.limit - busy + 1)",
    ),
    Mutant(
        "a topic runs one more than its limit",
        "dispatch_in_turn",
        "math.max(0, most - leased))",
        "math.max(0, most - leased + 1))",
    ),
    Mutant(
        "a topic that is full stays open",
        "dispatch_in_turn",
        "elseif most and leased >= most or alone",
        "elseif alone",
    ),
    Mutant(
        "what is dispatched takes up no place of its key",
        "dispatch_in_turn",
        "if #running_now > 0 then",
        "if false then",
    ),
    Mutant(
        "turns do not move", "dispatch_in_turn", "line.start + line.taken * line.step", "line.start"
    ),
    Mutant(
        "weights are ignored",
        "dispatch_in_turn",
        "line.step = 1 / (tonumber(weight) or 1)",
        "line.step = 1",
    ),
    Mutant(
        "messages without a key starve",
        "dispatch_in_turn",
        "if #plain_ids > 0 then enqueue(plain) end",
        "",
    ),
    Mutant(
        "the turn of messages without a key does not move",
        "dispatch_in_turn",
        "if plain_count > 0 then to_note('plain_turn'",
        "if false then to_note('plain_turn'",
    ),
    Mutant(
        "the bucket of a topic is never emptied",
        "dispatch_in_turn",
        "math.max(tonumber(full_at) or 0, at) + spent * interval)",
        "at)",
    ),
    Mutant(
        "the bucket of a key is never emptied",
        "dispatch_in_turn",
        "  redis.call('ZADD', buckets, unpack(fills))\n",
        "",
    ),
    Mutant(
        "a bucket never fills",
        "dispatch_in_turn",
        "(tonumber(full) or 0) - at) / per",
        "(tonumber(full) or 0) - at + 60000) / per",
    ),
    Mutant(
        "a bucket holds more than its burst",
        "dispatch_in_turn",
        "return depth - math.max(0, (tonumber(full) or 0) - at)",
        "return depth - math.max(-100, (tonumber(full) or 0) - at)",
    ),
    Mutant(
        "the cost is ignored",
        "dispatch_in_turn",
        "line.cost = tonumber(string.sub(line.member, #line.key + 20, gap - 1)) or 1",
        "line.cost = 1",
    ),
    Mutant(
        "the cost of a message without a key is ignored",
        "dispatch_in_turn",
        "or '', ' (%d+) $')) or 1",
        "or '', '^$')) or 1",
    ),
    Mutant(
        "the rate moves although nothing starts",
        "dispatch_in_turn",
        "if line.interval and line.spent > 0 then",
        "if line.interval then",
    ),
    Mutant(
        "what costs more than the burst never starts",
        "dispatch_in_turn",
        "line.interval and math.min(line.cost, line.burst)",
        "line.interval and line.cost",
    ),
    Mutant(
        "a blocked line keeps its turn",
        "dispatch_in_turn",
        "if #out_of_ring > 0 then",
        "if false then",
    ),
    Mutant(
        "a blocked line is forgotten", "dispatch_in_turn", "if #blocks > 0 then", "if false then"
    ),
    Mutant(
        "a block is never lifted",
        "dispatch_in_turn",
        "redis.call('ZREM', blocked, '', unpack(woken))",
        "redis.call('ZREM', blocked, '')",
    ),
    Mutant(
        "a line that woke up loses its turn",
        "dispatch_in_turn",
        "and not line.heads and line.woken_at then",
        "and false then",
    ),
    Mutant(
        "nobody is told to come back",
        "dispatch_in_turn",
        "reply[2] = math.ceil(next_block - at)",
        "reply[2] = -1",
    ),
    Mutant(
        "everybody is told to come back",
        "dispatch_in_turn",
        "if not (wake_at > at and wake_at <= next_block + 1) then",
        "if true then",
    ),
    Mutant(
        "a paused key starts",
        "dispatch_in_turn",
        "if line.stop > at then line.blocked = line.stop end",
        "",
    ),
    Mutant(
        "a paused topic starts",
        "dispatch_in_turn",
        "if (tonumber(stop) or 0) > at then",
        "if false then",
    ),
    Mutant(
        "a clock that was set back stalls the lines",
        "dispatch_in_turn",
        "then clock_ahead = latest - now end",
        "then end",
    ),
    Mutant(
        "what an operator set is ignored",
        "dispatch_in_turn",
        "most = tonumber(set_most) or tonumber(most)",
        "most = tonumber(most)",
    ),
    Mutant(
        "what an operator set for a key is ignored",
        "dispatch_in_turn",
        "tonumber(own_most) or line.limit",
        "line.limit",
    ),
    Mutant(
        "lines that are left ring for nobody",
        "dispatch_in_turn",
        "if ready and not closed and rung == 0 then",
        "if false then",
    ),
    Mutant(
        "a message taken from its line stays there",
        "dispatch_in_turn",
        "redis.call('ZREM', lines, unpack(from_lines))",
        "redis.call('ZREM', lines, '')",
    ),
    Mutant(
        "the plain dispatch takes no notice of lines",
        "dispatch_message",
        "redis.call('EXISTS', ring, blocked, limits) > 0",
        "false",
    ),
    Mutant(
        "a completed message still takes up a place",
        "complete_message",
        "if #freed > 0 then redis.call('ZREM', running, unpack(freed)) end\n",
        "",
    ),
    Mutant(
        "a completion wakes no line",
        "complete_message",
        "if #waking > 0 then redis.call('ZADD', blocked, unpack(waking)) end\n",
        "",
    ),
    Mutant(
        "a completion rings for no line",
        "complete_message",
        "if to_ring then redis.call('RPUSH', doorbell, '1') end\n",
        "",
    ),
    Mutant(
        "a completed message keeps its place in line",
        "complete_message",
        "if #with_key > 0 then redis.call('HDEL', keyed, unpack(with_key)) end\n",
        "",
    ),
    Mutant(
        "a dead letter holds up its line",
        "move_to_dlq",
        "if #freed > 0 then redis.call('ZREM', running, unpack(freed)) end\n",
        "",
    ),
    Mutant(
        "a quarantined message keeps its place in line",
        "handle_parse_error",
        "if #with_key > 0 then redis.call('HDEL', keyed, unpack(with_key)) end\n",
        "",
    ),
    Mutant(
        "a failed message loses its place",
        "retry_message",
        "if not strict then out[#out + 1] = member end",
        "out[#out + 1] = member",
    ),
    Mutant("nobody may overtake", "retry_message", "overtake ~= '1' and ", ""),
    Mutant("a snoozed key goes on", "retry_message", "if hold and key ~= '' then", "if false then"),
    Mutant(
        "a line waits for ever for a failed message",
        "process_delay_message",
        "if #held_lines > 0 then",
        "if false then",
    ),
    Mutant(
        "a due message gives its key no turn",
        "process_delay_message",
        "if #entering > 0 then redis.call('ZADD', ring, unpack(entering)) end\n",
        "",
    ),
    Mutant(
        "a due message wakes no line",
        "process_delay_message",
        "if #roused > 0 then redis.call('ZADD', blocked, unpack(roused)) end\n",
        "",
    ),
    Mutant(
        "a requeued message gives its key no turn",
        "requeue_message",
        "if #entering > 0 then redis.call('ZADD', ring, unpack(entering)) end\n",
        "",
    ),
    Mutant(
        "a requeued message is in no line",
        "requeue_message",
        "if in_line then joining = {{id, own_place}} end",
        "",
    ),
    Mutant(
        "a released message goes behind the others of its line",
        "release_message",
        "if number == '' then",
        "if true then",
    ),
    Mutant(
        "an expired message leaves the turn of its key",
        "expire_message",
        "  redis.call('ZREM', ring, unpack(emptied))\n",
        "",
    ),
    Mutant(
        "an expired message stays in line",
        "expire_message",
        "if #from_lines > 0 then redis.call('ZREM', lines, unpack(from_lines)) end\n",
        "",
    ),
    Mutant(
        "a cancelled message leaves the turn of its key",
        "cancel_message",
        "    redis.call('ZREM', ring, only_one)\n",
        "",
    ),
    Mutant(
        "a cancelled message stays in line",
        "cancel_message",
        "  redis.call('ZREM', lines, in_line)\n",
        "",
    ),
    Mutant(
        "an aborted message takes up a place",
        "abort_message",
        "if #freed > 0 then redis.call('ZREM', running, unpack(freed)) end\n",
        "",
    ),
    Mutant(
        "an aborted message leaves the place of its next record",
        "abort_message",
        "redis.call('HDEL', keyed, '!' .. id)",
        "",
    ),
    Mutant(
        "a produce rings for a blocked line",
        "produce_normal_message",
        "ready = ready or not time or wake",
        "ready = true",
    ),
    Mutant(
        "a produce rings for a blocked topic",
        "produce_normal_message",
        " and not redis.call('ZSCORE', blocked, '')",
        "",
    ),
    Mutant(
        "a key joins the ring without a round",
        "produce_normal_message",
        "'WITHSCORES')[2]) or 0) + 1",
        "'WITHSCORES')[2]) or 0)",
    ),
    Mutant(
        "numbers in line are given twice",
        "produce_normal_message",
        "math.max(tonumber(redis.call('HGET', keyed, '!')) or 0, now * 1000)",
        "now * 1000",
    ),
    Mutant(
        "a delayed message loses its key",
        "produce_delay_message",
        "if #with_place > 0 then redis.call('HSET'",
        "if false then redis.call('HSET'",
    ),
    Mutant(
        "a rescheduled message keeps its number",
        "reschedule_message",
        "own_line and string.gsub(place, '^([^\\t]*\\t%d)%d*', '%1')",
        "own_line and place",
    ),
    Mutant(
        "a replacement keeps the old key",
        "release_replaced",
        "  redis.call('HSET', keyed, id, own_place)\n",
        "",
    ),
    Mutant(
        "a replaced message leaves its line to another",
        "replace_message",
        "stays = in_line and same_line",
        "stays = in_line",
    ),
    Mutant(
        "a limit changes what is not given",
        "limit_key",
        "if new[n] == '' and (n < 6",
        "if n < 0 and (n < 6",
    ),
    Mutant(
        "a new limit wakes no line",
        "limit_key",
        "if blocked_until then redis.call('ZADD', blocked, 0, key) end\n",
        "",
    ),
    Mutant(
        "a new limit rings for nobody",
        "limit_key",
        "if waiting > 0 and rung == 0 then",
        "if false then",
    ),
    Mutant(
        "a worker that left is still expected",
        "ring_doorbell",
        "if waker == 1 then redis.call('HDEL', meta, 'wake_at') end\n",
        "",
    ),
    Mutant(
        "the survey overlooks lines",
        "survey_topics",
        "waiting = waiting + (type(in_lines) == 'number' and in_lines or 0)",
        "",
    ),
]
