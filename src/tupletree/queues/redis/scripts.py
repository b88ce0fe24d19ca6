"""What the Redis broker does at the server, as Lua scripts: each runs as a whole, or not at all.

Owns the keys of a queue and how a message moves between them, from `PUBLISH` to its end; `operating` has what
people do. All times are the server's. Refuses to know connections and errors: that is `broker`.

A queue is a stream with one consumer group, and beside it:

| Key | Holds |
|---|---|
| `ids` | id → where its message is: an entry of the stream, `late` or `dead` |
| `acked` | ids of acked messages, by when they are forgotten |
| `due`, `late` | ids of delayed messages by when they come, and the messages |
| `leases`, `held` | entries that were delivered, by the end of their lease, and (token, deliveries, id) of each |
| `dead`, `letters` | ids of dead letters in their order, and (message, reason, time) of each |
| `reasons` | id → why it failed last |
| `meta` | the last token, the number of dead letters so far; also that the queue is declared |

An entry whose lease has ended stays in the group's list of pending entries, and the next consumer claims it from
there. Messages are flat lists of fields, as in the stream: those of others, who know nothing of these keys, keep
theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

KEYS = ("stream", "meta", "ids", "acked", "due", "late", "leases", "held", "dead", "letters", "reasons")


def keys_of(queue: str) -> Sequence[str]:
    """The keys of a queue, in the order of `KEYS`. In a cluster all of them lie in one slot."""
    return [f"tupletree:{{{queue}}}:{name}" for name in KEYS]


_PRELUDE = """
local GROUP = 'tupletree'
local clock = redis.call('TIME')
local SHIFT = OFFSET
local NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + SHIFT

local function queue_at(first)
  local q = {}
  for i, name in ipairs({NAMES}) do
    q[name] = KEYS[first + i - 1]
  end
  return q
end

local Q = queue_at(1)

local function get(fields, name)
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
  return nil
end

local function set(fields, name, value)
  for i = 1, #fields, 2 do
    if fields[i] == name then fields[i + 1] = value; return end
  end
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end

local function size_of(fields)
  local bytes = 0
  for i = 2, #fields, 2 do bytes = bytes + #fields[i] end
  return bytes
end

local function knows(q, id)
  if redis.call('HEXISTS', q.ids, id) == 1 then return true end
  local until_ms = redis.call('ZSCORE', q.acked, id)
  return until_ms and tonumber(until_ms) > NOW
end

local function add(q, fields)
  local entry = redis.call('XADD', q.stream, '*', unpack(fields))
  redis.call('HSET', q.ids, get(fields, 'id'), entry)
end

local function delay(q, fields, due_ms)
  local id = get(fields, 'id')
  redis.call('ZADD', q.due, due_ms, id)
  redis.call('HSET', q.late, id, cmsgpack.pack(fields))
  redis.call('HSET', q.ids, id, 'late')
end

local function end_as_dead(q, fields, reason)
  local id = get(fields, 'id')
  redis.call('ZADD', q.dead, redis.call('HINCRBY', q.meta, 'dead', 1), id)
  redis.call('HSET', q.letters, id, cmsgpack.pack({fields, reason, tostring(NOW)}))
  redis.call('HSET', q.ids, id, 'dead')
  redis.call('HDEL', q.reasons, id)
end

-- The fields of an entry, with those that it says by its own id.
local function completed(entry, fields)
  if not get(fields, 'id') then set(fields, 'id', entry) end
  if get(fields, 'tupletree') and not get(fields, 'at') then set(fields, 'at', string.match(entry, '%d+')) end
  return fields
end

local function read(q, entry)
  local found = redis.call('XRANGE', q.stream, entry, entry)
  return #found > 0 and completed(entry, found[1][2]) or nil
end

-- Who has an entry, how often it was delivered, and its id; in MessagePack this would take four times as long.
local function held_text(token, n, id) return token .. ':' .. n .. ':' .. id end
local function held_parts(raw) return string.match(raw, '^([^:]*):([^:]*):(.*)$') end

local function held_of(q, entry)
  local raw = redis.call('HGET', q.held, entry)
  if not raw then return nil end
  local token, n, id = held_parts(raw)
  return {token = token, n = tonumber(n), id = id}
end

local function drop(q, entry)
  redis.call('XACK', q.stream, GROUP, entry)
  redis.call('XDEL', q.stream, entry)
  redis.call('ZREM', q.leases, entry)
  redis.call('HDEL', q.held, entry)
end

local function forget(q, id)
  redis.call('HDEL', q.ids, id)
  redis.call('HDEL', q.reasons, id)
end

-- A delivered message whose body somebody else has deleted: it ends as a dead letter.
local function end_without_body(q, entry, held)
  drop(q, entry)
  end_as_dead(q, {'id', held.id, 'n', held.n}, 'its body is gone: the stream was trimmed, or the entry deleted')
end

-- The message of a lease that holds; nil where it does not.
local function leased(q, entry, token)
  local held = held_of(q, entry)
  local ends_ms = redis.call('ZSCORE', q.leases, entry)
  if not held or held.token ~= token or not ends_ms or tonumber(ends_ms) <= NOW then return nil end
  return held
