# Runs of transfers of AMQP 1.0, blocks as transfers, and the dispositions that settle them.

cdef enum:
    TRANSFER_HEAD = 8  # of a frame: size, data offset, type, channel
    LONGEST_TAG = 32
    MOST_AROUND = 60000  # the octets around a body that a stored head can hold
    WIDE_FORM = 16
    AROUND_NAME = 10
    AROUND_AT = 8 + AROUND_NAME + 4  # in a stored head: where the form is
    LONGEST_OPENING = 64

cdef const char* _AROUND_NAME = b"\x08amqp-1.0x"


cdef struct TransferFrame:
    uint16_t channel
    uint32_t handle
    uint32_t delivery
    bint settled
    int64_t payload
    int64_t end


cdef int64_t after_uint(const uint8_t* octets, int64_t at, int64_t end, uint32_t* number) noexcept nogil:
    """Read the uint at `at`; return where it ends, or -1 if there is none."""
    if at >= end:
        return -1
    if octets[at] == 0x43:
        number[0] = 0
        return at + 1
    if octets[at] == 0x52 and end - at >= 2:
        number[0] = octets[at + 1]
        return at + 2
    if octets[at] == 0x70 and end - at >= 5:
        number[0] = get_u32(octets + at + 1)
        return at + 5
    return -1


cdef bint whole_transfer(
    const uint8_t* octets, int64_t at, int64_t end, int64_t largest, TransferFrame* found
) noexcept nogil:
    """Read the frame of a whole message in the common form at `at`; return False if there is none."""
    cdef int64_t size, stop, fields
    cdef uint32_t count, number
    cdef uint8_t value
    if end - at < TRANSFER_HEAD + 7:
        return False
    size = get_u32(octets + at)
    if size > largest or size > end - at or size < TRANSFER_HEAD + 7 or get_u16(octets + at + 4) != 0x0200:
        return False
    end = at + size
    found.end = end
    found.channel = get_u16(octets + at + 6)
    at += TRANSFER_HEAD
    if octets[at] != 0 or octets[at + 1] != 0x53 or octets[at + 2] != 0x14:
        return False
    at += 3
    if octets[at] == 0xC0:
        fields = at + 2
        stop = fields + octets[at + 1]
        count = octets[fields]
        at = fields + 1
    elif octets[at] == 0xD0 and end - at >= 9:
        fields = at + 5
        stop = fields + get_u32(octets + at + 1)
        count = get_u32(octets + fields)
        at = fields + 4
    else:
        return False
    if stop > end or at > stop or not 3 <= count <= 11:
        return False
    at = after_uint(octets, at, stop, &found.handle)
    if at < 0:
        return False
    at = after_uint(octets, at, stop, &found.delivery)
    if at < 0 or stop - at < 2 or octets[at] != 0xA0 or octets[at + 1] > LONGEST_TAG:
        return False
    at += 2 + octets[at + 1]
    found.settled = False
    for fields in range(3, count):
        if at >= stop:
            return False
        value = octets[at]
        if value == 0x40:
            at += 1
        elif fields == 3:  # message-format
            at = after_uint(octets, at, stop, &number)
            if at < 0 or number:
                return False
        elif fields == 4 or fields == 10:  # settled, batchable
            if value != 0x41 and value != 0x42:
                return False
            if fields == 4:
                found.settled = value == 0x41
            at += 1
        elif fields == 5 or fields == 8 or fields == 9:  # more, resume, aborted
            if value != 0x42:
                return False
            at += 1
        else:
            return False
    found.payload = stop
    return at == stop


