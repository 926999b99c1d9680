-- read_status: read
-- Where messages are, all at one moment, and what is known of them. Goes through the ids until
-- 4 MiB are read, but reads at least one. If an id is in several archives, because it was used
-- again, the latest counts.
-- Returns  now (ms), then for each message: its state, or '' if nothing is known of it; when it was
--          archived (ms); its lease; its progress; its record, or what the archive keeps of it
-- Cost     O(log N) per message, N delayed or archived
-- keys: payload | delay_tasks* | waiting | processing | dlq dlq_payload error_parse_queue error_parse_payload
-- keys: results results_payload

local live = ARGV.live                   -- '1': read the records of live messages, too
local with_progress = ARGV.with_progress -- '1': read their progress; its keys follow those above
local each = ARGV.each                   -- per message: id
-- use: clock

local archives = {
  {'dead', dlq, dlq_payload}, {'quarantined', error_parse_queue, error_parse_payload},
  {'completed', results, results_payload},
}
local reply, bytes = {string.format('%.0f', now)}, 0
for i = each, #ARGV do
  if bytes > 4194304 then break end
  local id, state, at, lease, progress, data = ARGV[i], '', '', '', '', ''
  if redis.call('HEXISTS', payload, id) == 1 then
    lease, state = redis.call('HGET', processing, id) or '', 'pending'
    if lease ~= '' then state = 'processing' end
    for _, key in ipairs(lease == '' and {delay_tasks_high, delay_tasks, delay_tasks_low} or {}) do
      if redis.call('ZSCORE', key, id) then state = 'delayed' end
    end
    if state == 'delayed' and redis.call('ZSCORE', waiting, id) then state = 'waiting' end
    if live == '1' then data = redis.call('HGET', payload, id) end
    if with_progress == '1' and lease ~= '' then
      progress = redis.pcall('GET', KEYS[#KEYS - #ARGV + i])
      if type(progress) ~= 'string' then progress = '' end -- none, or a key of the wrong type
    end
  else
    local latest, contents = -math.huge, nil
    for _, archive in ipairs(archives) do
      local score = redis.call('ZSCORE', archive[2], id)
      if score and tonumber(score) > latest and redis.call('HEXISTS', archive[3], id) == 1 then
        latest, at, state, contents = tonumber(score), score, archive[1], archive[3]
      end
    end
    if contents then data = redis.call('HGET', contents, id) end
  end
  bytes = bytes + #data
  for _, one in ipairs({state, at, lease, progress, data}) do reply[#reply + 1] = one end
end
return reply