end

local function last_delivered(q)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', q.stream)) do
    if get(group, 'name') == GROUP then return get(group, 'last-delivered-id') end
  end
  return '0-0'
end

local function undelivered(q, count)
  local found = redis.call('XRANGE', q.stream, '(' .. last_delivered(q), '+', 'COUNT', count)
  for _, one in ipairs(found) do completed(one[1], one[2]) end
  return found
end
"""

_DECLARED = """
if redis.call('EXISTS', Q.meta) == 0 then return redis.error_reply('NOQUEUE it is not declared') end
"""


def script_of(body: str, *, declared: bool = True) -> str:
    """A script on a queue: `body` with the functions above, and refused unless the queue is declared."""
    names = ", ".join(f"'{name}'" for name in KEYS)
    return _PRELUDE.replace("NAMES", names) + (_DECLARED if declared else "") + body


DECLARE = script_of(
    """
if redis.call('EXISTS', Q.meta) == 0 then
  redis.call('HSET', Q.meta, 'token', 0)
  redis.pcall('XGROUP', 'CREATE', Q.stream, GROUP, '0', 'MKSTREAM')
end
return 1
""",
    declared=False,
)

# ARGV: id, body, head, delay in ms, not before in ms; for each message.
PUBLISH = script_of("""
redis.call('ZREMRANGEBYSCORE', Q.acked, '-inf', NOW)
local new = 0
for i = 1, #ARGV, 5 do
  local id = ARGV[i]
  if not knows(Q, id) then
    new = new + 1
    local fields = {'id', id, 'body', ARGV[i + 1], 'tupletree', ARGV[i + 2]}
    local due_ms = math.max(NOW + tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]))
    local waits = due_ms > NOW
    if waits or SHIFT ~= 0 then set(fields, 'at', tostring(NOW)) end  -- else its entry's id says when
    if waits then delay(Q, fields, due_ms) else add(Q, fields) end
  end
end
return new
""")

# ARGV: limit, lease in ms, bytes at most, consumer, 1 if a first message may have more bytes. Gives nothing, or two
# strings. One has in MessagePack the token, and lists of entries, deliveries, times of publishing, ids and sizes; the
# other one the bytes of the messages, one after the other. Of each message `sizes` has the number of its head (content
# type, key, headers) and the size of its body; the size of a head that none before had comes between. Of a message of
# others it has -n and the sizes of its n names and values. So bytes are copied once, and clients, which are slow at
# nested replies, cut them apart.
TAKE = script_of("""
local limit, lease_ms, max_bytes, consumer = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local count, bytes, is_full = 0, 0, false
local token = nil
local entries, deliveries, times, ids, sizes, parts = {}, {}, {}, {}, {}, {}
local numbers, heads, size_count, part_count = {}, 0, 0, 0
local until_ms, ends, held_by = tostring(NOW + lease_ms), {}, {}

-- Added by PUBLISH, so that its fields have their places.
local function is_own(fields)
  return fields[5] == 'tupletree' and fields[1] == 'id' and fields[3] == 'body'
end

local function has_room(fields)
  bytes = bytes + size_of(fields)
  return bytes <= max_bytes or (count == 0 and ARGV[5] == '1')
end

local function put(text)
  size_count, part_count = size_count + 1, part_count + 1
  sizes[size_count], parts[part_count] = #text, text
end

local function give(entry, fields, id, n, own)
  if not token then token = tostring(redis.call('HINCRBY', Q.meta, 'token', 1)) end
  count = count + 1
  entries[count], deliveries[count], ids[count], times[count] = entry, n, '', 0
  ends[2 * count - 1], ends[2 * count] = until_ms, entry
  held_by[2 * count - 1], held_by[2 * count] = entry, held_text(token, n, id)
  size_count = size_count + 1
  if not own then
    sizes[size_count] = -#fields
    for _, one in ipairs(fields) do put(one) end
    return
  end
  local head = fields[6]
  local number = numbers[head]
  ids[count], sizes[size_count] = id, number or heads
  if #fields > 6 then times[count] = tonumber(get(fields, 'at')) or 0 end
  if not number then
    put(head)
    numbers[head], heads = heads, heads + 1
  end
  put(fields[4])
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', Q.due, '-inf', NOW, 'LIMIT', 0, limit)) do
  local fields = cmsgpack.unpack(redis.call('HGET', Q.late, id))
  redis.call('ZREM', Q.due, id)
  redis.call('HDEL', Q.late, id)
  add(Q, fields)
end

for _, entry in ipairs(redis.call('ZRANGEBYSCORE', Q.leases, '-inf', NOW, 'LIMIT', 0, limit)) do
  local fields, held = read(Q, entry), held_of(Q, entry)
  if not fields then
    end_without_body(Q, entry, held)
  elseif not has_room(fields) then
    is_full = true
    break
  else
    redis.call('XCLAIM', Q.stream, GROUP, consumer, 0, entry, 'JUSTID')
    give(entry, fields, get(fields, 'id'), held.n + 1, is_own(fields))
  end
end

