#!lua name=leasehold
-- Generated from fence.lua (make generate). Load it once, and again after each change:
--
--   redis-cli -x FUNCTION LOAD REPLACE < leasehold.lua
--
-- FCALL leasehold_fence takes the keys and arguments of EVALSHA below, without the SHA.

redis.register_function('leasehold_fence', function(KEYS, ARGV)
-- The fence of docs/fencing-redis.md for Redis and Valkey. It passes the fence and runs one command, in one
-- atomic step:
--
--   EVALSHA SHA 2 {report}:fence {report}:body 1843000 SET {report}:body text
--
-- KEYS[1] is the key of the fence; the other keys are those of the command. ARGV[1] is the fencing token; the other
-- arguments are the command. Returns the answer of the command, or an error that begins with STALETOKEN: then nothing
-- was written. The key of the fence is a string with the largest token seen. It must not expire or be deleted.
local usage = '2 {report}:fence {report}:body 1843000 SET {report}:body text'
local key, token = KEYS[1], ARGV[1]

-- Returns a token as a number, or nil. A Lua number is exact up to 2^53 - 1.
local function parse(text)
    local value = type(text) == 'string' and #text <= 16 and text:match('^[1-9]%d*$') and tonumber(text)
    return value and value <= 9007199254740991 and value or nil
end

if not key then
    return redis.error_reply('ERR name the key of the fence as the first key: ' .. usage)
end
if not parse(token) then
    local given = (token or ''):sub(1, 20)
    return redis.error_reply('ERR "' .. given .. '" is not a fencing token, an integer from 1 to 9007199254740991.'
        .. ' Pass the fencingToken of your lease as the first argument: ' .. usage)
end
if not ARGV[2] then
    return redis.error_reply('ERR pass the command that reads or writes after the token: ' .. usage)
end

local newest = redis.pcall('GET', key)
if newest and not parse(newest) then
    local reason = newest.err or 'its value is not a token'
    return redis.error_reply('ERR cannot read the fence ' .. key .. ': ' .. reason
        .. '. Use a key that only the fence writes, and a user that may GET and SET it.')
end
if newest and parse(token) < parse(newest) then
    return redis.error_reply('STALETOKEN stale fencing token ' .. token .. ' for ' .. key
        .. ': the newest is ' .. newest .. '. The lock was granted again: stop working.')
end
if token ~= newest then
    redis.call('SET', key, token)
end
-- If the command fails, its token stays recorded: it refuses only older leases.
return redis.pcall(unpack(ARGV, 2))
end)
