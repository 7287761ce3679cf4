-- Wireshark dissector for MRC, the Multipath Reliable Connection.
--
--   tshark -X lua_script:tools/wireshark/mrc.lua -r FILE.pcap -V
--
-- or copy it to the folder that Wireshark shows under Help > About > Folders > Personal Lua Plugins.
--
-- Packets are found by their UDP destination port: 4971 and 4791, and one more by preference. What goes to
-- 4791 and is not MRC is left to Wireshark's RoCEv2 dissector. Field names are those of
-- `spindrift dissect --json`: field `cack` of header `seth` is mrc.seth.cack.

local mrc = Proto("mrc", "Multipath Reliable Connection")

mrc.prefs.port = Pref.uint("Another UDP port", 0, "Besides 4971 and 4791; 0 for none")
mrc.prefs.check_icrc = Pref.bool("Check the iCRC", true, "Compute the invariant CRC of each packet and compare")
mrc.prefs.trimmed = Pref.uint("DSCP of trimmed packets", 12, "What switches write on packets that they trim")
mrc.prefs.trimmed_last_hop =
    Pref.uint("DSCP of packets trimmed on the last hop", 16, "What switches write there")

local PORT_MRC, PORT_ROCE = 4971, 4791
local BTH_LEN, ICRC_LEN, UDP_LEN = 12, 4, 8

local OPCODES = {
    [0xC0] = "SEND_FIRST",
    [0xC1] = "SEND_MIDDLE",
    [0xC2] = "SEND_LAST",
    [0xC3] = "SEND_LAST_IMM",
    [0xC4] = "SEND_ONLY",
    [0xC5] = "SEND_ONLY_IMM",
    [0xC6] = "WRITE_FIRST",
    [0xC7] = "WRITE_MIDDLE",
    [0xC8] = "WRITE_LAST",
    [0xC9] = "WRITE_LAST_IMM",
    [0xCA] = "WRITE_ONLY",
    [0xCB] = "WRITE_ONLY_IMM",
    [0xCC] = "READ_REQUEST",
    [0xCD] = "READ_RESPONSE_FIRST",
    [0xCE] = "READ_RESPONSE_MIDDLE",
    [0xCF] = "READ_RESPONSE_LAST",
    [0xD0] = "READ_RESPONSE_ONLY",
    [0xD1] = "ACK",
    [0xD2] = "ATOMIC_RESPONSE",
    [0xD3] = "COMPARE_SWAP",
    [0xD4] = "FETCH_ADD",
    [0xD6] = "SEND_LAST_INVALIDATE",
    [0xD7] = "SEND_ONLY_INVALIDATE",
    [0xD8] = "ENDPOINT_REQUEST",
    [0xD9] = "ENDPOINT_RESPONSE",
    [0xDC] = "SACK",
    [0xDD] = "NACK",
    [0xDE] = "PROBE",
}
local NACK_REASONS = {
    [0x01] = "TRIMMED",
    [0x02] = "TRIMMED_LASTHOP",
    [0x06] = "NO_BITMAP",
    [0x07] = "NO_PKT_BUFFER",
    [0x0A] = "NO_RESOURCE",
    [0x0B] = "PSN_OOR_WINDOW",
    [0x19] = "UNEXP_EVENT",
}
local NO_RESOURCE = 0x0A
-- The wait that a code of the RNR timer stands for, in hundredths of a millisecond; the first is code 0.
local RNR_TIMERS = {
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}
local MARKS = { [0] = "NONE", [1] = "SKIP_ONCE", [2] = "ALWAYS_SKIP", [3] = "reserved" }
local ENDPOINT_OPS = { [0] = "PORT_STATUS_UPDATE", [1] = "EV_PROBE", [2] = "reserved", [3] = "reserved" }

local DEC, HEX, FLAG, SIGNED, BYTES = "dec", "hex", "flag", "signed", "bytes"