cdef int64_t after_value(const uint8_t* octets, int64_t at, int64_t end) noexcept nogil:
    """Return the end of the value at `at`, which has no descriptor; -1 if there is none. Do not look into it."""
    cdef uint8_t constructor = octets[at]
    cdef uint8_t low = constructor & 15
    if constructor == 0:
        return -1
    switch = constructor >> 4
    if switch == 4 and low <= 5:
        return at + 1
    if switch == 5 and low <= 6:
        return at + 2
    if switch == 6 and low <= 1:
        return at + 3
    if switch == 7 and low <= 4:
        return at + 5
    if switch == 8 and low <= 4:
        return at + 9
    if switch == 9 and (low == 4 or low == 8):
        return at + 17
    if (switch == 0xA or switch == 0xB) and low != 0 and low != 1 and low != 3:
        return -1
    if (switch == 0xC or switch == 0xD) and low > 1:
        return -1
    if switch == 0xE or switch == 0xF:
        if low:
            return -1
    elif switch < 0xA:
        return -1
    if switch & 1:
        return at + 5 + <int64_t>get_u32(octets + at + 1) if end - at >= 5 else -1
    return at + 2 + octets[at + 1] if end - at >= 2 else -1


cdef int64_t body_of(
    const uint8_t* octets, int64_t at, int64_t end, int64_t* body, int* form
) noexcept nogil:
    """Find the only body section of a message whose content is stored without it. Return where the section begins, or
    -1 for a message of another form."""
    cdef uint8_t code, constructor, last = 0
    cdef int64_t length
    while end - at >= 4 and octets[at] == 0 and octets[at + 1] == 0x53:
        code = octets[at + 2]
        constructor = octets[at + 3]
        if code == 0x75 or code == 0x77:
            if code == 0x77 and (constructor & 0xEF) == 0xA1:
                form[0] = 1
            elif (constructor & 0xEF) == 0xA0:
                form[0] = 0 if code == 0x75 else 2
            elif code == 0x77:
                form[0] = 3
                body[0] = at
                return at if after_value(octets, at + 3, end) == end else -1
            else:
                return -1
            if constructor < 0xB0 and end - at >= 5:
                length = octets[at + 4]
                body[0] = at + 5
            elif constructor >= 0xB0 and end - at >= 8:
                length = get_u32(octets + at + 4)
                body[0] = at + 8
                if length < 256:
                    form[0] += WIDE_FORM
            else:
                return -1
            return at if body[0] + length == end else -1
        # The delivery-annotations, 0x71, are not stored.
        if code <= last or not 0x70 <= code <= 0x74 or code == 0x71:
            return -1
        last = code
        if code == 0x70 or code == 0x73:
            if constructor == 0x45:
                at += 4
                continue
            if constructor != 0xC0 and constructor != 0xD0:
                return -1
        elif constructor != 0xC1 and constructor != 0xD1:
            return -1
        if constructor < 0xD0 and end - at >= 5:
            at += 5 + octets[at + 4]
        elif constructor >= 0xD0 and end - at >= 8:
            at += 8 + <int64_t>get_u32(octets + at + 4)
        else:
            return -1
    return -1


cdef enum:
    TTL_FIELD = 2  # of a header
    EXPIRY_FIELD = 8  # of properties: absolute-expiry-time


cdef int64_t after_field(const uint8_t* octets, int64_t at, int64_t end) noexcept nogil:
    """Return the end of the value at `at`, with its descriptors; -1 if it does not end by `end`."""
    for _ in range(MAX_NESTING):
        if at < 0 or at >= end:
            return -1
        if octets[at] != 0:
            at = after_value(octets, at, end)
            return at if at <= end else -1
        at = after_value(octets, at + 1, end) if at + 1 < end else -1
    return -1


cdef int64_t field_of(const uint8_t* octets, int64_t at, int64_t end, uint32_t number) noexcept nogil:
    """Return the begin of a field of the list at `octets[at]`; `end` if the list does not have it, and -1 for one that
    the plain code looks at."""
    cdef uint32_t count
    cdef int64_t begin = at
    if octets[at] == 0x45:
        return end
    if octets[at] == 0xC0:
        if end - at < 3:
            return -1
        count = octets[at + 2]
        at += 3
    else:
        if end - at < 9:
            return -1
        count = get_u32(octets + at + 5)
        at += 9
    if count > end - at:
        return -1
    if count <= number:
        return end
    for count in range(number + 1):
        begin = at
        at = after_field(octets, at, end)
        if at < 0:
            return -1
    return begin


