-- Shows omq and DMP in Wireshark and tshark: docs/PROTOCOL.md on the screen.
--
--     tshark -X lua_script:tools/omq.lua -r omq.pcap -Y 'omq.error'
--     wireshark -X lua_script:tools/omq.lua omq.pcap
--
-- Or copy this file into the folder of personal Lua plugins: Wireshark shows where that is in its menu Help,
-- About Wireshark, Folders. That is why it is one file.
--
-- All names for filters begin with "omq". Those of DMP begin with "omq.dmp", because Wireshark has a protocol
-- "dmp" already, which is something else. What both protocols have (topics, bodies, leases) has one name for
-- both.
--
-- It is written for Lua 5.2 to 5.4, and tested with Wireshark 4.0. Offsets count from 0, as Wireshark's do.
-- Every unit of a stream (a line, a frame, a short string, an envelope) is checked against the octets that
-- are there before anything of it is read: whatever is in a capture, nothing here may raise an error.

local omq = Proto("omq", "omq")
local dmp = Proto("omq.dmp", "Direct Message Protocol")

-- == preferences ===========================================================================================

omq.prefs.port = Pref.range("TCP ports", "7730", "Where servers listen. Others: Decode As.", 65535)
omq.prefs.max_message_bytes = Pref.uint(
    "Longest body", 64 * 2 ^ 20,
    "In octets. What claims to be longer is malformed. The server's configuration has a key of this name."
)
omq.prefs.max_line_bytes = Pref.uint(
    "Longest line", 2 ^ 20,
    "In octets. What is longer is malformed. The server's configuration has a key of this name."
)

local tcp_ports = DissectorTable.get("tcp.port")
local registered = ""

local function register()
    local wanted = tostring(omq.prefs.port)
    if wanted == registered then
        return
    end
    if registered ~= "" then
        tcp_ports:remove(registered, omq)
    end
    if wanted ~= "" then
        tcp_ports:add(wanted, omq)
    end
    registered = wanted
end

omq.prefs_changed = register

-- Heads of envelopes and tables in them are bound as the server binds them.
local LONGEST_HEAD = 64 * 2 ^ 10
local DEEPEST_TABLE = 32
local DEEPEST_SEXP = 100
local MOST_TOKENS = 100

-- Wireshark refuses more than a million items in a packet. A segment can hold many small units.
local MOST_UNITS = 20000
local LONGEST_TEXT = 64 * 2 ^ 10

-- == fields ================================================================================================

local FRAME_NAMES = {
    [0] = "Error", "Ping", "Message", "Subscribed", "Unsubscribed", "Declared", "Confirmed", "Leased",
    "Block", "Topics", "Deleted", "Blocks", "Managed", "Statistics", "Connections", "Subscribers", "Done",
}

local CODES = {
    [200] = "OK", [402] = "BAD-LEASE", [403] = "NO-ACCESS", [404] = "NOT-FOUND", [502] = "SYNTAX-ERROR",
    [503] = "INVALID", [530] = "NOT-ALLOWED", [540] = "NOT-IMPLEMENTED", [541] = "INTERNAL-ERROR",
}

local F = {
    version = ProtoField.int64("omq.version", "Version"),
    command = ProtoField.string("omq.command", "Command"),
    line = ProtoField.string("omq.line", "Line"),
    client = ProtoField.string("omq.client", "Client id"),
    topic = ProtoField.string("omq.topic", "Topic"),
    topic_id = ProtoField.int64("omq.topic.id", "Topic id"),
    delivery = ProtoField.string("omq.topic.delivery", "Delivery"),
    persistence = ProtoField.string("omq.topic.persistence", "Persistence"),
    messages = ProtoField.int64("omq.topic.messages", "Messages"),
    bytes = ProtoField.int64("omq.topic.bytes", "Octets"),
    first = ProtoField.int64("omq.topic.first", "First message id"),
    last = ProtoField.int64("omq.topic.last", "Last message id"),
    subscribers = ProtoField.int64("omq.topic.subscribers", "Subscribers"),
    message_id = ProtoField.int64("omq.message.id", "Message id"),
    count = ProtoField.int64("omq.count", "Count"),
    body = ProtoField.string("omq.body", "Body"),
    octets = ProtoField.bytes("omq.body.octets", "Octets of the body"),
    replay = ProtoField.string("omq.replay", "Replay"),
    credit = ProtoField.int64("omq.credit", "Credit"),
    n = ProtoField.int64("omq.confirm", "n"),
    ack = ProtoField.string("omq.ack", "Time of the client"),
    frame = ProtoField.string("omq.frame", "Frame"),
    frame_length = ProtoField.uint32("omq.frame.length", "Length"),
    frame_type = ProtoField.uint8("omq.frame.type", "Type", base.DEC, FRAME_NAMES),
    payload = ProtoField.bytes("omq.frame.payload", "Payload"),
    sexp = ProtoField.string("omq.frame.sexp", "Sexp"),
    error = ProtoField.string("omq.error", "Error"),
    ping = ProtoField.absolute_time("omq.ping", "Time of the server", base.UTC),
    lease = ProtoField.string("omq.lease", "Lease"),
    leased_in = ProtoField.framenum("omq.lease.given", "Leased in", base.NONE),
    used_in = ProtoField.framenum("omq.lease.used", "Used in", base.NONE),
    answers = ProtoField.framenum("omq.answers", "Answers the command in", base.NONE, frametype.REQUEST),
    answered = ProtoField.framenum("omq.answered", "Answered in", base.NONE, frametype.RESPONSE),
    answer_time = ProtoField.relative_time("omq.answer_time", "Time since the command"),
    unread = ProtoField.bytes("omq.unread", "Octets that cannot be read"),
}

local D = {
    header = ProtoField.string("omq.dmp.header", "Protocol header"),
    response = ProtoField.string("omq.dmp.response", "Response"),
    code = ProtoField.uint16("omq.dmp.code", "Code", base.DEC, CODES),
    stored = ProtoField.uint64("omq.dmp.stored", "Messages stored"),
    purpose = ProtoField.string("omq.dmp.purpose", "Purpose"),
    command = ProtoField.string("omq.dmp.command", "Command instead of a lease"),
    null = ProtoField.none("omq.dmp.null", "Null message"),
    envelope = ProtoField.uint64("omq.dmp.envelope", "Envelope"),
    size = ProtoField.uint32("omq.dmp.size", "Size"),
    exchange = ProtoField.string("omq.dmp.exchange", "Exchange"),
    key = ProtoField.string("omq.dmp.key", "Key"),
    flags = ProtoField.uint16("omq.dmp.flags", "Property flags", base.HEX),
    options = ProtoField.uint8("omq.dmp.options", "Options", base.HEX),
    immediate = ProtoField.bool("omq.dmp.immediate", "Immediate", 8, nil, 0x01),
    mandatory = ProtoField.bool("omq.dmp.mandatory", "Mandatory", 8, nil, 0x02),
    length = ProtoField.uint32("omq.dmp.length", "Length of the body"),
    entry = ProtoField.string("omq.dmp.entry", "Entry"),
    entry_name = ProtoField.string("omq.dmp.entry.name", "Name"),
    entry_type = ProtoField.string("omq.dmp.entry.type", "Type"),
    entry_value = ProtoField.string("omq.dmp.entry.value", "Value"),
}

-- The flag, the name and the kind of each property, in the order of the wire.
local PROPERTIES = {
    { 0x8000, "content-type", "string" },
    { 0x4000, "content-encoding", "string" },
    { 0x2000, "headers", "table" },
    { 0x1000, "delivery-mode", "octet" },
    { 0x0800, "priority", "octet" },
    { 0x0400, "correlation-id", "string" },
    { 0x0200, "reply-to", "string" },
    { 0x0100, "expiration", "string" },
    { 0x0080, "message-id", "string" },
    { 0x0040, "timestamp", "long" },
    { 0x0020, "type", "string" },
    { 0x0010, "user-id", "string" },
    { 0x0008, "app-id", "string" },
    { 0x0004, "sender-id", "string" },
}
local MEANINGLESS_FLAGS = 0x0004

local PROPERTY_FIELDS = {
    string = ProtoField.string, octet = ProtoField.uint8, long = ProtoField.uint64, table = ProtoField.none,
}

for _, property in ipairs(PROPERTIES) do
    local name, kind = property[2], property[3]
    property.field = PROPERTY_FIELDS[kind]("omq.dmp.property." .. name:gsub("-", "_"), "Property " .. name)
    D[name] = property.field
end

omq.fields = F
dmp.fields = D

local group, severity = expert.group, expert.severity
local E = {
    malformed = ProtoExpert.new("omq.malformed", "This is not omq", group.MALFORMED, severity.ERROR),
    bad_line = ProtoExpert.new("omq.bad_line", "Not a command", group.PROTOCOL, severity.WARN),
    refusal = ProtoExpert.new("omq.refusal", "The server says no", group.RESPONSE_CODE, severity.WARN),
    unknown = ProtoExpert.new("omq.unknown", "Not known here", group.UNDECODED, severity.NOTE),
    unseen = ProtoExpert.new("omq.unseen", "Not everything was captured", group.SEQUENCE, severity.NOTE),
    more = ProtoExpert.new("omq.more", "More than is shown", group.UNDECODED, severity.NOTE),
}
omq.experts = E