-- The headers. A field: name, kind, first byte, bytes; and, for bits inside those, the lowest bit and how many
-- (both of the number that the bytes make); and the names of its values.
local HEADERS = {
    {
        name = "bth", title = "Base transport header", len = BTH_LEN,
        { "opcode", HEX, 0, 1, values = OPCODES },
        { "solicited", FLAG, 1, 1, 7, 1 },
        { "migrated", FLAG, 1, 1, 6, 1 },
        { "pad", DEC, 1, 1, 4, 2 },
        { "tver", HEX, 1, 1, 0, 4 },
        { "pkey", HEX, 2, 2 },
        { "var_res", HEX, 4, 1 },
        { "dest_qpn", HEX, 5, 3 },
        { "ack_req", FLAG, 8, 1, 7, 1 },
        { "reserved", FLAG, 8, 1, 6, 1 },
        { "rtx", FLAG, 8, 1, 5, 1 },
        { "ts", FLAG, 8, 1, 4, 1 },
        { "inv_res", HEX, 8, 1, 0, 4 },
        { "psn", DEC, 9, 3 },
    },
    {
        name = "meth", title = "Message header", len = 4,
        { "rqmsn", DEC, 0, 2 },
        { "msn", DEC, 2, 2 },
    },
    {
        name = "tseth", title = "Timestamp header", len = 4,
        { "timestamp", DEC, 0, 2 },
        { "tsr", FLAG, 2, 2, 15, 1 },
        { "reserved", HEX, 2, 2, 4, 11 },
        { "ftype", DEC, 3, 1, 0, 4 },
    },
    {
        name = "reth", title = "RDMA header", len = 16,
        { "va", HEX, 0, 8 },
        { "rkey", HEX, 8, 4 },
        { "dma_len", DEC, 12, 4 },
    },
    {
        name = "immdt", title = "Immediate data", len = 4,
        { "data", HEX, 0, 4 },
    },
    {
        name = "ieth", title = "Key to invalidate", len = 4,
        { "rkey", HEX, 0, 4 },
    },
    {
        name = "atomiceth", title = "Operands of an atomic operation", len = 16,
        { "swap_or_add", HEX, 0, 8 },
        { "compare", HEX, 8, 8 },
    },
    {
        name = "aeth", title = "Acknowledgement header", len = 4,
        { "syndrome", HEX, 0, 1 },
        { "msn", DEC, 1, 3 },
    },
    {
        name = "seth", title = "Selective acknowledgement header", len = 28,
        { "reserved0", HEX, 0, 2, without = { { 5, 2 }, { 1, 1 } } },
        { "mark", DEC, 0, 2, 5, 2, values = MARKS },
        { "pr", FLAG, 0, 2, 1, 1 },
        { "ack_psn_offset", SIGNED, 2, 2 },
        { "entropy", HEX, 4, 4 },
        { "spdcid", HEX, 8, 2 },
        { "dpdcid", HEX, 10, 2 },
        { "reserved12", HEX, 12, 1 },
        { "cack", DEC, 13, 3 },
        { "cc_type", DEC, 16, 1, 4, 4 },
        { "cc_flags", HEX, 16, 1, 0, 4 },
        { "mpr", DEC, 17, 1 },
        { "sack_offset", SIGNED, 18, 2 },
        { "bitmap", HEX, 20, 8 },
    },
    {
        name = "cc", title = "Congestion state", len = 8,
        { "tx_timestamp", DEC, 0, 2 },
        { "reserved", FLAG, 2, 2, 15, 1 },
        { "ooo_count", DEC, 2, 2, 0, 15 },
        { "restore_cwnd", FLAG, 4, 1, 7, 1 },
        { "cwnd_penalty", DEC, 4, 1, 0, 7 },
        { "rcvd_bytes", DEC, 5, 3 },
    },
    {
        name = "neth", title = "Negative acknowledgement header", len = 20,
        { "reserved0", HEX, 0, 2 },
        { "reason", HEX, 2, 1, values = NACK_REASONS },
        { "vendor_info", HEX, 3, 1 },
        { "entropy", HEX, 4, 4 },
        { "spdcid", HEX, 8, 2 },
        { "dpdcid", HEX, 10, 2 },
        { "reserved12", HEX, 12, 1 },
        { "nack_psn", DEC, 13, 3 },
        { "cc_type", DEC, 16, 1, 4, 4 },
        { "cc_flags", HEX, 16, 1, 0, 4 },
        { "reserved17", HEX, 17, 1 },
        { "tx_timestamp", DEC, 18, 2 },
    },
    {
        name = "peth", title = "Reliability probe header", len = 16,
        { "reserved0", HEX, 0, 2 },
        { "reserved2", HEX, 2, 1 },
        { "vendor_info", HEX, 3, 1 },
        { "probe_id", DEC, 4, 2 },
        { "reserved6", HEX, 6, 2 },
        { "spdcid", HEX, 8, 2 },
        { "dpdcid", HEX, 10, 2 },
        { "tx_timestamp", DEC, 12, 2 },
        { "tsr", FLAG, 14, 2, 15, 1 },
        { "reserved14", HEX, 14, 2, 4, 11 },
        { "ftype", DEC, 15, 1, 0, 4 },
    },
    {
        name = "erth", title = "Endpoint request header", len = 16,
        { "reserved0", HEX, 0, 2, without = { { 0, 2 } } },
        { "op", DEC, 1, 1, 0, 2, values = ENDPOINT_OPS },
        { "reserved2", HEX, 2, 1 },
        { "vendor_info", HEX, 3, 1 },
        { "port_status_mask", HEX, 4, 4 },
        { "reserved8", HEX, 8, 4 },
        { "tx_timestamp", DEC, 12, 2 },
        { "tsr", FLAG, 14, 2, 15, 1 },
        { "reserved14", HEX, 14, 2, 4, 11 },
        { "ftype", DEC, 15, 1, 0, 4 },
    },
    -- Of the endpoint response, the operation stands at one of two positions; see add_eeth.
    {
        name = "eeth", title = "Endpoint response header", len = 36,
        { "reserved0", HEX, 0, 2 },
        { "op", DEC, 1, 1, 2, 2, values = ENDPOINT_OPS },
        { "reserved2", BYTES, 2, 26 },
        { "tx_timestamp", DEC, 28, 2 },
        { "reserved30", BYTES, 30, 6 },
    },
}