cdef int64_t time_to_live(const uint8_t* octets, int64_t at, int64_t end, int64_t* ttl) noexcept nogil:
    """Read the time that the message with these sections before its body may wait, in milliseconds; -1 without a limit.
    Return whether it has an absolute time, too, which is not looked at; -1 for a message that the plain code looks at.
    """
    cdef int64_t value, after, place
    cdef bint is_timed = False
    cdef uint32_t milliseconds
    cdef uint8_t code
    ttl[0] = -1
    while at < end:
        code = octets[at + 2]
        value = at + 3
        if octets[value] == 0x45:
            at += 4
            continue
        after = at + 5 + octets[at + 4] if octets[value] < 0xD0 else at + 8 + <int64_t>get_u32(octets + at + 4)
        if code == 0x70:
            place = field_of(octets, value, after, TTL_FIELD)
            if place < 0:
                return -1
            if after_uint(octets, place, after, &milliseconds) >= 0:
                ttl[0] = milliseconds
        elif code == 0x73:
            place = field_of(octets, value, after, EXPIRY_FIELD)
            if place < 0:
                return -1
            is_timed = is_timed or (place < after and octets[place] != 0x40)
        at = after
    return is_timed


def take_transfers(bytes data not None, Py_ssize_t position, max_frame, Py_ssize_t most):
    """Take whole messages of one link from `position` on, one in a frame, with consecutive delivery-ids; at most `most`.

    Return the position after them, channel, handle, the first delivery-id, whether they are settled, the size of the
    longest one with its sections, whether it is one message with an absolute-expiry-time, which its head does not
    have, their spans, and a head for each or None.  None if there is no message in the common form.
    """
    cdef const uint8_t* octets = octets_of(data)
    cdef int64_t size = PyBytes_GET_SIZE(data)
    cdef int64_t at = position
    cdef int64_t largest = min(max(max_frame, 0), LONGEST_SIZE)
    cdef int64_t section, body = 0, before, known = 0, known_length = -1, longest = 0
    cdef int64_t ttl = -1
    cdef int form = 0, known_form = -1, timed = 0
    cdef TransferFrame first, next
    cdef Spans spans
    cdef list heads
    cdef bytes head = b""
    cdef bint has_heads = False
    if not 0 <= at <= size:
        raise ValueError(f"{position} is not within 0 to {size}.")
    if not whole_transfer(octets, at, size, largest, &first):
        return None
    next = first
    spans = Spans(data)
    heads = []
    while True:
        section = body_of(octets, next.payload, next.end, &body, &form)
        before = section - next.payload
        if section < 0 or before > MOST_AROUND:
            break
        if form != known_form or before != known_length or memcmp(octets + next.payload, octets + known, before):
            timed = <int>time_to_live(octets, next.payload, section, &ttl)
            if timed < 0 or (timed and spans.count):
                timed = 0
                break
            known, known_length, known_form = next.payload, before, form
            head = around_head(octets + known, before, form, ttl) if form or before else b""
            has_heads = has_heads or form or before
        heads.append(head)
        spans.add(octets + body, <uint32_t>(next.end - body), <uint32_t>(next.end - body), 0, 0)
        longest = max(longest, next.end - next.payload)
        at = next.end
        if timed or spans.count >= most or not whole_transfer(octets, at, size, largest, &next):
            break
        if (
            next.channel != first.channel
            or next.handle != first.handle
            or next.settled != first.settled
            or next.delivery != <uint32_t>(first.delivery + <uint32_t>spans.count)
        ):
            break
    if not spans.count:
        return None
    return (
        at, first.channel, first.handle, first.delivery, bool(first.settled), longest, bool(timed), spans,
        heads if has_heads else None,
    )


