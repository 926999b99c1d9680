-- lease: lease one message to the caller until it has decided.
-- needs: token, id, leases, worker, now, recovery_ms, deadlines, reply
-- defines: number

local number = string.format('%.0f', token)
leases[#leases + 1] = id
leases[#leases + 1] = number .. ':' .. worker
deadlines[#deadlines + 1] = now + recovery_ms
deadlines[#deadlines + 1] = id
reply[#reply + 1] = id
reply[#reply + 1] = number
token = token + 1