-- What follows the BTH of a control packet.
local CONTROL = {
    [0xD1] = { "aeth" },
    [0xD8] = { "erth" },
    [0xD9] = { "eeth" },
    [0xDC] = { "seth", "cc" },
    [0xDD] = { "neth" },
    [0xDE] = { "peth" },
}

-- What follows the RETH of a data packet, if anything does.
local AFTER_RETH = {
    [0xC3] = "immdt",
    [0xC5] = "immdt",
    [0xC9] = "immdt",
    [0xCB] = "immdt",
    [0xD3] = "atomiceth",
    [0xD4] = "atomiceth",
    [0xD6] = "ieth",
    [0xD7] = "ieth",
}

local UNSIGNED = {
    [1] = ProtoField.uint8,
    [2] = ProtoField.uint16,
    [3] = ProtoField.uint24,
    [4] = ProtoField.uint32,
    [8] = ProtoField.uint64,
}

local function make_field(header, field)
    local abbr = "mrc." .. header.name .. "." .. field[1]
    local label = (field[1]:gsub("_", " "))
    local kind = field[2]
    if kind == BYTES then
        return ProtoField.bytes(abbr, label)
    elseif kind == SIGNED then
        return ProtoField.int16(abbr, label, base.DEC)
    elseif kind == FLAG then
        return ProtoField.uint8(abbr, label, base.DEC)
    end
    return UNSIGNED[field[4]](abbr, label, kind == HEX and base.HEX or base.DEC, field.values)
end

