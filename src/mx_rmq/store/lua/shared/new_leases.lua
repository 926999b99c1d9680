-- new_leases: leases for the first `fit` messages. One without a record, or with a lease, is
-- dropped and counted. Formatting a number is the slowest part of this loop. So the deadline is
-- formatted once, a token once per ten (only its last digit changes), and a length when it changes.
-- needs: now, lease_ms, token, fit, ids, records, held, lease_end, reply
-- defines: deadline, digits, digit, tens, number, length, length_text, leases, deadlines, answer,
-- defines: seen, taken, given, dropped

local deadline = string.format('%.0f', now + lease_ms)
local digits = {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}
local digit, tens, number, length, length_text = token % 10, nil, nil, nil, nil
local leases, deadlines, answer, seen, taken, given, dropped = {}, {}, {}, {}, {}, 0, 0
for i = 1, fit do
  local id, record = ids[i], records[i]
  if record and not held[i] and not seen[id] then
    if digit == 10 then digit, tens = 0, nil end
    tens = tens or string.format('%.0f', (token - digit) / 10)
    number = tens .. digits[digit + 1]
    if #id ~= length then length, length_text = #id, string.format('%d ', #id) end
    if given == 0 then answer[1] = number .. ' ' end
    local two, three = 2 * given, 3 * given
    seen[id], taken[given + 1] = true, id
    leases[two + 1] = id
    leases[two + 2] = number .. lease_end
    deadlines[two + 1] = deadline
    deadlines[two + 2] = id
    reply[three + 3] = id
    reply[three + 4] = number
    reply[three + 5] = record
    answer[two + 2] = length_text
    answer[two + 3] = id
    token, digit, given = token + 1, digit + 1, given + 1
  else
    dropped = dropped + 1
  end
end
answer = table.concat(answer)