cdef bytes around_head(const uint8_t* before, int64_t size, int form, int64_t ttl):
    """Return the stored head that holds the sections before a body, with the property expiration if there is a `ttl`."""
    cdef int64_t digits = 0, rest = ttl
    cdef bytes head
    cdef uint8_t* out
    if ttl >= 0:
        digits = 1
        while rest >= 10:
            rest //= 10
            digits += 1
    head = PyBytes_FromStringAndSize(NULL, AROUND_AT + 5 + size + (1 + digits if digits else 0))
    out = octets_of(head)
    put_u32(out, 0x00002100 if digits else 0x00002000)
    put_u32(out + 4, <uint32_t>(AROUND_NAME + 4 + 5 + size))
    memcpy(out + 8, _AROUND_NAME, AROUND_NAME)
    put_u32(out + 8 + AROUND_NAME, <uint32_t>(5 + size))
    out[AROUND_AT] = <uint8_t>form
    put_u32(out + AROUND_AT + 1, <uint32_t>size)
    memcpy(out + AROUND_AT + 5, before, size)
    if digits:
        out += AROUND_AT + 5 + size
        out[0] = <uint8_t>digits
        for rest in range(digits, 0, -1):
            out[rest] = <uint8_t>(48 + ttl % 10)
            ttl //= 10
    return head


cdef struct Around:
    int form
    const uint8_t* before
    int64_t before_size
    const uint8_t* after
    int64_t after_size


cdef bint read_around(const uint8_t* head, int64_t size, Around* around) noexcept nogil:
    """Read a stored head that holds the sections around a body; return False for another one."""
    cdef int64_t before, end = size
    if size < AROUND_AT + 5 or memcmp(head + 8, _AROUND_NAME, AROUND_NAME):
        return False
    if get_u32(head) == 0x00002100:  # the property expiration follows
        end = 8 + <int64_t>get_u32(head + 4)
        if end >= size or end + 1 + head[end] != size or end < AROUND_AT + 5:
            return False
    elif get_u32(head) != 0x00002000:
        return False
    before = get_u32(head + AROUND_AT + 1)
    if get_u32(head + 8 + AROUND_NAME) != end - AROUND_AT or before > end - AROUND_AT - 5:
        return False
    around.form = head[AROUND_AT]
    around.before = head + AROUND_AT + 5
    around.before_size = before
    around.after = around.before + before
    around.after_size = end - AROUND_AT - 5 - before
    return True