local header_of = {}
local all_fields = {}
for _, header in ipairs(HEADERS) do
    header_of[header.name] = header
    for _, field in ipairs(header) do
        field.proto = make_field(header, field)
        all_fields[#all_fields + 1] = field.proto
    end
end

local own = {
    trimmed = ProtoField.string("mrc.trimmed", "Trimmed"),
    outer_dscp = ProtoField.uint8("mrc.outer.dscp", "DSCP of the outer IPv6 header", base.DEC),
    outer_ecn = ProtoField.uint8("mrc.outer.ecn", "ECN of the outer IPv6 header", base.DEC),
    rnr_timer = ProtoField.string("mrc.neth.rnr_timer", "RNR timer"),
    payload = ProtoField.bytes("mrc.payload", "Payload"),
    payload_len = ProtoField.uint32("mrc.payload_len", "Payload bytes", base.DEC),
    icrc = ProtoField.uint32("mrc.icrc.value", "Invariant CRC", base.HEX),
    icrc_expected = ProtoField.uint32("mrc.icrc.expected", "Expected", base.HEX),
    icrc_good = ProtoField.uint8("mrc.icrc.good", "Good", base.DEC),
}
for _, field in pairs(own) do
    all_fields[#all_fields + 1] = field
end
mrc.fields = all_fields

local bad_icrc =
    ProtoExpert.new("mrc.icrc.bad", "The invariant CRC is wrong", expert.group.CHECKSUM, expert.severity.ERROR)
local malformed =
    ProtoExpert.new("mrc.malformed", "Not a whole MRC packet", expert.group.MALFORMED, expert.severity.ERROR)
mrc.experts = { bad_icrc, malformed }

local ip_field, ipv6_field, udp_field = Field.new("ip"), Field.new("ipv6"), Field.new("udp")

-- Bits of a number, without an operator that some versions of Lua lack.
local function bits_of(number, lowest, count)
    return math.floor(number / 2 ^ lowest) % math.floor(2 ^ count)
end

local function value_of(field, range)
    local value = range:uint()
    for _, hole in ipairs(field.without or {}) do
        value = value - bits_of(value, hole[1], hole[2]) * math.floor(2 ^ hole[1])
    end
    if field[5] then
        value = bits_of(value, field[5], field[6])
    end
    return value
end

local function add_field(tree, field, header_range)
    local range = header_range:range(field[3], field[4])
    if field[2] == BYTES or field[4] == 8 then
        return tree:add(field.proto, range)
    elseif field[2] == SIGNED then
        return tree:add(field.proto, range, range:int())
    end
    return tree:add(field.proto, range, value_of(field, range))
end

-- Readers of the specification disagree about where the operation stands: bits 5 and 4, if those are set and
-- bits 3 and 2 are not, else bits 3 and 2.
local function add_eeth(tree, header, range)
    local word = range:range(0, 2):uint()
    local low, high = bits_of(word, 2, 2), bits_of(word, 4, 2)
    local at, op = 2, low
    if high ~= 0 and low == 0 then
        at, op = 4, high
    end
    for _, field in ipairs(header) do
        if field[1] == "op" then
            tree:add(field.proto, range:range(1, 1), op)
        elseif field[1] == "reserved0" then
            tree:add(field.proto, range:range(0, 2), word - op * math.floor(2 ^ at))
        else
            add_field(tree, field, range)
        end
    end
end

-- Adds a header at offset `at` and returns the offset behind it, or nil if it is not all there.
local function add_header(tree, name, tvb, at, limit)
    local header = header_of[name]
    if at + header.len > limit then
        return nil
    end
    local range = tvb:range(at, header.len)
    local subtree = tree:add(range, header.title)
    if name == "eeth" then
        add_eeth(subtree, header, range)
    else
        for _, field in ipairs(header) do
            add_field(subtree, field, range)
        end
    end
    if name == "neth" and range:range(2, 1):uint() == NO_RESOURCE then
        local timer = RNR_TIMERS[bits_of(range:range(3, 1):uint(), 0, 5) + 1]
        local text = string.format("%d.%02d ms", math.floor(timer / 100), timer % 100)
        subtree:add(own.rnr_timer, range:range(3, 1), text):set_generated()
    end
    return at + header.len
end

local IPV4_INSIDE, IPV6_INSIDE = 4, 41
local UDP, HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS = 17, 0, 43, 60
local SEGMENT_ROUTING = 4
local IPV6_LEN = 40
-- Extension headers that are followed in one packet, as many as `spindrift dissect` follows.
local EXTENSIONS_MAX = 8

-- The IPv6 header that the iCRC covers: without the extension headers, and with the destination that the packet
-- will have where it arrives. Nil if what follows the extension headers is not UDP
-- or not in the packet, or they are too many.
local function without_extensions(ip)
    local packet = ip.source
    local header = packet:range(ip.offset, IPV6_LEN)
    local bytes = header:bytes():raw()
    local next_header, len, destination = header:range(6, 1):uint(), 0, bytes:sub(25, 40)
    for _ = 1, EXTENSIONS_MAX do
        if next_header ~= HOP_BY_HOP and next_header ~= ROUTING and next_header ~= DESTINATION_OPTIONS then
            break
        end
        local at = ip.offset + IPV6_LEN + len
        if at + 8 > packet:len() then
            return nil
        end
        local units = packet:range(at + 1, 1):uint()
        if next_header == ROUTING and packet:range(at + 2, 1):uint() == SEGMENT_ROUTING
            and packet:range(at + 3, 1):uint() ~= 0 and units >= 2 and at + 24 <= packet:len() then
            -- Segments are left; the last segment of the way stands first in the list.
            destination = packet:range(at + 8, 16):bytes():raw()
        end
        next_header = packet:range(at, 1):uint()
        len = len + (units + 1) * 8
    end
    local payload_len = header:range(4, 2):uint()
    if next_header ~= UDP or payload_len ~= 0 and payload_len <= len then
        return nil
    end
    payload_len = math.max(payload_len - len, 0)
    local length = string.char(math.floor(payload_len / 256), payload_len % 256)
    return bytes:sub(1, 4) .. length .. string.char(UDP) .. bytes:sub(8, 24) .. destination
end

-- The traffic class of the IPv6 header that carries the IP packet `ip` between switches, which mark that one. Nil if none does.
local function carrier_of(ip)
    for _, info in ipairs({ ipv6_field() }) do
        local packet, at = info.source, info.offset + IPV6_LEN
        if info.offset < ip.offset and at <= packet:len() then
            local next_header = packet:range(info.offset + 6, 1):uint()
            for _ = 1, EXTENSIONS_MAX do
                if next_header ~= HOP_BY_HOP and next_header ~= ROUTING and next_header ~= DESTINATION_OPTIONS
                    or at + 8 > packet:len() then
                    break
                end
                next_header = packet:range(at, 1):uint()
                at = at + (packet:range(at + 1, 1):uint() + 1) * 8
            end
            if at == ip.offset and (next_header == IPV6_INSIDE or next_header == IPV4_INSIDE) then
                return bits_of(packet:range(info.offset, 2):uint(), 4, 8)
            end
        end
    end
    return nil
end

-- The innermost IP header and the UDP header of the packet at hand, as strings of bytes. Nil where they are not
-- there; with true where they are, and `spindrift dissect` does not take the packet for MRC.
local function lower_headers()
    local ip, udp
    for _, candidates in ipairs({ { ip_field() }, { ipv6_field() } }) do
        for _, info in ipairs(candidates) do
            if not ip or info.offset > ip.offset then
                ip = info
            end
        end
    end
    for _, info in ipairs({ udp_field() }) do
        udp = info
    end
    if not ip or not udp then
        return nil
    end
    local first = ip.range:range(0, 1):uint()
    local version = bits_of(first, 4, 4)
    local ip_len = version == 6 and IPV6_LEN or bits_of(first, 0, 4) * 4
    if ip.range:len() < ip_len or udp.range:len() < UDP_LEN then
        return nil
    end
    local ip_bytes = ip.range:range(0, ip_len):bytes():raw()
    local udp_bytes = udp.range:range(0, UDP_LEN):bytes():raw()
    if version == 6 and ip_bytes:byte(7) ~= UDP then
        ip_bytes = without_extensions(ip)
        if not ip_bytes then
            return nil, true
        end
    end
    return {
        version = version,
        ip = ip_bytes,
        udp = udp_bytes,
        udp_end = udp.offset + UDP_LEN,
        carrier = carrier_of(ip),
    }
end

local function trim_of(lower)
    if not lower then
        return nil
    end
    local dscp
    if lower.carrier then
        dscp = bits_of(lower.carrier, 2, 6)
    elseif lower.version == 6 then
        dscp = bits_of(lower.ip:byte(1) * 256 + lower.ip:byte(2), 6, 6)
    else
        dscp = bits_of(lower.ip:byte(2), 2, 6)
    end
    if dscp == mrc.prefs.trimmed then
        return "fabric"
    elseif dscp == mrc.prefs.trimmed_last_hop then
        return "last-hop"
    end
    return nil
end

local CRC_TABLE = {}
for byte = 0, 255 do
    local crc = byte
    for _ = 1, 8 do
        local out = bit.band(crc, 1)
        crc = bit.rshift(crc, 1)
        if out == 1 then
            crc = bit.bxor(crc, 0xEDB88320)
        end
    end
    CRC_TABLE[byte] = crc
end

local function crc_update(crc, bytes)
    local band, bxor, rshift, byte = bit.band, bit.bxor, bit.rshift, string.byte
    for at = 1, #bytes do
        crc = bxor(rshift(crc, 8), CRC_TABLE[band(bxor(crc, byte(bytes, at)), 0xFF)])
    end
    return crc
end

local function mask(bytes, from, to)
    return bytes:sub(1, from - 1) .. string.rep("\255", to - from + 1) .. bytes:sub(to + 1)
end

-- The invariant CRC (RoCEv2 rules) as the number that its four bytes make in the order of the wire.
local function icrc_of(lower, covered)
    local ip = lower.ip
    if lower.version == 6 then
        -- Traffic class, flow label; hop limit.
        ip = string.char(0x6F) .. mask(mask(ip, 2, 4), 8, 8):sub(2)
    else
        -- Type of service; time to live; checksum.
        ip = mask(mask(mask(ip, 2, 2), 9, 9), 11, 12)
    end
    local crc = crc_update(-1, string.rep("\255", 8))
    crc = crc_update(crc, ip)
    crc = crc_update(crc, mask(lower.udp, 7, 8))
    crc = crc_update(crc, mask(covered:sub(1, BTH_LEN), 5, 5))
    crc = crc_update(crc, covered:sub(BTH_LEN + 1))
    crc = bit.bxor(crc, -1)
    local number = 0
    for _ = 1, 4 do
        number = number * 256 + bit.band(crc, 0xFF)
        crc = bit.rshift(crc, 8)
    end
    return number
end

local function add_icrc(tree, tvb, at, lower)
    local range = tvb:range(at, ICRC_LEN)
    local found = range:uint()
    local item = tree:add(own.icrc, range, found)
    if not mrc.prefs.check_icrc or not lower then
        item:append_text(" [not checked]")
        return
    end
    local expected = icrc_of(lower, tvb:range(0, at):bytes():raw())
    local good = expected == found
    item:add(own.icrc_expected, range, expected):set_generated()
    item:add(own.icrc_good, range, good and 1 or 0):set_generated()
    if good then
        item:append_text(" [good]")
    else
        item:append_text(string.format(" [BAD: expected 0x%08x]", expected))
        item:add_proto_expert_info(bad_icrc)
    end
end

-- The headers behind the BTH of a data packet. Returns the offset behind them, or nil.
local function add_data(tree, opcode, tvb, limit, trimmed)
    local at = add_header(tree, "meth", tvb, BTH_LEN, limit)
    if at and bits_of(tvb:range(8, 1):uint(), 4, 1) == 1 then
        at = add_header(tree, "tseth", tvb, at, limit)
    end
    if trimmed then
        -- What follows may be cut anywhere.
        return at
    end
    at = at and add_header(tree, "reth", tvb, at, limit)
    if at and AFTER_RETH[opcode] then
        at = add_header(tree, AFTER_RETH[opcode], tvb, at, limit)
    end
    return at
end

local function add_control(tree, opcode, tvb, limit)
    local at = BTH_LEN
    for _, name in ipairs(CONTROL[opcode]) do
        at = at and add_header(tree, name, tvb, at, limit)
    end
    return at
end

-- `limit` may lie beyond what was captured.
local function add_payload(tree, tvb, at, limit)
    local len = limit - at - bits_of(tvb:range(1, 1):uint(), 4, 2)
    if len < 0 then
        return false
    end
    local there = math.min(len, tvb:len() - at)
    if there > 0 then
        tree:add(own.payload, tvb:range(at, there))
    end
    tree:add(own.payload_len, tvb:range(0, 0), len):set_generated()
    return true
end

-- Whether the packet is whole, as far as it was captured.
local function add_headers(tree, opcode, tvb, limit, trimmed)
    local there = math.min(limit, tvb:len())
    local at = add_header(tree, "bth", tvb, 0, there)
    if not at then
        return false
    elseif not CONTROL[opcode] then
        at = add_data(tree, opcode, tvb, there, trimmed)
        return at and (trimmed or add_payload(tree, tvb, at, limit))
    end
    return not trimmed and add_control(tree, opcode, tvb, there) == limit
end

local function dissect(tvb, pinfo, tree, lower)
    local opcode = tvb:range(0, 1):uint()
    pinfo.cols.protocol = "MRC"
    local subtree = tree:add(mrc, tvb:range())
    local trimmed = trim_of(lower)
    local wire_len = tvb:reported_len()
    -- A trimmed packet has lost its iCRC.
    local limit = trimmed and tvb:len() or wire_len - ICRC_LEN
    local text = OPCODES[opcode]
    if tvb:len() >= BTH_LEN then
        text = string.format("%s qp 0x%06x psn %d", text, tvb:range(5, 3):uint(), tvb:range(9, 3):uint())
    end
    if trimmed then
        text = text .. " trimmed"
        subtree:add(own.trimmed, tvb:range(0, 0), trimmed):set_generated()
    end
    if lower and lower.carrier then
        subtree:add(own.outer_dscp, tvb:range(0, 0), bits_of(lower.carrier, 2, 6)):set_generated()
        subtree:add(own.outer_ecn, tvb:range(0, 0), bits_of(lower.carrier, 0, 2)):set_generated()
    end
    pinfo.cols.info = text
    subtree:append_text(", " .. text)
    if not add_headers(subtree, opcode, tvb, limit, trimmed) then
        subtree:add_proto_expert_info(malformed)
    end
    if not trimmed and wire_len == tvb:len() and limit >= 0 then
        add_icrc(subtree, tvb, limit, lower)
    end
end

local function is_mrc_port(port)
    return port == PORT_MRC or port == PORT_ROCE or (mrc.prefs.port ~= 0 and port == mrc.prefs.port)
end

local udp_ports = DissectorTable.get("udp.port")
local roce = udp_ports:get_dissector(PORT_ROCE)

function mrc.dissector(tvb, pinfo, tree)
    -- Source ports are entropy: only the destination says anything.
    local is_mrc = is_mrc_port(pinfo.dst_port) and tvb:len() >= 1 and OPCODES[tvb:range(0, 1):uint()]
    if not is_mrc then
        if roce and (pinfo.dst_port == PORT_ROCE or pinfo.src_port == PORT_ROCE) then
            return roce:call(tvb, pinfo, tree)
        end
        return 0
    end
    local lower, refused = lower_headers()
    if refused then
        return 0
    end
    dissect(tvb, pinfo, tree, lower)
    return tvb:len()
end

-- Wireshark asks the dissector of the lower port first, be it the source's, which is entropy here and may be any.
-- So the destination port is looked at before all that.
mrc:register_heuristic("udp", function(tvb, pinfo, tree)
    if not is_mrc_port(pinfo.dst_port) or tvb:len() < 1 or not OPCODES[tvb:range(0, 1):uint()] then
        return false
    end
    local lower, refused = lower_headers()
    if refused then
        return false
    end
    dissect(tvb, pinfo, tree, lower)
    return true
end)
set_preference("udp.try_heuristic_first", true)

udp_ports:add(PORT_MRC, mrc)
udp_ports:add(PORT_ROCE, mrc)

local added_port = 0
function mrc.prefs_changed()
    if mrc.prefs.port == added_port then
        return
    end
    if added_port ~= 0 then
        udp_ports:remove(added_port, mrc)
    end
    added_port = mrc.prefs.port
    if added_port ~= 0 then
        udp_ports:add(added_port, mrc)
    end
end

-- A switch that trims a packet need not correct the UDP length, and Wireshark stops at a UDP header that
-- announces more than the IP packet holds. Those packets are taken up here, after everything else.
local trimmed_proto = Proto("mrc_trimmed", "MRC, trimmed with a stale UDP length")
local mrc_opcode = Field.new("mrc.bth.opcode")

function trimmed_proto.dissector(tvb, pinfo, tree)
    if mrc_opcode() or not is_mrc_port(pinfo.dst_port) then
        return
    end
    local lower = lower_headers()
    if lower and trim_of(lower) and lower.udp_end < tvb:len() and OPCODES[tvb:range(lower.udp_end, 1):uint()] then
        dissect(tvb:range(lower.udp_end):tvb(), pinfo, tree, lower)
    end
end

register_postdissector(trimmed_proto)
