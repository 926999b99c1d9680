-- leave_rest: the last `too_many` of these ids stay where they are.
-- needs: too_many, take, left

for level = 3, 1, -1 do
  local back = math.min(too_many, take[level])
  left[level], take[level], too_many = left[level] + back, take[level] - back, too_many - back
end