while count < limit and not is_full do
  local most = math.min(limit - count, 50)
  local answer = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', most, 'STREAMS', Q.stream, '>')
  if not answer then break end
  for _, one in ipairs(answer[1][2]) do
    local entry, fields = one[1], one[2]
    local own, id, n = is_own(fields), fields[2], 0
    if not own then
      if not get(fields, 'id') then set(fields, 'id', entry) end
      id = get(fields, 'id')
      if not get(fields, 'tupletree') then redis.call('HSETNX', Q.ids, id, entry) end  -- another program's
    end
    if not own or #fields > 6 then n = tonumber(get(fields, 'n') or '0') or 0 end  -- others may have such a field, too
    if is_full or not has_room(fields) then
      is_full = true  -- as if its lease had ended: the next consumer gets it
      redis.call('ZADD', Q.leases, 0, entry)
      redis.call('HSET', Q.held, entry, held_text('', n, id))
    else
      give(entry, fields, id, n + 1, own)
    end
  end
end
if count == 0 then return {} end
redis.call('ZADD', Q.leases, unpack(ends))
redis.call('HSET', Q.held, unpack(held_by))
return {cmsgpack.pack({token, entries, deliveries, times, ids, sizes}), table.concat(parts)}
""")

_LEASED = """
-- Of entries and their tokens in MessagePack: the entries whose leases hold, their ids, and the numbers of the others.
local function sorted_out(raw)
  local handles = cmsgpack.unpack(raw)
  local entries, ids, refused, seen = {}, {}, {}, {}
  local held_by = redis.call('HMGET', Q.held, unpack(handles[1]))
  local ends = redis.call('ZMSCORE', Q.leases, unpack(handles[1]))
  for i, entry in ipairs(handles[1]) do
    local token, _, id
    if held_by[i] then token, _, id = held_parts(held_by[i]) end
    if token == handles[2][i] and ends[i] and tonumber(ends[i]) > NOW and not seen[entry] then
      entries[#entries + 1] = entry
      ids[#ids + 1] = id
      seen[entry] = true
    else
      refused[#refused + 1] = i - 1
    end
  end
  return entries, ids, refused
end
"""

# ARGV: entries and tokens, for how long ids are known in ms. Gives the numbers of the refused ones.
ACK = script_of(
    _LEASED
    + """
local entries, ids, refused = sorted_out(ARGV[1])
if #entries > 0 then
  redis.call('XACK', Q.stream, GROUP, unpack(entries))
  redis.call('XDEL', Q.stream, unpack(entries))
  redis.call('ZREM', Q.leases, unpack(entries))
  redis.call('HDEL', Q.held, unpack(entries))
  redis.call('HDEL', Q.ids, unpack(ids))
  if redis.call('EXISTS', Q.reasons) == 1 then redis.call('HDEL', Q.reasons, unpack(ids)) end
  if tonumber(ARGV[2]) > 0 then
    local known, until_ms = {}, tostring(NOW + tonumber(ARGV[2]))
    for i, id in ipairs(ids) do
      known[2 * i - 1], known[2 * i] = until_ms, id
    end
    redis.call('ZADD', Q.acked, unpack(known))
    redis.call('ZREMRANGEBYSCORE', Q.acked, '-inf', NOW)  -- where others publish, nothing else forgets them
  end
end
return refused
"""
)

# ARGV: entries and tokens, lease in ms.
EXTEND = script_of(
    _LEASED
    + """
local entries, _, refused = sorted_out(ARGV[1])
local ends = {}
for _, entry in ipairs(entries) do
  ends[#ends + 1] = NOW + tonumber(ARGV[2])
  ends[#ends + 1] = entry
end
if #ends > 0 then redis.call('ZADD', Q.leases, unpack(ends)) end
return refused
"""
)

_EACH = """
-- Of ARGV, `width` for each message, entry and token first: end its lease and call `finish(fields, held, i)`. Gives the
-- numbers of the refused ones.
local function end_each(width, finish)
  local refused = {}
  for i = 1, #ARGV, width do
    local entry = ARGV[i]
    local held = leased(Q, entry, ARGV[i + 1])
    local fields = held and read(Q, entry)
    if not held then
      refused[#refused + 1] = (i - 1) / width
    elseif not fields then
      end_without_body(Q, entry, held)
    else
      drop(Q, entry)
      finish(fields, held, i)
    end
  end
  return refused
end
"""

# ARGV: entry, token, delay in ms, reason, deliveries to take back; each.
FAIL = script_of(
    _EACH
    + """
return end_each(5, function(fields, held, i)
  set(fields, 'n', tostring(held.n - tonumber(ARGV[i + 4])))
  if tonumber(ARGV[i + 2]) > 0 then delay(Q, fields, NOW + tonumber(ARGV[i + 2])) else add(Q, fields) end
  redis.call('HSET', Q.reasons, held.id, ARGV[i + 3])
end)
"""
)

# ARGV: entry, token, reason; each.
DEAD_LETTER = script_of(
    _EACH
    + """
return end_each(3, function(fields, held, i)
  set(fields, 'n', tostring(held.n))
  end_as_dead(Q, fields, ARGV[i + 2])
end)
"""
)
