-- wrk: POST chat completions with 64 different prompts. usage: wrk -s post.lua URL -- STREAM(0|1) PROMPT_BYTES
local bodies, at = {}, 0
function init(args)
   local stream, size = args[1] == "1", tonumber(args[2])
   math.randomseed(7)
   for k = 1, 64 do
      local words, n = {}, 0
      while n < size do
         local w = string.format("w%x", math.random(1, 1000000))
         words[#words + 1] = w
         n = n + #w + 1
      end
      bodies[k] = '{"model":"mock","messages":[{"role":"user","content":"' .. table.concat(words, " ") ..
         '"}],"max_tokens":16,"stream":' .. tostring(stream) .. '}'
   end
   wrk.method = "POST"
   wrk.headers["content-type"] = "application/json"
end
function request()
   at = at + 1
   return wrk.format(nil, "/v1/chat/completions", nil, bodies[at % 64 + 1])
end
function done(summary, latency)
   local e = summary.errors
   io.write(string.format("RESULT %d %d %f %f %d\n", summary.requests, summary.duration, latency:percentile(50),
      latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))
end