def transfers(
    frames, offsets, head_offsets, head_octets, begin, end, step, channel, bytes handle not None, delivery, message,
    settled, room, around,
):
    """Return the messages at these indexes as transfers with delivery-ids from `delivery` on, one in a frame, up to the
    first one of more than `room` octets with its sections; and their number.

    `handle` is encoded, and `message` is the first id.  `around(head)` gives form, octets before and octets after the
    body of a message with a head of another protocol.  If it gives None, the transfers end before this message.
    `head_offsets` is None where no message has a head.  None for indexes or offsets that lead outside.
    """
    cdef Views views = Views(frames, offsets)
    cdef Views heads = None if head_offsets is None else Views(head_octets, head_offsets)
    if step < 1 or not 0 <= begin <= end <= views.count or (heads is not None and heads.count != views.count):
        return None
    if not 0 <= room <= LONGEST_SIZE or PyBytes_GET_SIZE(handle) > 5:
        return None
    cdef int64_t stride = min(step, views.count + 1)
    cdef int64_t i = begin
    cdef int64_t stop = end
    cdef int64_t most = room
    cdef uint16_t number = channel
    cdef uint32_t id = delivery
    cdef uint64_t tag = message
    cdef uint64_t rest
    cdef int64_t frame, after, head = 0, head_end = 0, size, payload, performative, digits, wide
    cdef int64_t handle_size = PyBytes_GET_SIZE(handle)
    cdef int64_t count = 0
    cdef uint8_t flag = 0x41 if settled else 0x42
    cdef int form, content
    cdef Around parts
    cdef bytes before = b"", behind = b""
    cdef bytes known = None
    cdef object found
    cdef Written written = None
    cdef uint8_t* out
    cdef int k
    while i < stop:
        if not views.bounds(i, &frame, &after) or after - frame < HEADER:
            return None
        if heads is not None and not heads.bounds(i, &head, &head_end):
            return None
        size = after - frame - HEADER
        if head_end == head:
            parts.form = 0
            parts.before_size = parts.after_size = 0
        elif not read_around(heads.frames + head, head_end - head, &parts):
            if known is None or PyBytes_GET_SIZE(known) != head_end - head or memcmp(
                octets_of(known), heads.frames + head, head_end - head
            ):
                known = PyBytes_FromStringAndSize(<const char*>heads.frames + head, head_end - head)
                found = around(known)
                if found is None:
                    break
                form, before, behind = found
            parts.form = form
            parts.before = octets_of(before)
            parts.before_size = PyBytes_GET_SIZE(before)
            parts.after = octets_of(behind)
            parts.after_size = PyBytes_GET_SIZE(behind)
        content = parts.form & ~WIDE_FORM
        wide = 0
        if content <= 2:
            wide = 8 if size >= 256 or parts.form & WIDE_FORM else 5
        payload = parts.before_size + wide + size + parts.after_size
        if payload > most:
            break
        digits = 1
        rest = tag
        while rest >= 10:
            rest //= 10
            digits += 1
        performative = 6 + handle_size + 5 + 2 + digits + 3
        if written is None:
            # Exact where all messages are alike, and never much more than they take.
            written = Written(
                ((stop - i + stride - 1) // stride)
                * (LONGEST_OPENING + min(payload, 64 + views.size // views.count))
            )
        out = written.room(TRANSFER_HEAD + performative + payload)
        put_u32(out, <uint32_t>(TRANSFER_HEAD + performative + payload))
        put_u16(out + 4, 0x0200)
        put_u16(out + 6, number)
        put_u32(out + 8, 0x005314C0)
        out[12] = <uint8_t>(performative - 5)
        out[13] = 6
        memcpy(out + 14, octets_of(handle), handle_size)
        out += 14 + handle_size
        out[0] = 0x70
        put_u32(out + 1, id)
        out[5] = 0xA0
        out[6] = <uint8_t>digits
        rest = tag
        for k in range(digits - 1, -1, -1):
            out[7 + k] = <uint8_t>(48 + rest % 10)
            rest //= 10
        out += 7 + digits
        out[0] = 0x43
        out[1] = flag
        out[2] = 0x42
        out += 3
        if parts.before_size:
            memcpy(out, parts.before, parts.before_size)
            out += parts.before_size
        if wide:
            out[0] = 0
            out[1] = 0x53
            out[2] = 0x75 if content == 0 else 0x77
            out[3] = (0xA1 if content == 1 else 0xA0) + (0x10 if wide == 8 else 0)
            if wide == 8:
                put_u32(out + 4, <uint32_t>size)
            else:
                out[4] = <uint8_t>size
            out += wide
        memcpy(out, views.frames + frame + HEADER, size)
        out += size
        if parts.after_size:
            memcpy(out, parts.after, parts.after_size)
        id += 1
        tag += <uint64_t>stride
        i += stride
        count += 1
    if written is None:
        return b"", 0
    return (
        written.octets if written.size == PyBytes_GET_SIZE(written.octets) else written.octets[: written.size], count
    )


cdef int64_t fields_at(
    const uint8_t* data, int64_t at, int64_t end, uint8_t code, int64_t* after, uint32_t* count
) noexcept nogil:
    """Return the begin of the fields of the described list with this code, with their end and their number; -1 if
    there is another performative, or none.
    """
    if end - at < 6 or data[at] != 0 or data[at + 1] != 0x53 or data[at + 2] != code:
        return -1
    if data[at + 3] == 0xC0:
        after[0] = at + 5 + data[at + 4]
        count[0] = data[at + 5]
        at += 6
    elif data[at + 3] == 0xD0 and end - at >= 12:
        after[0] = at + 8 + <int64_t>get_u32(data + at + 4)
        count[0] = get_u32(data + at + 8)
        at += 12
    else:
        return -1
    return at if at <= after[0] <= end else -1


def take_flow(bytes octets not None, Py_ssize_t position, Py_ssize_t stop):
    """Read the flow at `position` in the common form: without properties.

    Return its first ten fields, where numbers that are null or missing are None, and the position after it.  None for
    everything else, whether it is a flow or not.
    """
    cdef const uint8_t* data = octets_of(octets)
    cdef int64_t at = position, end = stop, after
    cdef uint32_t count, field, number
    cdef list found = [None, None, None, None, None, None, None, None, False, False]
    if not 0 <= at <= end <= PyBytes_GET_SIZE(octets):
        raise ValueError(f"{position} to {stop} is not within 0 to {PyBytes_GET_SIZE(octets)}.")
    at = fields_at(data, at, end, 0x13, &after, &count)
    if at < 0 or not 4 <= count <= 10:
        return None
    for field in range(count):
        if at >= after:
            return None
        if data[at] == 0x40:
            if 1 <= field <= 3:  # the windows and next-outgoing-id
                return None
            at += 1
        elif field < 8:
            at = after_uint(data, at, after, &number)
            if at < 0:
                return None
            found[field] = number
        else:  # drain, echo
            if not 0x41 <= data[at] <= 0x42:
                return None
            found[field] = data[at] == 0x41
            at += 1
    return (*found, after) if at == after else None


def take_disposition(bytes octets not None, Py_ssize_t position, Py_ssize_t stop):
    """Read the disposition at `position` in the common form: with a state without fields, such as `accepted`.

    Return role, first, last or None, settled, the octets of the state, batchable, and the position after it.  None for
    everything else, whether it is a disposition or not.
    """
    cdef const uint8_t* data = octets_of(octets)
    cdef int64_t at = position, end = stop, after, state_at
    cdef uint32_t count, first, last = 0
    cdef bint has_last = False, settled = False, batchable = False
    if not 0 <= at <= end <= PyBytes_GET_SIZE(octets):
        raise ValueError(f"{position} to {stop} is not within 0 to {PyBytes_GET_SIZE(octets)}.")
    at = fields_at(data, at, end, 0x15, &after, &count)
    # Without a state there is a form of its own for settling, which is rare.
    if at < 0 or after - at < 8 or not 5 <= count <= 6 or not 0x41 <= data[at] <= 0x42:
        return None
    role = data[at] == 0x41
    at = after_uint(data, at + 1, after, &first)
    if at < 0 or at >= after:
        return None
    if data[at] == 0x40:
        at += 1
    else:
        has_last = True
        at = after_uint(data, at, after, &last)
    if at < 0 or after - at < 5 or not 0x40 <= data[at] <= 0x42:
        return None
    settled = data[at] == 0x41
    state_at = at + 1
    if data[state_at] != 0 or data[state_at + 1] != 0x53:
        return None
    if data[state_at + 3] == 0x45:
        at = state_at + 4
    elif data[state_at + 3] == 0xC0 and after - state_at >= 6 and get_u16(data + state_at + 4) == 0x0100:
        at = state_at + 6
    elif (
        data[state_at + 3] == 0xD0 and after - state_at >= 12
        and get_u32(data + state_at + 4) == 4 and get_u32(data + state_at + 8) == 0
    ):
        at = state_at + 12
    else:
        return None
    state = octets[state_at:at]
    if count == 6:
        if at >= after or not 0x40 <= data[at] <= 0x42:
            return None
        batchable = data[at] == 0x41
        at += 1
    if at != after:
        return None
    return role, first, last if has_last else None, bool(settled), state, bool(batchable), after


def frames_within(frames, octets):
    """Return the number of whole frames within the first `octets`, and their octets; None for another size of a frame."""
    cdef int64_t count = 0, at = 0, stop, size
    cdef Py_buffer buffer
    cdef const uint8_t* octet
    PyObject_GetBuffer(frames, &buffer, PyBUF_SIMPLE)
    try:
        octet = <const uint8_t*>buffer.buf
        stop = min(<int64_t>octets, <int64_t>buffer.len)
        while stop - at >= 4:
            size = get_u32(octet + at)
            if size < 4:
                return None
            if size > stop - at:
                break
            at += size
            count += 1
    finally:
        PyBuffer_Release(&buffer)
    return count, at