-- Of the TCP header: which connection, and where in its stream a segment stands.
local tcp_stream = Field.new("tcp.stream")
local tcp_seq = Field.new("tcp.seq")
local tcp_len = Field.new("tcp.len")
local has_completeness, tcp_completeness = pcall(Field.new, "tcp.completeness") -- since Wireshark 3.6

-- The innermost value: TCP may run in a tunnel through TCP.
local function value_of(field)
    local all = { field() }
    local last = all[#all]
    return last and tonumber(tostring(last.value))
end

-- == octets and text =======================================================================================

local function number_at(data, at, octets)
    local value = 0
    for index = at + 1, at + octets do
        value = value * 256 + data:byte(index)
    end
    return value
end

local CHARACTERS = {
    "^\194[\160-\191]",
    "^[\195-\223][\128-\191]",
    "^\224[\160-\191][\128-\191]",
    "^[\225-\236\238\239][\128-\191][\128-\191]",
    "^\237[\128-\159][\128-\191]",
    "^\240[\144-\191][\128-\191][\128-\191]",
    "^[\241-\243][\128-\191][\128-\191][\128-\191]",
    "^\244[\128-\143][\128-\191][\128-\191]",
}
local LETTERS = { [8] = "\\b", [9] = "\\t", [10] = "\\n", [13] = "\\r" }

-- Octets as text: UTF-8 as it is, every other octet as an escape of OCaml.
local function text_of(octets)
    if not octets:find("[^ -~]") then
        return octets
    end
    local parts, at = {}, 1
    while true do
        local odd = octets:find("[^ -~]", at)
        if not odd then
            parts[#parts + 1] = octets:sub(at)
            return table.concat(parts)
        end
        parts[#parts + 1] = octets:sub(at, odd - 1)
        at = nil
        for _, character in ipairs(CHARACTERS) do
            local _, last = octets:find(character, odd)
            if last then
                parts[#parts + 1] = octets:sub(odd, last)
                at = last + 1
                break
            end
        end
        if not at then
            local octet = octets:byte(odd)
            parts[#parts + 1] = LETTERS[octet] or ("\\%03d"):format(octet)
            at = odd + 1
        end
    end
end

-- The same for a label, cut off when long.
local function short_text(octets)
    if #octets > 60 then
        return text_of((octets:sub(1, 60):gsub("[\192-\255][\128-\191]*$", ""))) .. "..."
    end
    return text_of(octets)
end

-- A topic's name within a label: in quotes where it would not stand out.
local function name_of(octets)
    return octets:find("^[^%s\"(),:]+$") and text_of(octets) or '"' .. text_of(octets) .. '"'
end

local function counted(count, what)
    return ("%d %s%s"):format(count, what, count == 1 and "" or "s")
end

-- == sexps =================================================================================================

-- Every other letter keeps its backslash; a carriage return alone does not.
local ESCAPED = {
    n = "\n", t = "\t", b = "\b", r = "\r", ["\\"] = "\\", ['"'] = '"', ["'"] = "'", ["\r"] = "\r",
}

-- The octets that an escape stands for whose backslash is at `at`, and where it is over; nil for a bad one.
local function unescape(line, at)
    local digits = line:match("^%d%d%d", at + 1)
    if digits then
        if tonumber(digits) > 255 then
            return nil
        end
        return string.char(tonumber(digits)), at + 4
    end
    digits = line:match("^x(%x%x)", at + 1)
    if digits then
        return string.char(tonumber(digits, 16)), at + 4
    end
    local letter = line:sub(at + 1, at + 1)
    if letter == "" or letter:find("[%dx]") then
        return nil
    end
    return ESCAPED[letter] or "\\" .. letter, at + 2
end

-- The atom whose opening quote stands at `at`: a node, or nil.
local function quoted_atom(line, at)
    local parts, from = {}, at + 1
    while true do
        local stop = line:find('["\\]', from)
        if not stop then
            return nil
        end
        parts[#parts + 1] = line:sub(from, stop - 1)
        if line:sub(stop, stop) == '"' then
            return { from = at, to = stop, inner = at + 1, text = table.concat(parts), quoted = true }
        end
        local meaning, after = unescape(line, stop)
        if not meaning then
            return nil
        end
        parts[#parts + 1] = meaning
        from = after
    end
end

-- Return the position after the comment that begins with #| at `at`; nil and the reason if it has no end.
local function after_comment(line, at)
    local depth, from = 1, at + 2
    while depth > 0 do
        local stop = line:find('[#|"]', from)
        if not stop then
            return nil, "a comment that begins with #| has no end"
        end
        local pair = line:sub(stop, stop + 1)
        if pair == "#|" then
            depth, from = depth + 1, stop + 2
        elseif pair == "|#" then
            depth, from = depth - 1, stop + 2
        elseif pair:sub(1, 1) == '"' then
            local atom = quoted_atom(line, stop)
            if not atom then
                return nil, "a comment holds an unfinished string or a bad escape"
            end
            from = atom.to + 1
        else
            from = stop + 1
        end
    end
    return from
end

-- The one sexp of a line: a node, nil for a line of blanks and comments, or false and why it is none.
-- A node has `from` and `to`, counted from 1 in the line. That of an atom has its octets as `text`, that of a
-- list its nodes from 1 on.
local function read_sexp(line, most_tokens)
    local top = { skip = 0, nodes = {} }
    local level, depth, tokens, at = top, 0, 0, 1

    -- A sexp ends: the oldest #; that waits for one takes it, or it counts.
    local function finish(node)
        if level.skip > 0 then
            level.skip = level.skip - 1
        else
            level.nodes[#level.nodes + 1] = node
        end
        return level ~= top or #level.nodes < 2
    end

    while true do
        at = line:find("[^ \t\f]", at)
        if not at then
            break
        end
        local pair = line:sub(at, at + 1)
        local octet = pair:sub(1, 1)
        local hidden = level.hidden or level.skip > 0
        if octet == "\r" then
            if at < #line then
                return false, "a carriage return stands before other octets of the line"
            end
            break
        elseif octet == ";" then
            local stop = line:find("\r", at, true)
            if not stop then
                break
            end
            at = stop
        elseif pair == "#|" then
            local why
            at, why = after_comment(line, at)
            if not at then
                return false, why
            end
        elseif pair == "|#" then
            return false, "|# ends a comment that never began"
        elseif pair == "#;" then
            level.skip = level.skip + 1
            at = at + 2
        else
            if not hidden then
                tokens = tokens + 1
                if most_tokens and tokens > most_tokens then
                    return false, ("there are more than %d atoms and parentheses"):format(most_tokens)
                end
            end
            local whole = true
            if octet == "(" then
                depth = depth + 1
                if not hidden and depth > DEEPEST_SEXP then
                    return false, ("lists nest deeper than %d"):format(DEEPEST_SEXP)
                end
                level = { skip = 0, hidden = hidden, nodes = { from = at }, above = level }
                at = at + 1
            elseif octet == ")" then
                if level.skip > 0 then
                    return false, "#; has no sexp to comment out"
                elseif level == top then
                    return false, ") closes a list that was never opened"
                end
                local list = level.nodes
                list.to = at
                level, depth, at = level.above, depth - 1, at + 1
                whole = finish(list)
            elseif octet == '"' then
                local atom = quoted_atom(line, at)
                if not atom then
                    return false, "a string has no end or a bad escape"
                end
                at = atom.to + 1
                whole = finish(atom)
            else
                local text = line:match('^[^ \t\f\r"();]+', at)
                if text:find("#|", 1, true) or text:find("|#", 1, true) then
                    return false, "an unquoted atom holds #| or |#"
                end
                local atom = { from = at, to = at + #text - 1, inner = at, text = text }
                at = at + #text
                whole = finish(atom)
            end
            if not whole then
                return false, "there is more than one sexp"
            end
        end
    end
    if level ~= top then
        return false, "a list has no end"
    elseif top.skip > 0 then
        return false, "#; has no sexp to comment out"
    end
    return top.nodes[1]
end

local INTEGERS = {
    x = { base = 16, pattern = "^%x[%x_]*$", longest = ("f"):rep(16) },
    o = { base = 8, pattern = "^[0-7][0-7_]*$", longest = "1" .. ("7"):rep(21) },
    b = { base = 2, pattern = "^[01][01_]*$", longest = ("1"):rep(64) },
    u = { base = 10, pattern = "^%d[%d_]*$", longest = "18446744073709551615" },
}
local PLAIN_INTEGER = { base = 10, pattern = "^%d[%d_]*$", longest = "9223372036854775807" }

-- An Int64 as OCaml reads it, or nil.
local function integer(atom)
    local sign, digits = atom:match("^([+-]?)(.*)$")
    local shape = PLAIN_INTEGER
    local prefix, behind = digits:match("^0([xXoObBuU])(.*)$")
    if prefix then
        shape, digits = INTEGERS[prefix:lower()], behind
    end
    if not digits:find(shape.pattern) then
        return nil
    end
    digits = digits:gsub("_", ""):gsub("^0+", ""):lower()
    local longest = shape.longest
    if shape == PLAIN_INTEGER and sign == "-" then
        longest = "9223372036854775808"
    end
    if #digits > #longest or (#digits == #longest and digits > longest) then
        return nil
    end
    local value = UInt64.new(0)
    for digit in digits:gmatch(".") do
        value = value * shape.base + tonumber(digit, 16)
    end
    value = Int64.new(value)
    return sign == "-" and -value or value
end

-- == what is shown =========================================================================================

-- Takes the place of an item when a packet has too many.
local nowhere = setmetatable({}, {
    __index = function(self)
        return function()
            return self
        end
    end,
})

-- The item that all units of a call stand in. It is made with the first: by then the protocol is known.
local function root_of(call)
    if not call.root then
        local is_dmp = call.conversation.protocol == "dmp"
        local name = is_dmp and "DMP" or "omq"
        call.root = call.parent:add(is_dmp and dmp or omq, call.tvb:range())
        call.root:set_text(name .. ", from the " .. (call.from_client and "client" or "server"))
        call.pinfo.cols.protocol = name
    end
    return call.root
end

-- Whether one more unit can be shown.
local function has_room(call)
    call.units = call.units + 1
    if call.units == MOST_UNITS + 1 then
        root_of(call):add_proto_expert_info(E.more, ("Only the first %d units are shown"):format(MOST_UNITS))
    end
    return call.units <= MOST_UNITS
end

local function add(call, item, field, at, length, value)
    if item == nowhere then
        return nowhere
    elseif value == nil then
        return item:add(field, call.tvb:range(at, length))
    end
    return item:add(field, call.tvb:range(at, length), value)
end

-- A unit of the stream as an item of its own.
local function unit(call, field, at, length, value, label)
    local item = has_room(call) and add(call, root_of(call), field, at, length, value) or nowhere
    if label then
        item:set_text(label)
    end
    return item
end

local function add_text(call, item, field, at, length)
    return add(call, item, field, at, length, text_of(call.data:sub(at + 1, at + length)))
end

-- Add a field with a known value that is not on the wire.
local function add_known(call, item, field, at, length, value)
    return add(call, item, field, at, length, value):set_generated()
end

-- A body: as text for people, and as octets. They stand at `at`, or `octets` says what those there mean.
local function add_body(call, item, at, length, octets)
    if item == nowhere then
        return
    end
    octets = octets or call.data:sub(at + 1, at + length)
    local shown = #octets > LONGEST_TEXT and octets:sub(1, LONGEST_TEXT) or octets
    local text = text_of(shown)
    local exact = text == octets
    if shown ~= octets then
        text = text .. "..."
    end
    local body = item:add(F.body, call.tvb:range(at, length), text)
    -- With a value Wireshark wants a range of as many octets. There is one: no escape is shorter than its
    -- meaning.
    local raw = body:add(F.octets, call.tvb:range(at, math.min(#octets, length)), octets)
    if exact then
        raw:set_hidden()
    end
end

-- For the column Info: `one` for a single unit. Units in a row with the same `key` are told at once:
-- `before`, how many there are or their ids, and `behind`.
local function tell(call, key, one, before, behind, id)
    local told = call.told
    local last = told[#told]
    if last and last.key == key and (not id or (last.last and last.last + 1 == id)) then
        last.count, last.last = last.count + 1, id
    else
        told[#told + 1] = { key = key, one = one, before = before, behind = behind, count = 1 }
        told[#told].first, told[#told].last = id, id
    end
end

local function told_in_a_row(told)
    if told.count == 1 or not told.before then
        return told.count == 1 and told.one or ("%s (%d)"):format(told.one, told.count)
    elseif told.first then
        return ("%s%.0f to %.0f%s"):format(told.before, told.first, told.last, told.behind)
    end
    return ("%s%d%s"):format(told.before, told.count, told.behind)
end

local function show_told(call)
    local parts = {}
    for index, told in ipairs(call.told) do
        if index > 8 then
            parts[#parts + 1] = "..."
            break
        end
        parts[#parts + 1] = told_in_a_row(told)
    end
    if #parts == 0 then
        return
    end
    -- Behind the fence stands what units before this one in the same packet have told.
    local info = call.pinfo.cols.info
    info:clear()
    info:append((call.pinfo.private.omq_told and ", " or "") .. table.concat(parts, ", "))
    info:fence()
    call.pinfo.private.omq_told = "yes"
end

-- The rest of the octets cannot be read.
local function give_up(call, at, expert_info, why)
    local left = call.size - at
    local item = unit(call, F.unread, at, left, nil, counted(left, "octet") .. " that cannot be read")
    item:add_proto_expert_info(expert_info, why)
    tell(call, why, why)
    call.here.stage = "lost"
    return call.size
end

local function malformed(call, at, why)
    call.here.lost = "what came before is malformed"
    return give_up(call, at, E.malformed, why)
end

-- == answers ===============================================================================================

-- A command waits for its answer, in the first pass only: later ones find what that has written down.
local function expect_answer(call, at, key, command, topic)
    if not call.first then
        return
    end
    local waiting = call.conversation.waiting
    local queue = waiting[key] or { first = 1, last = 0 }
    waiting[key] = queue
    queue.last = queue.last + 1
    queue[queue.last] = {
        command = command, topic = topic, at = call.position + at, frame = call.pinfo.number,
        time = call.pinfo.rel_ts,
    }
end

-- Return the unit that the unit at `at` answers; `fits` may refuse the oldest waiting one.
local function answered(call, at, key, fits)
    local links = call.direction.links
    local position = call.position + at
    if call.first then
        local queue = call.conversation.waiting[key]
        local request = queue and queue[queue.first]
        if request and (not fits or fits(request)) then
            queue[queue.first] = nil
            queue.first = queue.first + 1
            links[position] = request
            request.answered = call.pinfo.number
            request.answer_time = call.pinfo.rel_ts - request.time
            call.conversation.client.links[request.at] = request
        end
    end
    return links[position]
end

local function add_answer(call, item, at, length, request)
    if request then
        add_known(call, item, F.answers, at, length, request.frame)
        local seconds = math.max(request.answer_time, 0)
        local whole = math.floor(seconds)
        local time = NSTime.new(whole, math.floor((seconds - whole) * 1e9 + 0.5))
        add_known(call, item, F.answer_time, at, length, time)
    end
end

local function add_answered(call, item, at, length)
    local request = call.conversation.client.links[call.position + at]
    if request and request.answered then
        add_known(call, item, F.answered, at, length, request.answered)
    end
end

-- == commands ==============================================================================================

local COMMANDS = {
    Connect = { "version", "client" },
    Subscribe = { "topic", "replay" },
    Unsubscribe = { "topic" },
    Ack = { "time" },
    Publish = { "topic", "body" },
    Declare = { "topic", "delivery", "persistence" },
    Confirm = { "n" },
    Delete = { "topic" },
    Topics = {},
    Request = { "topic", "credit" },
    Received = { "topic", "message_id" },
    Put = { "topic" },
    Get = { "topic", "replay" },
    Fetch = { "topic", "first", "count" },
    Blocks = { "topic", "first", "count" },
    Manage = { "request" },
    Watch = { "period" },
    Connections = { "first" },
    Subscribers = { "topic" },
    Disconnect = { "id" },
    Purge = { "topic" },
    Retain = { "topic", "retention" },
}
local ANSWERED_BY = {
    Subscribe = "Subscribed", Unsubscribe = "Unsubscribed", Declare = "Declared", Delete = "Deleted",
}

-- A constructor may be written with a small first letter.
local function constructor(node, names)
    if not node or not node.text then
        return nil
    end
    for _, name in ipairs(names) do
        if node.text == name or node.text == name:sub(1, 1):lower() .. name:sub(2) then
            return name
        end
    end
end

local COMMAND_NAMES = {}
for name in pairs(COMMANDS) do
    COMMAND_NAMES[#COMMAND_NAMES + 1] = name
end

local function atom_kind(field)
    return function(line, node)
        if not node.text then
            return nil, "must be an atom, not a list"
        end
        return name_of(node.text), { { field, node, text_of(node.text) } }
    end
end

local function integer_kind(field)
    return function(line, node)
        if not node.text then
            return nil, "must be an atom, not a list"
        end
        local value = integer(node.text)
        if not value then
            return nil, "must be an integer of 64 bits"
        end
        return tostring(value), { { field, node, value } }
    end
end

local function sexp_kind()
    return function(line, node)
        local text = short_text(line:sub(node.from, node.to))
        return text, { { F.sexp, node, text } }
    end
end

-- The reader of each kind of argument: it returns the text and its fields, or nil and the valid form.
local ARGUMENTS = {
    version = integer_kind(F.version),
    client = atom_kind(F.client),
    topic = atom_kind(F.topic),
    n = integer_kind(F.n),
    credit = integer_kind(F.credit),
    message_id = integer_kind(F.message_id),
    first = integer_kind(F.message_id),
    count = integer_kind(F.count),
    period = integer_kind(F.count),
    id = integer_kind(F.count),
    request = sexp_kind(),
    retention = sexp_kind(),
}

function ARGUMENTS.body(line, node)
    if not node.text then
        return nil, "must be an atom, not a list"
    end
    return short_text(node.text), { { F.body, node, node.text } }
end

function ARGUMENTS.time(line, node)
    for _, part in ipairs(node) do
        if not part.text then
            return nil, "must be a time"
        end
    end
    if not node.text and (#node < 2 or #node > 3) then
        return nil, "must be a time"
    end
    local text = node.text and text_of(node.text) or text_of(line:sub(node.from + 1, node.to - 1))
    return text, { { F.ack, node, text } }
end

function ARGUMENTS.delivery(line, node)
    local name = constructor(node, { "Broadcast", "Round_robin" })
    if not name then
        return nil, "must be Broadcast or Round_robin"
    end
    return name, { { F.delivery, node, name } }
end

function ARGUMENTS.persistence(line, node)
    local text = constructor(node, { "Transient" })
    if #node == 2 and constructor(node[1], { "Persistent" }) then
        local sync = constructor(node[2], { "Strong", "Weak", "Async" })
        text = sync and "(Persistent " .. sync .. ")"
    end
    if not text then
        return nil, "must be Transient or (Persistent sync), the sync being Strong, Weak or Async"
    end
    return text, { { F.persistence, node, text } }
end

function ARGUMENTS.replay(line, node)
    local text = constructor(node, { "From_beginning", "From_current" })
    if text then
        return text, { { F.replay, node, text } }
    elseif #node == 2 and constructor(node[1], { "From_message" }) then
        local id = node[2].text and integer(node[2].text)
        if not id then
            return nil, "must be From_message with an id that must be an integer of 64 bits"
        end
        text = "(From_message " .. tostring(id) .. ")"
        return text, { { F.replay, node, text }, { F.message_id, node[2], id } }
    end
    return nil, "must be From_beginning, (From_message id) or From_current"
end

-- The command that a line is: its words, its fields and its topic. Or nil and why it is none; and
-- nil alone for a line without a sexp.
local function read_command(line)
    local sexp, why = read_sexp(line, MOST_TOKENS)
    if sexp == nil then
        return nil
    elseif not sexp then
        return nil, "Bad sexp: " .. why
    elseif not sexp.text and not (sexp[1] and sexp[1].text) then
        return nil, "Bad command: a list must begin with the name of a command"
    end
    local name_node = sexp.text and sexp or sexp[1]
    local name = constructor(name_node, COMMAND_NAMES)
    if not name then
        return nil, "Unknown command " .. short_text(name_node.text)
    end
    local wanted = COMMANDS[name]
    local given = sexp.text and 0 or #sexp - 1
    if name == "Topics" and not sexp.text then
        return nil, "Topics: takes no arguments and no parentheses"
    elseif given ~= #wanted then
        return nil, ("%s: takes exactly %s"):format(name, counted(#wanted, "argument"))
    end
    local words, fields = { name }, {}
    for index, kind in ipairs(wanted) do
        local text, found = ARGUMENTS[kind](line, sexp[index + 1])
        if not text then
            return nil, ("%s: %s %s"):format(name, kind:gsub("_", " "), found)
        end
        words[index + 1] = text
        for _, field in ipairs(found) do
            fields[#fields + 1] = field
        end
    end
    local topic = wanted[1] == "topic" and sexp[2].text or nil
    return { name = name, words = words, fields = fields, topic = topic }
end

local function await_answer(call, at, command)
    local by = ANSWERED_BY[command.name]
    if by then
        expect_answer(call, at, by .. " " .. command.topic, command.name, command.topic)
    elseif command.name == "Confirm" then
        expect_answer(call, at, "Confirmed " .. command.words[2], command.name)
    elseif command.name == "Topics" then
        expect_answer(call, at, "Topics", command.name)
    elseif command.name == "Put" or command.name == "Get" then
        expect_answer(call, at, "Leased", command.name, command.topic)
    end
end

local function show_command(call, at, length, line, command)
    local label = table.concat(command.words, " ")
    if command.name == "Publish" then
        label = ("Publish %s: %s"):format(command.words[2], command.words[3])
        local key = "Publish " .. command.words[2]
        tell(call, key, label, key .. " (", ")")
    else
        tell(call, label, label)
    end
    local item = unit(call, F.command, at, length, command.name, label)
    add(call, item, F.line, at, length, text_of(line))
    for _, entry in ipairs(command.fields) do
        local field, node, value = entry[1], entry[2], entry[3]
        if field == F.body then
            local inner = node.quoted and node.to - node.inner or #value
            add_body(call, item, at + node.inner - 1, inner, value)
        else
            add(call, item, field, at + node.from - 1, node.to - node.from + 1, value)
        end
    end
    await_answer(call, at, command)
    add_answered(call, item, at, length)
end

-- Each stage of a stream reads the unit at `at`. It returns where that is over, or nil when not all of it is
-- there; then also how many octets it has, if that is known. That must be all of them: Wireshark loses a unit
-- in later passes for which it was asked twice.
local stages = {}

function stages.lines(call, at)
    local feed = call.data:find("\n", at + 1, true)
    local length = (feed or call.size + 1) - 1 - at
    if length > omq.prefs.max_line_bytes then
        return malformed(call, at, ("A line has more than %d octets"):format(omq.prefs.max_line_bytes))
    elseif not feed then
        return nil
    end
    local line = call.data:sub(at + 1, feed - 1)
    local command, why = read_command(line)
    if command then
        show_command(call, at, feed - at, line, command)
    elseif why then
        local item = unit(call, F.line, at, feed - at, text_of(line))
        item:add_proto_expert_info(E.bad_line, why)
        tell(call, why, why)
    elseif line:find("[^ \t\f\r]") then
        unit(call, F.line, at, feed - at, text_of(line))
        tell(call, "Remark", "Remark")
    end
    return feed
end

-- == frames ================================================================================================

local TOPIC_FRAMES = { Subscribed = true, Unsubscribed = true, Declared = true, Deleted = true }

-- The values of a record by the names of its fields; nothing for what is no record.
local function record_of(node)
    local found = {}
    for _, pair in ipairs(node) do
        if #pair == 2 and pair[1].text then
            found[pair[1].text] = pair[2]
        end
    end
    return found
end

local TOPIC_FIELDS = {
    { "id", F.topic_id, integer_kind(F.topic_id) },
    { "topic", F.topic, atom_kind(F.topic) },
    { "delivery", F.delivery, ARGUMENTS.delivery },
    { "persistence", F.persistence, ARGUMENTS.persistence },
    { "messages", F.messages, integer_kind(F.messages) },
    { "bytes", F.bytes, integer_kind(F.bytes) },
    { "first", F.first, integer_kind(F.first) },
    { "last", F.last, integer_kind(F.last) },
    { "subscribers", F.subscribers, integer_kind(F.subscribers) },
}

-- The first `most` fields of a topic's record: texts and fields by name, or nil when they are not all there.
local function topic_of(sexp, node, most)
    local record = record_of(node)
    local texts, fields = {}, {}
    for index = 1, most do
        local name, read = TOPIC_FIELDS[index][1], TOPIC_FIELDS[index][3]
        local text, found
        if record[name] then
            text, found = read(sexp, record[name])
        end
        if not text then
            return nil
        end
        texts[name] = text
        fields[index] = found[1]
    end
    return { texts = texts, fields = fields, name = record.topic.text }
end

local function learn(call, topic)
    call.conversation.topics[topic.texts.id] = topic.name
end

local function add_fields(call, item, at, fields)
    for _, entry in ipairs(fields) do
        local node = entry[2]
        add(call, item, entry[1], at + node.from - 1, node.to - node.from + 1, entry[3])
    end
end

-- The functions that show each frame. They get the item of the frame, the position and the length of its payload,
-- and return the frame's label, and the other arguments of `tell`; or nil and the error.
local FRAMES = {}

function FRAMES.Error(call, item, at, length)
    local sentence = call.data:sub(at + 1, at + length)
    local text = text_of(sentence)
    local shown = add(call, item, F.error, at, length, text)
    if item ~= nowhere then
        shown:add_proto_expert_info(E.refusal, text)
    end
    -- "Declare jobs: the topic exists as ..."
    local name, rest = sentence:match("^(%u%l+) (.*)$")
    local takes = name and (COMMANDS[name] or ((name == "Sink" or name == "Feed") and { "topic" }))
    if takes then
        local argument, why
        if rest:sub(1, 1) == '"' then
            local atom = quoted_atom(rest, 1)
            argument, why = atom and atom.text, atom and rest:match("^: (.*)$", atom.to + 1)
        else
            argument, why = rest:match("^([^ ]-): (.*)$")
        end
        if argument and why then
            if takes[1] == "topic" then
                add_known(call, item, F.topic, at, length, text_of(argument))
            end
            local request
            if ANSWERED_BY[name] and not why:find("^messages %d+ to %d+ are gone: ") then
                request = answered(call, at - 5, ANSWERED_BY[name] .. " " .. argument)
            elseif name == "Confirm" then
                request = answered(call, at - 5, "Confirmed " .. argument)
            elseif name == "Put" or name == "Get" then
                request = answered(call, at - 5, "Leased", function(oldest)
                    return oldest.command == name and oldest.topic == argument
                end)
            end
            add_answer(call, item, at, length, request)
        end
    end
    return "Error: " .. text
end

function FRAMES.Ping(call, item, at, length)
    if length ~= 4 then
        return nil, "the payload of a Ping has 4 octets"
    end
    add(call, item, F.ping, at, 4, NSTime.new(number_at(call.data, at, 4), 0))
    return "Ping"
end

function FRAMES.Message(call, item, at, length)
    if length < 12 then
        return nil, "a Message has at least 12 octets before its body"
    end
    local id = call.tvb:range(at, 8):int64()
    local topic_id = ("%.0f"):format(number_at(call.data, at + 8, 4))
    local topic = call.conversation.topics[topic_id]
    add(call, item, F.message_id, at, 8, id)
    add(call, item, F.topic_id, at + 8, 4, Int64.new(topic_id))
    if topic then
        add_known(call, item, F.topic, at + 8, 4, text_of(topic))
    end
    add_body(call, item, at + 12, length - 12)
    local of = topic and name_of(topic) or "topic " .. topic_id
    local label = ("Message %s of %s: %s"):format(
        tostring(id), of, short_text(call.data:sub(at + 13, at + math.min(length, 12 + 80)))
    )
    return label, "Messages of " .. of, "Messages ", " of " .. of, id:tonumber()
end

local function topic_frame(name)
    return function(call, item, at, length)
        local sexp = call.data:sub(at + 1, at + length)
        add(call, item, F.sexp, at, length, text_of(sexp))
        local node = read_sexp(sexp, MOST_TOKENS)
        local topic = node and topic_of(sexp, node, 2)
        if not topic then
            return nil, "the payload is not the sexp of a topic"
        end
        learn(call, topic)
        add_fields(call, item, at, topic.fields)
        add_answer(call, item, at, length, answered(call, at - 5, name .. " " .. topic.name))
        return ("%s %s, id %s"):format(name, topic.texts.topic, topic.texts.id)
    end
end

for name in pairs(TOPIC_FRAMES) do
    FRAMES[name] = topic_frame(name)
end

function FRAMES.Confirmed(call, item, at, length)
    if length ~= 8 then
        return nil, "the payload of a Confirmed has 8 octets"
    end
    local n = call.tvb:range(at, 8):int64()
    add(call, item, F.n, at, 8, n)
    add_answer(call, item, at, length, answered(call, at - 5, "Confirmed " .. tostring(n)))
    return "Confirmed " .. tostring(n)
end

-- The leases that were seen to be given, of all connections: what led to each.
local leases = {}

local function add_lease(call, item, at, length, known)
    if known.topic then
        add_known(call, item, F.topic, at, length, text_of(known.topic))
        add_known(call, item, D.purpose, at, length, known.purpose)
    end
end

local function what_for(lease, known)
    return known.topic and ("a %s of %s"):format(known.purpose, name_of(known.topic)) or text_of(lease)
end

function FRAMES.Leased(call, item, at, length)
    local lease = call.data:sub(at + 1, at + length)
    add_text(call, item, F.lease, at, length)
    local request = answered(call, at - 5, "Leased")
    if call.first then
        leases[lease] = { frame = call.pinfo.number, topic = request and request.topic }
        leases[lease].purpose = request and (request.command == "Put" and "sink" or "feed")
    end
    local known = leases[lease]
    add_lease(call, item, at, length, known)
    if known.used then
        add_known(call, item, F.used_in, at, length, known.used)
    end
    add_answer(call, item, at, length, request)
    return "Leased " .. what_for(lease, known)
end

function FRAMES.Topics(call, item, at, length)
    local sexp = call.data:sub(at + 1, at + length)
    local list = read_sexp(sexp)
    if not list or list.text then
        return nil, "the payload is not the sexp of a list of topics"
    end
    add_answer(call, item, at, length, answered(call, at - 5, "Topics"))
    for _, node in ipairs(list) do
        local from, span = at + node.from - 1, node.to - node.from + 1
        local topic = topic_of(sexp, node, #TOPIC_FIELDS)
        local shown = has_room(call)
                and add(call, item, F.sexp, from, span, text_of(sexp:sub(node.from, node.to)))
            or nowhere
        if topic then
            learn(call, topic)
            shown:set_text(("%s: %s %s, %s"):format(
                topic.texts.topic, topic.texts.delivery, topic.texts.persistence,
                topic.texts.messages == "1" and "1 message" or topic.texts.messages .. " messages"
            ))
            add_fields(call, shown, at, topic.fields)
        else
            shown:add_proto_expert_info(E.malformed, "This is not the record of a topic")
        end
    end
    return "Topics: " .. counted(#list, "topic")
end

function stages.frames(call, at)
    local left = call.size - at
    if left < 4 then
        return nil
    end
    local length = number_at(call.data, at, 4)
    if length == 0 then
        return malformed(call, at, "A frame of length 0 has no type")
    elseif length > omq.prefs.max_message_bytes + 13 then
        return malformed(call, at, ("A frame of %.0f octets is longer than a frame may be"):format(length))
    elseif left < 4 + length then
        return nil, 4 + length
    end
    local kind = call.data:byte(at + 5)
    local name = FRAME_NAMES[kind] or "Unknown"
    local item = unit(call, F.frame, at, 4 + length, name)
    add(call, item, F.frame_length, at, 4)
    add(call, item, F.frame_type, at + 4, 1)
    local show = FRAMES[name]
    if not show then
        if length > 1 then
            add(call, item, F.payload, at + 5, length - 1)
        end
        local label = ("Frame of type %d (%s)"):format(kind, name)
        item:set_text(label)
        item:add_proto_expert_info(E.unknown, "This type of frame is not known here")
        tell(call, label, label)
        return at + 4 + length
    end
    local label, key, before, behind, id = show(call, item, at + 5, length - 1)
    if label then
        item:set_text(label)
        tell(call, key or label, label, before, behind, id)
    else
        local why = key
        item:set_text(name)
        item:add_proto_expert_info(E.malformed, "A " .. name .. " is malformed: " .. why)
        tell(call, name, name .. " (malformed)")
    end
    return at + 4 + length
end

-- == DMP: envelopes ========================================================================================

-- Return the end of the short string at `at`; nil if it is behind `stop`.
local function after_short(data, at, stop)
    if at >= stop then
        return nil
    end
    local after = at + 1 + data:byte(at + 1)
    return after <= stop and after or nil
end

local TYPE_NAMES = {
    S = "string", x = "octets", I = "i32", i = "u32", D = "decimal", T = "time", F = "table", A = "array",
    t = "boolean", b = "i8", B = "u8", s = "i16", U = "i16", u = "u16", l = "i64", L = "i64", f = "f32",
    d = "f64", V = "nothing",
}

local function utc(seconds)
    -- Beyond that `os.date` is not the same everywhere.
    return seconds < 2 ^ 31 and " (" .. os.date("!%Y-%m-%d %H:%M:%S UTC", seconds) .. ")" or ""
end

-- The number of octets of the value of each type of a fixed length, and the function that makes its text.
local FIXED = {
    I = { 4, function(range) return ("%d"):format(range:int()) end },
    i = { 4, function(range) return ("%.0f"):format(range:uint()) end },
    D = { 5, function(range) return ("%.0f / 10^%d"):format(range(1, 4):uint(), range(0, 1):uint()) end },
    T = { 8, function(range) return tostring(range:uint64()) .. utc(range:uint64():tonumber()) end },
    t = { 1, function(range) return range:uint() == 0 and "false" or "true" end },
    b = { 1, function(range) return ("%d"):format(range:int()) end },
    B = { 1, function(range) return ("%d"):format(range:uint()) end },
    s = { 2, function(range) return ("%d"):format(range:int()) end },
    U = { 2, function(range) return ("%d"):format(range:int()) end },
    u = { 2, function(range) return ("%d"):format(range:uint()) end },
    l = { 8, function(range) return tostring(range:int64()) end },
    L = { 8, function(range) return tostring(range:int64()) end },
    f = { 4, function(range) return ("%.9g"):format(range:float()) end },
    d = { 8, function(range) return ("%.17g"):format(range:float()) end },
    V = { 0, function() return "" end },
}

local read_entries

-- The value at `at` whose type is `kind`: an entry, and where it is over. Or nil and what is wrong.
local function read_value(data, at, stop, kind, depth)
    local fixed = FIXED[kind]
    if fixed then
        if at + fixed[1] > stop then
            return nil, "a value is cut off"
        end
        return { kind = kind, at = at, length = fixed[1] }, at + fixed[1]
    elseif not TYPE_NAMES[kind] then
        return nil, "a value has the type " .. text_of(kind) .. ", which is not known here"
    end
    if at + 4 > stop then
        return nil, "a value is cut off"
    end
    local length = number_at(data, at, 4)
    local after = at + 4 + length
    if after > stop then
        return nil, "a value is cut off"
    elseif kind == "S" or kind == "x" then
        return { kind = kind, at = at + 4, length = length }, after
    end
    local entries, why = read_entries(data, at + 4, after, kind == "F", depth + 1)
    if not entries then
        return nil, why
    end
    return { kind = kind, at = at, length = 4 + length, entries = entries }, after
end

-- The entries of a table (with names) or an array up to `stop`; nil and what is wrong.
function read_entries(data, at, stop, named, depth)
    if depth > DEEPEST_TABLE then
        return nil, ("tables nest deeper than %d"):format(DEEPEST_TABLE)
    end
    local entries = {}
    while at < stop do
        local from, name = at, nil
        if named then
            local after = after_short(data, at, stop)
            if not after then
                return nil, "a name in a table is cut off"
            end
            name, at = data:sub(at + 2, after), after
        end
        if at >= stop then
            return nil, "an entry of a table has no type"
        end
        local entry, after = read_value(data, at + 1, stop, data:sub(at + 1, at + 1), depth)
        if not entry then
            return nil, after
        end
        entry.name, entry.from, entry.to = name, from, after
        entries[#entries + 1] = entry
        at = after
    end
    return entries
end

-- Return the positions of the parts between the size and the options of an envelope, and their end; or nil and
-- the error. All of it must end by `stop`.
local function read_head(data, at, stop)
    local key_at = after_short(data, at, stop)
    local flags_at = key_at and after_short(data, key_at, stop)
    if not key_at then
        return nil, "the exchange is cut off"
    elseif not flags_at then
        return nil, "the key is cut off"
    elseif flags_at + 2 > stop then
        return nil, "the property flags are cut off"
    end
    local head = { at = at, key_at = key_at, flags_at = flags_at, properties = {} }
    local flags = number_at(data, flags_at, 2)
    if flags % MEANINGLESS_FLAGS ~= 0 then
        return nil, ("the property flags %04x have bits set that stand for no property"):format(flags)
    end
    at = flags_at + 2
    for _, property in ipairs(PROPERTIES) do
        local flag, name, kind = property[1], property[2], property[3]
        if flags >= flag then
            flags = flags - flag
            local after, entries
            if kind == "string" then
                after = after_short(data, at, stop)
            elseif kind == "table" then
                local value, behind = read_value(data, at, stop, "F", 0)
                if not value then
                    return nil, "the property headers: " .. behind
                end
                after, entries = behind, value.entries
            else
                after = at + (kind == "octet" and 1 or 8)
            end
            if not after or after > stop then
                return nil, ("the property %s is cut off"):format(name)
            end
            local found = { property = property, at = at, to = after, entries = entries }
            head.properties[#head.properties + 1] = found
            at = after
        end
    end
    if at - head.at > LONGEST_HEAD then
        return nil, ("the names and properties take more than %d octets"):format(LONGEST_HEAD)
    end
    return head, at
end

-- The envelope of `size` octets after `at`, up to its body, which need not be there. Nil and what is wrong.
local function read_envelope(data, at, size)
    local start = at + 4
    local stop = start + size
    local head, options_at = read_head(data, start, math.min(stop, #data) - 4)
    if not head then
        return nil, options_at
    end
    local body_at = options_at + 4
    local left = stop - body_at
    local number = number_at(data, options_at, 4)
    head.options_at, head.body_at, head.body_length = options_at, body_at, left
    head.old = number == left and left >= 2 ^ 24 -- 4-DMP: a longer length, and no options
    if not head.old then
        head.options = data:byte(options_at + 1)
        local length = number % 2 ^ 24
        if length ~= left then
            return nil, ("its body's length is %.0f, but its size leaves %.0f octets"):format(length, left)
        elseif head.options > 3 then
            return nil, ("its options %02x have bits set that stand for nothing"):format(head.options)
        end
    end
    return head
end

local function add_entries(call, item, entries, path)
    for index, entry in ipairs(entries) do
        if not has_room(call) then
            return
        end
        local name = entry.name and text_of(entry.name) or ("[%d]"):format(index)
        if path then
            name = entry.name and path .. "." .. name or path .. name
        end
        local value = ""
        if FIXED[entry.kind] then
            value = entry.length == 0 and "" or FIXED[entry.kind][2](call.tvb:range(entry.at, entry.length))
        elseif not entry.entries then
            value = text_of(call.data:sub(entry.at + 1, entry.at + entry.length))
        end
        local length = entry.to - entry.from
        local kind = TYPE_NAMES[entry.kind]
        local text = ("%s: %s"):format(name, value)
        local shown = add(call, item, D.entry, entry.from, length, text)
        shown:set_text(("%s: %s (%s)"):format(name, entry.entries and #entry.entries or value, kind))
        -- The text has them all: these are for filters.
        add(call, shown, D.entry_name, entry.from, length, name):set_hidden()
        add(call, shown, D.entry_type, entry.from, length, kind):set_hidden()
        add(call, shown, D.entry_value, entry.at, entry.length, value):set_hidden()
        if entry.entries then
            add_entries(call, shown, entry.entries, name)
        end
    end
end

local function add_property(call, item, found)
    local property, at, length = found.property, found.at, found.to - found.at
    local kind = property[3]
    if kind == "string" then
        add_text(call, item, property.field, at + 1, length - 1)
    elseif kind == "table" then
        local shown = add(call, item, property.field, at, length)
        shown:set_text("Property headers: " .. #found.entries)
        add_entries(call, shown, found.entries)
    else
        local shown = add(call, item, property.field, at, length)
        if kind == "long" and item ~= nowhere then
            shown:append_text(utc(call.tvb:range(at, 8):uint64():tonumber()))
        end
    end
end

local function add_topic(call, item, at, length)
    local topic = call.conversation.topic
    if topic then
        add_known(call, item, F.topic, at, length, text_of(topic))
    end
end

local function show_envelope(call, at, length, head)
    local here = call.here
    here.count = here.count + 1
    local key = call.data:sub(head.key_at + 2, head.flags_at)
    local body = call.data:sub(head.body_at + 1, head.body_at + math.min(head.body_length, 80))
    local label = ("Envelope %d%s: %s"):format(
        here.count, key == "" and "" or ", key " .. text_of(key), short_text(body)
    )
    local item = unit(call, D.envelope, at, length, UInt64.new(here.count), label)
    add(call, item, D.size, at, 4)
    add_topic(call, item, at, length)
    add_text(call, item, D.exchange, head.at + 1, head.key_at - head.at - 1)
    add_text(call, item, D.key, head.key_at + 1, head.flags_at - head.key_at - 1)
    local flags = add(call, item, D.flags, head.flags_at, 2)
    local names = {}
    for _, found in ipairs(head.properties) do
        names[#names + 1] = found.property[2]
    end
    flags:append_text(" (" .. (#names > 0 and table.concat(names, ", ") or "no properties") .. ")")
    for _, found in ipairs(head.properties) do
        add_property(call, item, found)
    end
    if head.old then
        add(call, item, D.length, head.options_at, 4):append_text(" (4-DMP, without options)")
    else
        local options = add(call, item, D.options, head.options_at, 1)
        add(call, options, D.immediate, head.options_at, 1)
        add(call, options, D.mandatory, head.options_at, 1)
        add(call, item, D.length, head.options_at + 1, 3)
    end
    add_body(call, item, head.body_at, head.body_length)
    tell(call, "Envelopes", label, "Envelopes ", "", here.count)
    return item
end

local function show_null(call, at)
    unit(call, D.null, at, 4)
    tell(call, "Null message", "Null message", "Null messages (", ")")
    return at + 4
end

local function read_unit_of_messages(call, at)
    local left = call.size - at
    if left < 4 then
        return nil
    end
    local size = number_at(call.data, at, 4)
    local largest = omq.prefs.max_message_bytes + LONGEST_HEAD + 4
    if size == 0 then
        return show_null(call, at)
    elseif size < 8 then
        return malformed(call, at, ("The size of an envelope is %d, and an empty one has 8"):format(size))
    elseif size > largest then
        return malformed(call, at, ("An envelope of %.0f octets is longer than one may be"):format(size))
    elseif left < 4 + size then
        return nil, 4 + size
    end
    local head, why = read_envelope(call.data, at, size)
    if not head then
        return malformed(call, at, ("Envelope %d is malformed: %s"):format(call.here.count + 1, why))
    end
    local item = show_envelope(call, at, 4 + size, head)
    if call.from_client and call.conversation.purpose == "feed" then
        item:add_proto_expert_info(E.refusal, "A feed takes no messages: the server ends it")
    end
    return at + 4 + size
end

stages.envelopes = read_unit_of_messages

-- == DMP: the dialogue =====================================================================================

-- The short string at `at`, and where it is over; nil and how long it is when it is not all there.
local function short_string(call, at)
    local length = call.data:byte(at + 1)
    if call.size - at - 1 < length then
        return nil, 1 + length
    end
    return call.data:sub(at + 2, at + 1 + length), at + 1 + length
end

-- A response of the server: its code, its words, and where it is over; nil and how long it is; or false.
local function show_response(call, at)
    local response, after = short_string(call, at)
    if not response then
        return nil, nil, after
    end
    local code = tonumber(response:match("^(%d%d%d)%f[%D]"))
    if not code then
        return false
    end
    local text = text_of(response)
    local item = unit(call, D.response, at, after - at, text, "Response: " .. text)
    add(call, item, D.code, at + 1, 3, code)
    local stored = response:match(" (%d+) messages stored")
    if stored and #stored < 20 then
        add(call, item, D.stored, at + 1, after - at - 1, UInt64.new(stored))
    end
    if code ~= 200 then
        item:add_proto_expert_info(E.refusal, text)
    end
    tell(call, text, text)
    return code, response, after, item
end

local NO_RESPONSE = "This is no response: it does not begin with three digits"

function stages.lease(call, at)
    local lease, after = short_string(call, at)
    if not lease then
        return nil, after
    end
    local conversation = call.conversation
    call.here.stage = "envelopes"
    if lease:find(" ", 1, true) then
        local item = unit(call, D.command, at, after - at, text_of(lease))
        item:add_proto_expert_info(E.refusal, "Only a lease is understood here")
        tell(call, "Command", "Command " .. text_of(lease))
        return after
    end
    local item = unit(call, F.lease, at, after - at, text_of(lease))
    local given = leases[lease]
    if lease == "" then
        item:add_proto_expert_info(E.refusal, "An empty lease: the server closes")
        tell(call, "Lease", "Empty lease")
        return after
    end
    if given then
        if call.first then
            conversation.topic, conversation.purpose = given.topic, given.purpose
            given.used = given.used or call.pinfo.number
        end
        add_known(call, item, F.leased_in, at, after - at, given.frame)
        add_lease(call, item, at, after - at, given)
    end
    tell(call, "Lease", "Lease of " .. what_for(lease, given or {}))
    return after
end

-- A server that speaks something else answers the header with its own.
local function other_header(call, at)
    if call.data:sub(at + 1, at + 4) ~= ("AMQP"):sub(1, math.min(4, call.size - at)) then
        return false
    elseif call.size - at < 8 then
        return true, nil
    end
    local text = ("AMQP %d.%d.%d.%d"):format(call.data:byte(at + 5, at + 8))
    local item = unit(call, D.header, at, 8, text)
    item:add_proto_expert_info(E.refusal, "The server speaks this version, and closes")
    tell(call, "Header", "The server speaks " .. text .. ", and closes")
    call.here.stage = "over"
    return true, at + 8
end

function stages.greeting(call, at)
    local is_header, after, needed = other_header(call, at)
    if is_header then
        return after, needed
    end
    local code, _, behind = show_response(call, at)
    if code == nil then
        return nil, behind
    elseif not code then
        return malformed(call, at, NO_RESPONSE)
    end
    call.here.stage = code == 200 and "ready" or "over"
    return behind
end

function stages.ready(call, at)
    local code, response, after, item = show_response(call, at)
    if code == nil then
        return nil, after
    elseif not code then
        return malformed(call, at, NO_RESPONSE)
    end
    local conversation = call.conversation
    local purpose, name = response:match("^200 OK (%u%l+) '(.*)' ready$")
    if call.first and purpose then
        conversation.purpose = conversation.purpose or purpose:lower()
        conversation.topic = conversation.topic or name
    end
    if code ~= 200 then
        call.here.stage = "over"
        return after
    end
    call.here.stage = conversation.purpose == "sink" and "responses" or "envelopes"
    if conversation.purpose then
        add_known(call, item, D.purpose, at, after - at, conversation.purpose)
    end
    add_topic(call, item, at, after - at)
    return after
end

-- The answer to a sink at its end.
function stages.responses(call, at)
    if call.data:byte(at + 1) == 0 then
        if call.size - at < 4 then
            return nil
        elseif number_at(call.data, at, 4) == 0 then
            return show_null(call, at)
        end
    end
    local code, _, after, item = show_response(call, at)
    if code == nil then
        return nil, after
    elseif not code then
        return malformed(call, at, NO_RESPONSE)
    end
    add_topic(call, item, at, after - at)
    call.here.stage = "over"
    return after
end

function stages.over(call, at)
    call.here.lost = "the conversation is over"
    return give_up(call, at, E.unknown, "Not read: the conversation is over")
end

-- == the first eight octets ================================================================================

local VERSION_ONE = ("\0"):rep(7) .. "\1"
local REFUSED = ("\255"):rep(8)
local DMP_HEADER = "AMQP\10\1\0\1"
local FOREIGN = {
    ["AMQP\0\0\9\1"] = "amqp", ["AMQP\1\1\0\9"] = "amqp", -- 0-9-1, 0-9
    ["AMQP\0\1\0\0"] = "amqp", ["AMQP\3\1\0\0"] = "amqp", -- 1.0, its SASL layer
}

local function show_header(call, at, octets)
    local a, b, c, d = octets:byte(5, 8)
    local text = ("AMQP %d.%d.%d.%d"):format(a, b, c, d)
    local item = unit(call, D.header, at, 8, text)
    tell(call, text, octets == DMP_HEADER and "Header of DMP" or "Header " .. text)
    return item
end

local function show_version(call, at, text)
    local version = call.tvb:range(at, 8):int64()
    local item = unit(call, F.version, at, 8, version)
    tell(call, text, ("%s %s"):format(text, tostring(version)))
    return item
end

local BEGINNING = "the beginning of this connection was not captured"

-- Whether these octets, fewer than eight, may become a handshake. It is not asked for more in vain: when
-- there is a whole unit already, Wireshark would give it once more together with the rest.
local function may_become(octets, handshakes)
    for _, handshake in ipairs(handshakes) do
        if handshake:sub(1, #octets) == octets then
            return true
        end
    end
    return false
end

function stages.client_handshake(call, at)
    local octets, conversation = call.data:sub(at + 1, at + 8), call.conversation
    local is_tls = octets:sub(1, 2) == "\22\3"
    local is_amqp = may_become(octets:sub(1, 4), { "AMQP" })
    if #octets < 8 and (call.fresh or is_tls or is_amqp or may_become(octets, { VERSION_ONE })) then
        return nil
    end
    if octets == VERSION_ONE then
        conversation.protocol = "omq"
        call.here.stage = "lines"
        show_version(call, at, "Client speaks version")
    elseif octets == DMP_HEADER then
        conversation.protocol = "dmp"
        call.here.stage = "lease"
        show_header(call, at, octets)
    elseif is_amqp then
        conversation.protocol = "dmp"
        call.here.stage = "over"
        local item = show_header(call, at, octets)
        item:add_proto_expert_info(E.refusal, "This version of AMQP is not spoken here")
    elseif call.fresh then
        conversation.protocol = "omq"
        call.here.stage = "over"
        local item = show_version(call, at, "Client speaks version")
        item:add_proto_expert_info(E.refusal, "This version of omq is not spoken here")
    else
        call.here.stage, call.here.lost = "lost", BEGINNING
        return at
    end
    return at + 8
end

function stages.server_handshake(call, at)
    local conversation = call.conversation
    local octets = call.data:sub(at + 1, at + 8)
    if conversation.protocol == "dmp" and call.fresh ~= false then
        call.here.stage = "greeting"
        return at
    elseif #octets < 8 and may_become(octets, { VERSION_ONE, REFUSED }) then
        return nil
    elseif octets == VERSION_ONE then
        conversation.protocol = "omq"
        call.here.stage = "frames"
        show_version(call, at, "Server speaks version")
        return at + 8
    elseif octets == REFUSED then
        conversation.protocol = "omq"
        call.here.stage = "over"
        local item = show_version(call, at, "Server answers")
        item:add_proto_expert_info(E.refusal, "The server does not speak the client's version, and closes")
        return at + 8
    elseif conversation.protocol == "omq" and call.fresh then
        return malformed(call, at, "This is no answer to a handshake")
    end
    call.here.stage, call.here.lost = "lost", BEGINNING
    return at
end

-- == in the middle of a stream =============================================================================

-- When the capture began too late, or a segment is missing, nobody knows where a unit begins. A segment is
-- read from its first octet on when that surely begins one, and left out when it only might. A line is
-- easier: whatever stands after a line feed begins one.

local function is_topic_sexp(payload)
    return payload:find("^%(%(id %d+%)%(topic.+%)%)$")
end

local SURE_FRAMES = {
    Error = function(payload) return payload:find("^%u%l+[ -~]+$") end,
    Ping = function(payload) return #payload == 4 end,
    Confirmed = function(payload) return #payload == 8 end,
    Leased = function(payload) return #payload <= 255 and payload:find("^[!-~]+$") end,
    Topics = function(payload) return payload:find("^%([ -~]*%)$") end,
    Subscribed = is_topic_sexp, Unsubscribed = is_topic_sexp, Declared = is_topic_sexp,
    Deleted = is_topic_sexp,
}

-- Whether the octets from `at` on are frames: whole ones, and at the end perhaps the beginning of a Message.
local function are_frames(data, at)
    local found = false
    while #data - at >= 5 do
        local length, kind = number_at(data, at, 4), data:byte(at + 5)
        local after = at + 4 + length
        if length == 0 or length > omq.prefs.max_message_bytes + 13 then
            return false
        elseif kind == 2 then
            if #data - at < 17 then
                return found
            end
            local message, topic = number_at(data, at + 5, 8), number_at(data, at + 13, 4)
            -- No topic of this server has had more than 2^48 messages yet.
            if length < 13 or message == 0 or message > 2 ^ 48 or topic >= 2 ^ 31 then
                return false
            end
            found = true
        elseif after > #data then
            return found
        else
            local sure = SURE_FRAMES[FRAME_NAMES[kind]]
            if not sure or not sure(data:sub(at + 6, after)) then
                return false
            end
            found = true
        end
        at = after
    end
    return found
end

-- Return the begin of an envelope with consistent sizes: `at`, or a position after zeros, which may be null
-- messages, or the end of an envelope without a body; nil if there is none.
local function first_envelope(data, at)
    while data:sub(at + 1, at + 4) == "\0\0\0\0" do
        at = at + 4
    end
    if #data - at < 12 then
        return nil
    end
    local size = number_at(data, at, 4)
    if size < 8 or size > omq.prefs.max_message_bytes + LONGEST_HEAD + 4 then
        return nil
    end
    return read_envelope(data, at, size) and at
end

local function is_response(data, at)
    local length = data:byte(at + 1)
    local response = data:sub(at + 2, at + 1 + length)
    local code = tonumber(response:match("^(%d%d%d) "))
    return #response == length and CODES[code] and response:sub(5):find("^" .. CODES[code]:gsub("%-", "%%-"))
end

-- The stage in which the octets at `at` can be read, and where to begin; nil if nothing is sure.
local function find_stage(call, at)
    local data, protocol = call.data, call.conversation.protocol
    if call.from_client then
        local feed = data:find("\n", at + 1, true)
        if protocol ~= "dmp" and feed and read_command(data:sub(at + 1, feed - 1)) then
            return "lines", at, "omq"
        elseif protocol == "omq" and feed then
            return "lines", feed, "omq" -- no line goes on after a line feed
        end
    else
        if protocol ~= "dmp" and are_frames(data, at) then
            return "frames", at, "omq"
        elseif protocol ~= "omq" and is_response(data, at) then
            local ready = data:sub(at + 2, at + 1 + data:byte(at + 1)):find("^200 OK %u%l+ '.*' ready$")
            local greeting = data:sub(at + 2, at + 14) == "200 OK DP/0.1"
            return ready and "ready" or greeting and "greeting" or "responses", at, "dmp"
        end
    end
    local from = protocol ~= "omq" and first_envelope(data, at)
    if from then
        return "envelopes", from, "dmp"
    end
end

function stages.lost(call, at)
    local here, conversation = call.here, call.conversation
    local why = here.lost or BEGINNING
    local stage, from, protocol = find_stage(call, at)
    if not stage then
        return give_up(call, at, E.unseen, "Cannot be read: " .. why)
    end
    here.stage = stage
    if call.first then
        conversation.protocol = protocol
        if protocol == "dmp" and stage == "envelopes" then
            conversation.purpose = conversation.purpose or (call.from_client and "sink" or "feed")
        end
    end
    if from > at then
        unit(call, F.unread, at, from - at, nil, "The end of something")
        tell(call, "end", "the end of something")
    end
    root_of(call):add_proto_expert_info(E.unseen, "Read from here on: " .. why)
    return from
end

-- == connections ===========================================================================================

-- By their identity, and by the numbers of their packets.
local conversations, packets = {}, {}

function omq.init()
    conversations, packets, leases = {}, {}, {}
end

-- One side of a connection. `expect` is the position in the stream of the next unit, `pending` the same while
-- its octets are collected, and `behind` where that unit will be over, if that is known. Positions go on
-- beyond 2^32. `calls` has for each call of the dissector how things stood before, so that a packet that is
-- shown again, in any order, is shown alike.
local function new_direction(stage)
    return { stage = stage, count = 0, calls = {}, links = {} }
end

local function new_conversation(pinfo)
    -- The server's side is that of the port by which this dissector was found.
    local is_servers = pinfo.match_uint == pinfo.src_port and pinfo.match_uint ~= pinfo.dst_port
    return {
        server_port = is_servers and pinfo.src_port or pinfo.dst_port, topics = {}, waiting = {},
        client = new_direction("client_handshake"), server = new_direction("server_handshake"),
    }
end

local function begins_again(tvb)
    local octets = tvb:len() >= 8 and tvb:raw(0, 8)
    return octets == VERSION_ONE or octets == DMP_HEADER
end

-- Wireshark numbers its connections, but tells only when it makes a tree. It always does so for a packet that
-- is shown. In a first pass over all packets, which is there only for what they tell of later ones, it may do
-- without. Then the addresses must do; connections of the same addresses follow one another.
local function conversation_of(tvb, pinfo)
    if pinfo.visited then
        return packets[pinfo.number]
    end
    local key = value_of(tcp_stream)
    if not key then
        local one = tostring(pinfo.src) .. " " .. pinfo.src_port
        local other = tostring(pinfo.dst) .. " " .. pinfo.dst_port
        key = one < other and one .. " " .. other or other .. " " .. one
        local known = conversations[key]
        local to_server = known and known.server_port == pinfo.dst_port
        if to_server and not known.client.pending and begins_again(tvb) then
            conversations[key] = nil
        end
    end
    conversations[key] = conversations[key] or new_conversation(pinfo)
    packets[pinfo.number] = conversations[key]
    return conversations[key]
end

-- Return the position of the first octet of this call in the stream. And, with the first octets of a side,
-- return whether the stream begins with them.
local function locate(call)
    local direction = call.direction
    local reassembled = call.tvb:offset() == 0
    local seq = value_of(tcp_seq)
    if reassembled or not seq then
        return direction.pending or direction.expect or 0
    end
    -- The call gets the end of a segment, or all of it.
    seq = seq + value_of(tcp_len) - call.reported
    if not direction.expect then
        local syn = has_completeness and (value_of(tcp_completeness) or 0) % 2 == 1
        direction.fresh = syn and seq == 1
        return seq
    end
    local ahead = (seq - direction.expect) % 2 ^ 32
    return direction.expect + (ahead < 2 ^ 31 and ahead or ahead - 2 ^ 32)
end

-- In these stages any unit may follow any other, so one of them can be missing.
local ALIKE = { frames = true, envelopes = true, lines = true }

-- Before the first pass over these octets: is something missing, or here for a second time?
local function align(call)
    local direction = call.direction
    local ahead = call.position - (direction.expect or call.position)
    if ahead > 0 and not (ALIKE[direction.stage] and call.position == direction.behind) then
        direction.stage = "lost"
        direction.lost = "a segment before this one was not captured"
    end
    return ahead < 0 and math.min(-ahead, call.size) or 0
end

local function begin(call)
    local direction = call.direction
    -- Not how many octets it has: a later pass may be given fewer, because by then it is known where units
    -- end.
    local key = call.pinfo.number .. " " .. call.tvb:offset()
    if call.first then
        call.position = locate(call)
        call.skip = align(call)
        direction.calls[key] = {
            stage = direction.stage, count = direction.count, lost = direction.lost, position = call.position,
            skip = call.skip, fresh = direction.fresh,
        }
        call.fresh = direction.fresh
        call.here = direction
        return true
    end
    local before = direction.calls[key]
    if not before then
        return false -- the first pass has not read these octets in this way
    end
    call.position, call.skip, call.fresh = before.position, before.skip, before.fresh
    call.here = { stage = before.stage, count = before.count, lost = before.lost }
    return true
end

-- After the first pass over these octets, which went as far as `at`.
local function finish(call, at, needed)
    local direction = call.direction
    direction.expect = math.max(call.position + at, direction.expect or 0)
    direction.pending, direction.behind = nil, nil
    if at < call.size then
        direction.pending = call.position + at
        direction.behind = needed and call.position + at + needed
    end
end

local CUT = "the capture has only the beginning of a packet"

-- Not all of the unit at `at` is there. Ask for the rest; or, where that cannot be had, leave the unit out.
local function incomplete(call, at, needed)
    local why
    if call.size < call.reported then
        why = CUT
    elseif call.pinfo.can_desegment == 0 then
        why = "the rest is in later packets, and Wireshark's TCP is set not to reassemble them"
    else
        call.pinfo.desegment_offset = at
        call.pinfo.desegment_len = needed and needed - (call.size - at) or DESEGMENT_ONE_MORE_SEGMENT
        if call.first then
            finish(call, at, needed)
        end
        return
    end
    local item = unit(call, F.unread, at, call.size - at, nil, "The beginning of something")
    item:add_proto_expert_info(E.unseen, "Cut off: " .. why)
    tell(call, why, "cut off")
    -- The next unit begins at the end of this one, if that is not among the octets that are missing here.
    local after = needed and ALIKE[call.here.stage] and at + needed or 0
    if after < call.reported then
        call.here.stage, call.here.lost = "lost", why
        after = call.reported
    end
    if call.first then
        finish(call, after, nil)
    end
end

-- Other protocols than omq and DMP have a dissector of Wireshark's own.
local function foreign_dissector(call)
    if call.here.stage == "client_handshake" and call.size - call.skip >= 8 then
        local octets = call.data:sub(call.skip + 1, call.skip + 8)
        return FOREIGN[octets] or (octets:sub(1, 2) == "\22\3" and "tls") or nil
    end
end

function omq.dissector(tvb, pinfo, parent)
    local conversation = conversation_of(tvb, pinfo)
    if not conversation then
        return tvb:len()
    end
    local from_client = pinfo.dst_port == conversation.server_port
    local call = {
        tvb = tvb, pinfo = pinfo, parent = parent, conversation = conversation, from_client = from_client,
        direction = from_client and conversation.client or conversation.server,
        size = tvb:len(), reported = tvb:reported_len(), first = not pinfo.visited, units = 0, told = {},
    }
    if conversation.foreign then
        return Dissector.get(conversation.foreign):call(tvb, pinfo, parent)
    elseif call.size == 0 or not begin(call) then
        return call.size
    end
    call.data = tvb:raw()
    conversation.foreign = foreign_dissector(call)
    if conversation.foreign then
        return Dissector.get(conversation.foreign):call(tvb, pinfo, parent)
    end

    local at, after, needed = call.skip, nil, nil
    if at > 0 then
        unit(call, F.unread, 0, at, nil, counted(at, "octet") .. " of what was cut off, or seen before")
        tell(call, "rest", "the rest of what was cut off")
    end
    while at < call.size do
        after, needed = stages[call.here.stage](call, at)
        if not after then
            break
        end
        at = after
    end
    if at < call.size then
        incomplete(call, at, needed)
    else
        if call.size < call.reported then
            call.here.stage, call.here.lost = "lost", CUT
        end
        if call.first then
            finish(call, call.reported, nil)
        end
    end
    show_told(call)
    return call.size
end

register()
