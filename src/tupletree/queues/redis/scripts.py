"""What the Redis broker does at the server, as Lua scripts: each runs as a whole, or not at all.

Owns the keys of a queue and how a message moves between them, from `PUBLISH` to its end; `operating` has what
people do. All times are the server's. Refuses to know connections and errors: that is `redis`.

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

__all__ = ["ACK", "DEAD_LETTER", "DECLARE", "EXTEND", "FAIL", "KEYS", "PUBLISH", "TAKE", "keys_of", "script_of"]

KEYS = ("stream", "meta", "ids", "acked", "due", "late", "leases", "held", "dead", "letters", "reasons")


def keys_of(queue: str) -> Sequence[str]:
    """The keys of a queue, in the order of `KEYS`. In a cluster all of them lie in one slot."""
    return [f"tupletree:{{{queue}}}:{name}" for name in KEYS]


_PRELUDE = """
local GROUP = 'tupletree'
local clock = redis.call('TIME')
local NOW = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000) + OFFSET

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

local function read(q, entry)
  local found = redis.call('XRANGE', q.stream, entry, entry)
  if #found == 0 then return nil end
  local fields = found[1][2]
  if not get(fields, 'id') then set(fields, 'id', entry) end
  return fields
end

local function held_of(q, entry)
  local raw = redis.call('HGET', q.held, entry)
  if not raw then return nil end
  local held = cmsgpack.unpack(raw)
  return {token = held[1], n = held[2], id = held[3]}
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
  for _, one in ipairs(found) do
    if not get(one[2], 'id') then set(one[2], 'id', one[1]) end
  end
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
    local fields = {'id', id, 'body', ARGV[i + 1], 'tupletree', ARGV[i + 2], 'at', tostring(NOW), 'n', '0'}
    local due_ms = math.max(NOW + tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]))
    if due_ms > NOW then delay(Q, fields, due_ms) else add(Q, fields) end
  end
end
return new
""")

# ARGV: limit, lease in ms, bytes at most, consumer. Gives [token, entry, deliveries, id, body, head, at, fields] each,
# the fields only of messages of others; as MessagePack in one piece, for clients are slow at nested replies.
TAKE = script_of("""
local limit, lease_ms, max_bytes, consumer = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local count, bytes, is_full = 0, 0, false
local token = nil
local out, ends, held_by = {}, {}, {}

local function has_room(fields)
  bytes = bytes + size_of(fields)
  return count == 0 or bytes <= max_bytes
end

local function give(entry, fields, n)
  if not token then token = tostring(redis.call('HINCRBY', Q.meta, 'token', 1)) end
  count = count + 1
  ends[#ends + 1] = NOW + lease_ms
  ends[#ends + 1] = entry
  held_by[#held_by + 1] = entry
  held_by[#held_by + 1] = cmsgpack.pack({token, n, get(fields, 'id')})
  local id, body, head, at = get(fields, 'id'), '', get(fields, 'tupletree'), ''
  if head then body, at = get(fields, 'body'), get(fields, 'at') end
  out[#out + 1] = struct.pack(
    '>BBI4c0BI4c0BI4BI4c0BI4c0BI4c0BI4c0', 0x98, 0xc6, #token, token, 0xc6, #entry, entry, 0xce, n,
    0xc6, #id, id, 0xc6, #body, body, 0xc6, #(head or ''), head or '', 0xc6, #at, at)
  if head then
    out[#out + 1] = '\\192'
  else
    out[#out + 1] = struct.pack('>BI4', 0xdd, #fields)
    for _, one in ipairs(fields) do out[#out + 1] = struct.pack('>BI4c0', 0xc6, #one, one) end
  end
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
    give(entry, fields, held.n + 1)
  end
end

while count < limit and not is_full do
  local most = math.min(limit - count, 50)
  local answer = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', most, 'STREAMS', Q.stream, '>')
  if not answer then break end
  for _, one in ipairs(answer[1][2]) do
    local entry, fields = one[1], one[2]
    if not get(fields, 'id') then set(fields, 'id', entry) end
    if not get(fields, 'tupletree') then redis.call('HSETNX', Q.ids, get(fields, 'id'), entry) end  -- another program's
    local n = tonumber(get(fields, 'n') or '0') or 0  -- others may have such a field, too
    if is_full or not has_room(fields) then
      is_full = true  -- as if its lease had ended: the next consumer gets it
      redis.call('ZADD', Q.leases, 0, entry)
      redis.call('HSET', Q.held, entry, cmsgpack.pack({'', n, get(fields, 'id')}))
    else
      give(entry, fields, n + 1)
    end
  end
end
if count == 0 then return '' end
redis.call('ZADD', Q.leases, unpack(ends))
redis.call('HSET', Q.held, unpack(held_by))
return struct.pack('>BI4', 0xdd, count) .. table.concat(out)
""")

_LEASED = """
-- Of entries and their tokens in MessagePack: the entries whose leases hold, their ids, and the numbers of the others.
local function sorted_out(raw)
  local handles = cmsgpack.unpack(raw)
  local entries, ids, refused, seen = {}, {}, {}, {}
  local held_by = redis.call('HMGET', Q.held, unpack(handles[1]))
  local ends = redis.call('ZMSCORE', Q.leases, unpack(handles[1]))
  for i, entry in ipairs(handles[1]) do
    local held = held_by[i] and cmsgpack.unpack(held_by[i])
    if held and held[1] == handles[2][i] and ends[i] and tonumber(ends[i]) > NOW and not seen[entry] then
      entries[#entries + 1] = entry
      ids[#ids + 1] = held[3]
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
  redis.call('HDEL', Q.reasons, unpack(ids))
  if tonumber(ARGV[2]) > 0 then
    local known = {}
    for _, id in ipairs(ids) do
      known[#known + 1] = NOW + tonumber(ARGV[2])
      known[#known + 1] = id
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
