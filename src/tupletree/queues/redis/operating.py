"""What people do with a queue on Redis, as scripts of the server: count, look, find, move, delete.

Owns which messages are in which state, in which order. What a key holds: `scripts`.
"""

from __future__ import annotations

from tupletree.queues.redis.scripts import script_of

# Gives ready, leased, delayed, dead.
DEPTH = script_of("""
local over = redis.call('ZCOUNT', Q.leases, '-inf', NOW)
local delivered = redis.call('ZCARD', Q.leases)
local come = redis.call('ZCOUNT', Q.due, '-inf', NOW)
local ready = math.max(0, redis.call('XLEN', Q.stream) - delivered) + over + come
return {ready, delivered - over, redis.call('ZCARD', Q.due) - come, redis.call('ZCARD', Q.dead)}
""")

# ARGV: state, how many, how many to leave out before them. Gives [fields, deliveries, due in ms, reason] each.
PEEK = script_of("""
local state, after, seen, passed = ARGV[1], tonumber(ARGV[3]), {}, 0
local count = after + tonumber(ARGV[2])

local function see(fields, n, due_ms, reason)
  if not fields then return end
  passed = passed + 1
  if passed > after and passed <= count then
    reason = reason or redis.call('HGET', Q.reasons, get(fields, 'id')) or ''
    seen[#seen + 1] = {fields, tonumber(n or '0') or 0, tostring(due_ms), reason}
  end
end

local function see_leases(from, to, shows_end)
  local found = redis.call('ZRANGEBYSCORE', Q.leases, from, to, 'WITHSCORES', 'LIMIT', 0, count)
  for i = 1, #found, 2 do see(read(Q, found[i]), held_of(Q, found[i]).n, shows_end and found[i + 1] or 0) end
end

local function see_late(from, to, shows_due)
  local found = redis.call('ZRANGEBYSCORE', Q.due, from, to, 'WITHSCORES', 'LIMIT', 0, count)
  for i = 1, #found, 2 do
    local fields = cmsgpack.unpack(redis.call('HGET', Q.late, found[i]))
    see(fields, get(fields, 'n'), shows_due and found[i + 1] or 0)
  end
end

if state == 'ready' then
  see_leases('-inf', NOW, false)
  see_late('-inf', NOW, false)
  for _, one in ipairs(undelivered(Q, count)) do see(one[2], get(one[2], 'n'), 0) end
elseif state == 'leased' then
  see_leases('(' .. NOW, '+inf', true)
elseif state == 'delayed' then
  see_late('(' .. NOW, '+inf', true)
else
  for _, id in ipairs(redis.call('ZRANGE', Q.dead, 0, count - 1)) do
    local letter = cmsgpack.unpack(redis.call('HGET', Q.letters, id))
    see(letter[1], get(letter[1], 'n'), letter[3], letter[2])
  end
end
return seen
""")

# ARGV: ids. Gives 1 or 0 each.
FIND = script_of("""
local found = {}
for i, id in ipairs(ARGV) do found[i] = redis.call('HEXISTS', Q.ids, id) end
return found
""")

_OUT = """
-- Messages of a state, as {fields, due in ms}, taken out of the queue; at most `count`, of these ids if there are any.
local function take_out(state, count, ids)
  local out = {}

  local function keep(fields, due_ms)
    forget(Q, get(fields, 'id'))
    out[#out + 1] = {fields, tonumber(due_ms or 0)}
  end

  local function take_entry(entry)
    local fields, held = read(Q, entry), held_of(Q, entry)
    drop(Q, entry)
    if fields then keep(fields) elseif held then end_without_body(Q, entry, held) end
  end

  local function take_late(id)
    local fields, due_ms = cmsgpack.unpack(redis.call('HGET', Q.late, id)), redis.call('ZSCORE', Q.due, id)
    redis.call('ZREM', Q.due, id)
    redis.call('HDEL', Q.late, id)
    keep(fields, due_ms)
  end

  local function take_letter(id)
    local letter = cmsgpack.unpack(redis.call('HGET', Q.letters, id))
    redis.call('ZREM', Q.dead, id)
    redis.call('HDEL', Q.letters, id)
    keep(letter[1])
  end

  local function state_of(place, id)
    if place == 'dead' then return 'dead' end
    if place == 'late' then return tonumber(redis.call('ZSCORE', Q.due, id)) > NOW and 'delayed' or 'ready' end
    local ends_ms = redis.call('ZSCORE', Q.leases, place)
    return ends_ms and tonumber(ends_ms) > NOW and 'leased' or 'ready'
  end

  local function each(key, from, to, take)
    for _, one in ipairs(redis.call('ZRANGEBYSCORE', key, from, to, 'LIMIT', 0, count - #out)) do take(one) end
  end

  if #ids > 0 then
    for _, id in ipairs(ids) do
      local place = redis.call('HGET', Q.ids, id)
      if #out < count and place and state_of(place, id) == state then
        if place == 'dead' then take_letter(id) elseif place == 'late' then take_late(id) else take_entry(place) end
      end
    end
    return out
  end
  if state == 'ready' then
    each(Q.leases, '-inf', NOW, take_entry)
    each(Q.due, '-inf', NOW, take_late)
    if #out < count then
      for _, one in ipairs(undelivered(Q, count - #out)) do take_entry(one[1]) end
    end
  elseif state == 'leased' then
    each(Q.leases, '(' .. NOW, '+inf', take_entry)
  elseif state == 'delayed' then
    each(Q.due, '(' .. NOW, '+inf', take_late)
  else
    for _, id in ipairs(redis.call('ZRANGE', Q.dead, 0, count - 1)) do take_letter(id) end
  end
  return out
end
"""

# KEYS: those of the source, then those of the target. ARGV: state, how many at most, ids.
MOVE = script_of(
    _OUT
    + """
local T = queue_at(12)
if redis.call('EXISTS', T.meta) == 0 then return redis.error_reply('NOTARGET it is not declared') end
local ids = {}
for i = 3, #ARGV do ids[#ids + 1] = ARGV[i] end
local moved = take_out(ARGV[1], tonumber(ARGV[2]), ids)
for _, one in ipairs(moved) do
  local fields, due_ms = one[1], one[2]
  set(fields, 'n', '0')
  if redis.call('HEXISTS', T.ids, get(fields, 'id')) == 0 then
    if ARGV[1] == 'delayed' then delay(T, fields, due_ms) else add(T, fields) end
  end
end
return #moved
"""
)

# ARGV: state, how many at most.
PURGE = script_of(_OUT + "return #take_out(ARGV[1], tonumber(ARGV[2]), {})")
