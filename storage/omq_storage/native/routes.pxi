# Messages straight from lines to the connections of their subscribers, or to the store of their topics.

@cython.final
cdef class Lane:
    """The connections to which the messages of some topics go; of a lane that `competes`, the only connection, to which
    messages go that no other one gets.
    """

    cdef readonly tuple outlets
    cdef readonly bint competes
    cdef object __weakref__
    cdef uint64_t _pass  # the last pass that has used it, and its place there
    cdef uint32_t _place

    def __cinit__(self, tuple outlets not None, *, bint competes=False):
        if competes and len(outlets) != 1:
            raise ValueError(f"{len(outlets)} connections cannot be one.")
        self.outlets = outlets
        self.competes = competes
        self._pass = 0
        self._place = 0


@cython.final
cdef class Route:
    """The twin of `omq_storage.routes.Route`."""

    cdef readonly uint32_t topic
    cdef public uint64_t next_id
    cdef public uint64_t reserved
    cdef public uint64_t time
    cdef public int64_t messages_in
    cdef public int64_t octets_in
    cdef public int64_t messages_out
    cdef public int64_t octets_out
    cdef readonly bint is_open
    cdef readonly bint is_due
    cdef readonly bint is_kept
    cdef readonly bint is_used
    cdef public object owner
    cdef public bint is_watched
    cdef bytes _name  # of its topic, from when it was in `Routes`
    cdef bint _is_numbered  # there
    cdef uint32_t _number
    cdef uint32_t _next  # the number of the route that was found after this one
    cdef Lane _lane
    cdef tuple _workers  # the lanes between which its messages go in turn; `_lane` has all their connections then
    cdef readonly uint32_t turn
    cdef StoreLane _store
    cdef uint64_t _pass  # the last pass that has used it, and its place there
    cdef uint32_t _place
    cdef uint64_t _commit  # the last commit that has used it, and its place there
    cdef uint32_t _commit_place
    cdef bint _has_extent
    cdef Stored _extent

    def __cinit__(self, uint32_t topic, uint64_t next_id, uint64_t reserved, uint64_t time=0):
        self.topic = topic
        self.next_id = next_id
        self.reserved = reserved
        self.time = time
        self.messages_in = self.octets_in = self.messages_out = self.octets_out = 0
        self.is_open = self.is_due = self.is_kept = self.is_used = False
        self.owner = None
        self._name = None
        self._is_numbered = False
        self._number = self._next = 0
        self._lane = None
        self._workers = None
        self.turn = 0
        self._store = None
        self.is_watched = False
        self._pass = self._commit = 0
        self._place = self._commit_place = 0
        self._has_extent = False

    def open(self, Lane lane, *, bint is_kept=False):
        self._lane = lane
        self._workers = None
        self._store = None
        self.is_open = True
        self.is_due = False
        self.is_kept = is_kept

    def open_workers(self, tuple workers not None):
        cdef list outlets = []
        cdef Lane lane
        if not workers:
            raise ValueError("There are no workers.")
        for lane in workers:
            if not lane.competes:
                raise ValueError("A worker has a lane of its own.")
            outlets += lane.outlets
        self.open(workers[0] if len(workers) == 1 else Lane(tuple(outlets)))
        self._workers = workers
        self.turn = 0

    def open_store(self, StoreLane store not None):
        self._lane = None
        self._workers = None
        self._store = store
        self.is_open = True
        self.is_due = self.is_kept = False

    def close(self):
        self._lane = None
        self._workers = None
        self._store = None
        self.is_open = self.is_due = self.is_kept = False

    def open_later(self):
        self.close()
        self.is_due = True

    def take_extent(self):
        if not self._has_extent:
            return None
        self._has_extent = False
        return self._extent.first, self._extent.last, self._extent.messages, self._extent.octets


@cython.final
cdef class Routes:
    """The twin of `omq_storage.routes.Routes`.

    A publisher that goes round its topics in the same order again and again finds each without the dictionary: a route
    has the number of the one that came after it, and only the name must be compared.  Else each message would take a
    new object for its name, and two or three misses of the processor's caches.
    """

    cdef dict _routes
    cdef PyObject** _numbered  # the routes in the dictionary by their numbers, and NULL
    cdef uint32_t _numbers
    cdef uint32_t _capacity
    cdef list _free  # numbers of removed routes

    def __cinit__(self, routes=()):
        self._routes = {}
        self._numbered = NULL
        self._numbers = self._capacity = 0
        self._free = []
        for name, route in dict(routes).items():
            self[name] = route

    def __dealloc__(self):
        PyMem_RawFree(self._numbered)

    def __len__(self):
        return len(self._routes)

    def __contains__(self, bytes name not None):
        return name in self._routes

    def __getitem__(self, bytes name not None):
        return self._routes[name]

    def __setitem__(self, bytes name not None, Route route not None):
        if name in self._routes:
            del self[name]
        route._name = name
        self._routes[name] = route
        if route._is_numbered:
            return  # in another table
        if self._free:
            route._number = self._free.pop()
        else:
            if self._numbers == self._capacity:
                self._grow()
            route._number = self._numbers
            self._numbers += 1
        route._is_numbered = True
        self._numbered[route._number] = <PyObject*>route

    def __delitem__(self, bytes name not None):
        cdef Route route = self._routes.pop(name)
        if route._number < self._numbers and self._numbered[route._number] == <PyObject*>route:
            self._numbered[route._number] = NULL
            self._free.append(route._number)
            route._is_numbered = False

    cdef int _grow(self) except -1:
        cdef uint32_t capacity = 64 if self._capacity == 0 else 2 * self._capacity
        cdef PyObject** numbered = <PyObject**>PyMem_RawRealloc(self._numbered, capacity * sizeof(PyObject*))
        if numbered == NULL:
            raise MemoryError
        self._numbered = numbered
        self._capacity = capacity
        return 0

    cdef PyObject* find(self, const uint8_t* name, int64_t length, Route before) except? NULL:
        """Return the route of a topic, or NULL. `before`: the route that was found before it, or None."""
        cdef PyObject* found
        cdef bytes known
        if before is not None and before._next < self._numbers:
            found = self._numbered[before._next]
            if found != NULL:
                known = (<Route>found)._name
                if PyBytes_GET_SIZE(known) == length and not memcmp(PyBytes_AS_STRING(known), name, length):
                    return found
        found = PyDict_GetItem(self._routes, PyBytes_FromStringAndSize(<const char*>name, length))
        if found != NULL and before is not None:
            before._next = (<Route>found)._number
        return found


cdef struct Passing:  # one topic in a pass
    PyObject* route
    PyObject* name
    uint64_t first
    int64_t count
    int64_t octets
    uint32_t lane
    uint32_t store
    uint32_t place  # in the part for the store
    bint kept
    int64_t copies  # of its messages in memory at most
    bint closed


cdef struct Passed:  # one message in a pass
    const uint8_t* at
    uint32_t length  # of the body
    uint32_t written  # its octets in the input
    uint32_t topic  # the place of its topic
    uint32_t lane
    int64_t begin  # where its frame begins among the octets for its lane


cdef enum:
    NO_LANE = 0xFFFFFFFF  # a topic without subscribers, or a store
    PARTED = 0xFFFFFFFD  # a lane with connections that take messages and others that do not
    WORKERS = 0xFFFFFFFC  # a lane for each message

cdef int64_t LITTLE = 1 << 16  # the largest message that is routed
cdef int64_t MOST_PASSED = 4096  # messages of one pass: less than a millisecond of work
cdef int64_t MOST_TOPICS = 1024  # of one pass: some microseconds for each, as one of many is in no processor cache
cdef int64_t MOST_OUTLETS = 128  # of one pass, or a few more for the last message: each costs a system call
cdef int64_t MOST_AIMED = 64  # topics of one pass whose owners open their routes: some 20 microseconds for each
cdef int64_t WORKERS_AIMED = 16  # workers of a topic for which its owner takes as long as for one topic more
cdef int64_t MOST_KEPT = 128  # topics of one pass whose messages are kept: some 5 microseconds for each

cdef uint64_t _passes = 0


@cython.final
cdef class Pass:
    """The octets that one pass over lines sends to connections.  Use it before anything else can happen to its topics.

    `routes`: the routes of topics by their names.  `allowed`: the topics to which these lines may publish, None for
    all.  A message with more than `largest` octets is not routed.  `room`: the number of octets that stores may
    take, or a little more: the message that reaches it is the last one.  `tails`: the memory for what connections do
    not take at once, and for messages that are kept for subscribers that are behind, of which `granted` octets at least
    have room; None: it has room for all.
    """

    cdef readonly list lanes
    cdef readonly list frames  # the octets for each lane
    cdef readonly list counts  # the number of messages for each lane
    cdef readonly int64_t messages
    cdef readonly bint is_full
    cdef readonly Lane filled  # the lane that has no room, where the pass stopped
    cdef readonly list parts  # pairs of a store and its part
    cdef list _stores
    cdef readonly StoreLane lacking  # the store whose messages have no room, where the pass stopped
    cdef readonly Route short  # the topic whose messages must be kept and have no room, where the pass stopped
    cdef int64_t _room
    cdef object _tails
    cdef int64_t _granted
    cdef int64_t _tail_room  # the octets that may be kept
    cdef int64_t _push_room  # the octets that may be pushed, counted for each connection
    cdef int64_t _aimed
    cdef int64_t _kept
    cdef bint _is_dealt  # whether a topic has workers
    cdef Routes _routes
    cdef Route _before  # the last topic that was found
    cdef object _allowed
    cdef int64_t _largest
    cdef uint64_t _number
    cdef set _outlets
    cdef Passing* _topics
    cdef int64_t _topic_count
    cdef int64_t _topic_capacity
    cdef Passed* _passed
    cdef int64_t _count
    cdef int64_t _capacity

    def __cinit__(self, Routes routes not None, allowed, largest, int64_t room=0, tails=None, int64_t granted=0):
        global _passes
        _passes += 1
        self._number = _passes
        self.lanes = []
        self.frames = []
        self.counts = []
        self.messages = 0
        self.is_full = False
        self.filled = None
        self.parts = []
        self._stores = []
        self.lacking = None
        self._room = room
        self._tails = tails
        self._granted = granted
        self._tail_room = self._push_room = 1 << 62
        if tails is not None:
            # If nobody takes anything of it now, it does not push out what waits already.
            self._push_room = max(1, (<int64_t>tails.limit - <int64_t>tails.used) // 2)
        self.short = None
        self._aimed = self._kept = 0
        self._is_dealt = False
        self._routes = routes
        self._before = None
        self._allowed = allowed
        self._largest = min(max(largest, 0), LITTLE - HEADER)
        self._outlets = set()
        self._topics = NULL
        self._topic_count = self._topic_capacity = 0
        self._passed = NULL
        self._count = self._capacity = 0

    def __dealloc__(self):
        cdef int64_t i
        for i in range(self._topic_count):
            Py_DECREF(<object>self._topics[i].route)
            Py_DECREF(<object>self._topics[i].name)
        PyMem_RawFree(self._topics)
        PyMem_RawFree(self._passed)

    cdef int64_t topic(self, const uint8_t* name, int64_t length) except -2:
        """Return the place of a topic in this pass; -1 if its messages are not routed, -3 if they must wait."""
        cdef PyObject* found = self._routes.find(name, length, self._before)
        cdef Route route
        cdef bytes known
        cdef uint32_t lane = NO_LANE
        cdef uint32_t store = NO_LANE
        if found == NULL:
            return -1
        route = self._before = <Route>found
        if route._pass == self._number:
            return -1 if self._topics[route._place].closed else <int64_t>route._place
        if self._topic_count == MOST_TOPICS:
            self.is_full = True
            return -3
        known = route._name
        if self._allowed is not None and known not in self._allowed:
            return -1
        if route.is_due and not self.aim(route):
            return -3
        if not route.is_open:
            return -1
        if route._store is not None:
            if self._room <= 0 or route._store.octets_left <= 0 or route._store.messages_left <= 0:
                self.lacking = route._store
                self.is_full = True
                return -3
            store = self.store(route._store)
        elif route._workers is not None:
            if not self.has_worker(route):
                return -3 if self.is_full else -1
            lane = WORKERS
            self._is_dealt = True
        elif route._lane is not None:
            lane = self.lane(route._lane)
            if lane == PARTED:
                if not self.aim(route):
                    return -3
                lane = NO_LANE if route._lane is None else self.lane(route._lane)
            if lane == NO_LANE or lane == PARTED:
                return -1 if self.filled is None else -3
            if route.is_kept:
                if not self._kept and self._tails is not None:
                    self._tail_room = max(self._granted, <int64_t>self._tails.room())
                if self._tail_room <= 0:
                    self.short = route
                    self.is_full = True
                    return -3
                if self._kept == MOST_KEPT:
                    self.is_full = True
                    return -3
                self._kept += 1
        if self._topic_count == self._topic_capacity:
            self.make_room_for_topics()
        cdef Passing* passing = &self._topics[self._topic_count]
        passing.route = found
        passing.name = <PyObject*>known
        passing.first = route.next_id
        passing.count = 0
        passing.octets = 0
        passing.lane = lane
        passing.store = store
        passing.kept = route.is_kept
        passing.copies = 0
        if lane == WORKERS:
            passing.copies = 1
        elif lane != NO_LANE:
            passing.copies = len(route._lane.outlets) + route.is_kept
        passing.closed = False
        Py_INCREF(route)
        Py_INCREF(known)
        route._pass = self._number
        route._place = <uint32_t>self._topic_count
        self._topic_count += 1
        return self._topic_count - 1

    cdef bint aim(self, Route route) except -1:
        """Let the owner of a route open or close it; return False where that must wait for the next pass."""
        if self._aimed >= MOST_AIMED:
            self.is_full = True
            return False
        self._aimed += 1
        route.close()
        if route.owner is not None:
            route.owner.aim()
        if route._workers is not None:
            self._aimed += len(route._workers) // WORKERS_AIMED
        return True

    cdef uint32_t lane(self, Lane lane) except? 0xFFFFFFFE:
        """Return the place of a lane in this pass; NO_LANE if no connection takes anything now, and PARTED if only
        some of them do.

        When all of them are filled, and move, the publisher must wait: then the pass ends.
        """
        cdef Py_ssize_t filled = 0, without = 0, further = 0
        if lane._pass == self._number:
            return lane._place
        lane._pass = self._number
        lane._place = NO_LANE
        for outlet in lane.outlets:
            if not outlet.has_room():
                without += 1
                filled += outlet.is_filled()
            elif outlet not in self._outlets:
                further += 1
        if without:
            if without < len(lane.outlets):
                lane._place = PARTED
            elif filled == without:
                self.filled = lane
                self.is_full = True
            return lane._place
        if len(self._outlets) + further > MOST_OUTLETS and self.lanes:
            return NO_LANE
        self._outlets.update(lane.outlets)
        lane._place = <uint32_t>len(self.lanes)
        self.lanes.append(lane)
        return lane._place

    cdef bint has_worker(self, Route route) except -1:
        """Return whether a worker takes messages.  If none does, and all of them are filled, and move, the publisher
        must wait: then the pass ends.
        """
        cdef Lane lane
        cdef Py_ssize_t filled = 0
        cdef Py_ssize_t count = len(route._workers)
        cdef Py_ssize_t i
        for i in range(count):  # the first one found is the one that gets the next message
            if self.worker(<Lane>route._workers[(route.turn + i) % count]) != NO_LANE:
                return True
        for lane in route._workers:
            filled += lane.outlets[0].is_filled()
        if filled == len(route._workers):
            self.filled = route._lane
            self.is_full = True
        return False

    cdef uint32_t worker(self, Lane lane) except? 0xFFFFFFFE:
        """Return the place of the lane of one worker in this pass; NO_LANE if it takes nothing now.  A worker never
        misses its turn because the pass has enough connections: it gets the last message of the pass.
        """
        if lane._pass != self._number:
            lane._pass = self._number
            lane._place = NO_LANE
            outlet = lane.outlets[0]
            if outlet.has_room():
                self._outlets.add(outlet)
                if len(self._outlets) >= MOST_OUTLETS:
                    self.is_full = True
                lane._place = <uint32_t>len(self.lanes)
                self.lanes.append(lane)
        return lane._place

    cdef uint32_t next_worker(self, Route route) except? 0xFFFFFFFE:
        """Return the place of the lane of the worker whose turn it is, of those that take messages: there is one."""
        cdef uint32_t place = NO_LANE
        cdef Py_ssize_t count = len(route._workers)
        for _ in range(count):
            place = self.worker(<Lane>route._workers[route.turn])
            route.turn = (route.turn + 1) % count
            if place != NO_LANE:
                break
        return place

    cdef uint32_t store(self, StoreLane store) except? 0xFFFFFFFE:
        """Return the place of a store in this pass."""
        if store._pass != self._number:
            store._pass = self._number
            store._place = <uint32_t>len(self._stores)
            self._stores.append(store)
        return store._place

    cdef int make_room_for_topics(self) except -1:
        cdef int64_t capacity = max(64, 2 * self._topic_capacity)
        cdef Passing* topics = <Passing*>PyMem_RawRealloc(self._topics, capacity * sizeof(Passing))
        if topics == NULL:
            raise MemoryError
        self._topics = topics
        self._topic_capacity = capacity
        return 0

    cdef bint add(self, int64_t place, const uint8_t* at, uint32_t length, uint32_t written) except -1:
        """Take a message of a topic in this pass; return False if it is not routed, nor are later ones of the topic."""
        cdef Passing* passing = &self._topics[place]
        cdef Route route
        cdef int64_t capacity
        cdef Passed* grown
        cdef Passed* passed
        cdef StoreLane store
        if passing.closed:
            return False
        route = <Route>passing.route
        if length > self._largest or (
            passing.store == NO_LANE and passing.first + <uint64_t>passing.count >= route.reserved
        ):
            passing.closed = True
            return False
        if passing.lane != NO_LANE or passing.store != NO_LANE:
            if self._count == self._capacity:
                capacity = max(64, 2 * self._capacity)
                grown = <Passed*>PyMem_RawRealloc(self._passed, capacity * sizeof(Passed))
                if grown == NULL:
                    raise MemoryError
                self._passed = grown
                self._capacity = capacity
            passed = &self._passed[self._count]
            passed.at = at
            passed.length = length
            passed.written = written
            passed.topic = <uint32_t>place
            passed.lane = self.next_worker(route) if passing.lane == WORKERS else passing.lane
            passed.begin = 0
            self._count += 1
        passing.count += 1
        passing.octets += HEADER + <int64_t>length
        self.messages += 1
        if self.messages >= MOST_PASSED:
            self.is_full = True
        if passing.store != NO_LANE:
            store = route._store
            store.octets_left -= kept_octets(length)
            store.messages_left -= 1
            self._room -= kept_octets(length)
            if self._room <= 0 or store.octets_left <= 0 or store.messages_left <= 0:
                self.is_full = True
        elif passing.lane != NO_LANE:
            self._push_room -= passing.copies * (HEADER + <int64_t>length)
            if passing.kept:
                self._tail_room -= HEADER + <int64_t>length
            if self._push_room <= 0 or self._tail_room <= 0:
                self.is_full = True
        return True

    cdef int write(self) except -1:
        """Give the messages their ids, and write their frames."""
        cdef int64_t lane_count = len(self.lanes)
        cdef int64_t i, copies
        cdef int64_t* ends
        cdef int64_t* counts
        cdef uint8_t** outs
        cdef uint8_t* out
        cdef Passing* passing
        cdef Passed* passed
        cdef Route route
        counts = <int64_t*>PyMem_RawCalloc(lane_count + 1, sizeof(int64_t))
        ends = <int64_t*>PyMem_RawCalloc(lane_count + 1, sizeof(int64_t))
        outs = <uint8_t**>PyMem_RawCalloc(lane_count + 1, sizeof(uint8_t*))
        try:
            if counts == NULL or ends == NULL or outs == NULL:
                raise MemoryError
            for i in range(len(self._stores)):
                self.add_part(<uint32_t>i)
            for i in range(self._topic_count):
                passing = &self._topics[i]
                if passing.lane != NO_LANE and passing.lane != WORKERS:
                    ends[passing.lane] += passing.octets
                    counts[passing.lane] += passing.count
            for i in range(self._count if self._is_dealt else 0):
                passed = &self._passed[i]
                if self._topics[passed.topic].lane == WORKERS:
                    ends[passed.lane] += HEADER + <int64_t>passed.length
                    counts[passed.lane] += 1
            for i in range(lane_count):
                self.counts.append(counts[i])
                self.frames.append(PyBytes_FromStringAndSize(NULL, ends[i]))
                outs[i] = octets_of(self.frames[i])
                ends[i] = 0
            # From here on nothing fails.
            for i in range(self._topic_count):
                passing = &self._topics[i]
                route = <Route>passing.route
                if passing.store != NO_LANE:
                    route.is_used = route.is_used or passing.count > 0
                    continue
                route.next_id += <uint64_t>passing.count
                route.messages_in += passing.count
                route.octets_in += passing.octets
                if passing.lane != NO_LANE:
                    copies = 1 if passing.lane == WORKERS else len(route._lane.outlets)
                    route.messages_out += passing.count * copies
                    route.octets_out += passing.octets * copies
                    passing.count = 0
            for i in range(self._count):
                passed = &self._passed[i]
                passing = &self._topics[passed.topic]
                if passing.lane == NO_LANE:
                    continue
                passed.begin = ends[passed.lane]
                out = outs[passed.lane] + passed.begin
                put_u32(out, COUNTED + passed.length)
                out[4] = MESSAGE
                put_u64(out + 5, passing.first + <uint64_t>passing.count)
                put_u32(out + 13, (<Route>passing.route).topic)
                if passed.written == passed.length:
                    memcpy(out + HEADER, passed.at, passed.length)
                else:
                    unescape(out + HEADER, passed.length, passed.at, passed.written)
                passing.count += 1
                ends[passed.lane] = passed.begin + HEADER + passed.length
        finally:
            PyMem_RawFree(counts)
            PyMem_RawFree(ends)
            PyMem_RawFree(outs)
        return 0

    cdef int add_part(self, uint32_t store) except -1:
        """Add the part of a store, unless its topics have none of the messages: the first one was too long."""
        cdef StorePart part = StorePart.__new__(StorePart)
        cdef int64_t i, topics = 0
        cdef Passing* passing
        cdef Passed* passed
        for i in range(self._topic_count):
            passing = &self._topics[i]
            if passing.store == store and passing.count:
                topics += 1
                part.messages += passing.count
                part.octets += passing.octets
        if not topics:
            return 0
        part.allocate(topics)
        for i in range(self._topic_count):
            passing = &self._topics[i]
            if passing.store == store and passing.count:
                passing.place = part.add_topic(<object>passing.route, <bytes>passing.name)
        for i in range(self._count):
            passed = &self._passed[i]
            passing = &self._topics[passed.topic]
            if passing.store == store:
                part.add(passing.place, passed.at, passed.length, passed.written)
        self.parts.append((self._stores[store], part))
        return 0

    def kept(self):
        """Return the messages that must be kept for subscribers that are behind: for each of their topics its route,
        the id of the first of them, their number, their frames, and the offsets of these.
        """
        cdef list found = []
        cdef bytes frames, offsets
        cdef uint8_t** outs  # for each topic: where its next frame goes, NULL if it is there
        cdef uint8_t** indexes  # and the end of its offsets, NULL if its messages are not kept
        cdef int64_t* ends  # and the end of its frames
        cdef int64_t i, size
        cdef Passing* passing
        cdef Passed* passed
        if not self._kept:
            return found
        outs = <uint8_t**>PyMem_RawCalloc(self._topic_count + 1, sizeof(uint8_t*))
        indexes = <uint8_t**>PyMem_RawCalloc(self._topic_count + 1, sizeof(uint8_t*))
        ends = <int64_t*>PyMem_RawCalloc(self._topic_count + 1, sizeof(int64_t))
        try:
            if outs == NULL or indexes == NULL or ends == NULL:
                raise MemoryError
            for i in range(self._topic_count):
                passing = &self._topics[i]
                if not passing.kept or not passing.count:
                    continue
                frames = self.frames[passing.lane]
                if PyBytes_GET_SIZE(frames) != passing.octets:
                    frames = PyBytes_FromStringAndSize(NULL, passing.octets)
                    outs[i] = octets_of(frames)
                offsets = PyBytes_FromStringAndSize(NULL, NUMBER * (passing.count + 1))
                indexes[i] = octets_of(offsets)
                put_little(indexes[i], 0)
                found.append((<Route>passing.route, passing.first, passing.count, frames, offsets))
            for i in range(self._count):
                passed = &self._passed[i]
                if indexes[passed.topic] == NULL:
                    continue
                size = HEADER + <int64_t>passed.length
                if outs[passed.topic] != NULL:
                    frames = self.frames[self._topics[passed.topic].lane]
                    memcpy(outs[passed.topic] + ends[passed.topic], octets_of(frames) + passed.begin, size)
                ends[passed.topic] += size
                indexes[passed.topic] += NUMBER
                put_little(indexes[passed.topic], <uint32_t>ends[passed.topic])
        finally:
            PyMem_RawFree(outs)
            PyMem_RawFree(indexes)
            PyMem_RawFree(ends)
        return found

    def part(self, Py_ssize_t lane):
        """Return the messages for a lane, in a form that may be kept when this pass is over."""
        if not 0 <= lane < len(self.frames):
            raise IndexError(lane)
        cdef Part part = Part.__new__(Part, self.frames[lane], (<Lane>self.lanes[lane]).competes)
        cdef uint32_t* places  # of the topics of this pass, among those of the lane, from 1 on
        cdef uint32_t topic
        cdef int64_t i, count = 0
        for i in range(self._count):
            count += self._passed[i].lane == <uint32_t>lane
        places = <uint32_t*>PyMem_RawCalloc(self._topic_count + 1, sizeof(uint32_t))
        part._places = <uint32_t*>PyMem_RawCalloc(count + 1, sizeof(uint32_t))
        try:
            if places == NULL or part._places == NULL:
                raise MemoryError
            for i in range(self._count):
                if self._passed[i].lane == <uint32_t>lane:
                    topic = self._passed[i].topic
                    if not places[topic]:
                        part._routes.append(<Route>self._topics[topic].route)
                        places[topic] = <uint32_t>len(part._routes)
                    part._places[part.messages] = places[topic] - 1
                    part.messages += 1
        finally:
            PyMem_RawFree(places)
        return part


cdef struct Unsent:  # one topic in a part
    uint64_t first
    int64_t count
    int64_t octets


@cython.final
cdef class Part:
    """The messages of a pass for one lane.  It keeps nothing of the other lanes."""

    cdef readonly bytes octets
    cdef readonly bint competes  # as its lane
    cdef readonly int64_t messages
    cdef list _routes  # of its topics
    cdef uint32_t* _places  # the place among them of the topic of each message

    def __cinit__(self, bytes octets not None, bint competes):
        self.octets = octets
        self.competes = competes
        self.messages = 0
        self._routes = []
        self._places = NULL

    def __dealloc__(self):
        PyMem_RawFree(self._places)

    @property
    def held(self):
        """The number of octets that it keeps in memory, beyond those of an empty one."""
        return PyBytes_GET_SIZE(self.octets) + sizeof(uint32_t) * self.messages + sizeof(void*) * len(self._routes)

    def unsent(self, Py_ssize_t sent):
        """Return the rest of the message that the first `sent` octets end in, and for each topic with messages
        after it: its route, the first of these messages, their number, and their octets.
        """
        cdef const uint8_t* frames = octets_of(self.octets)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.octets)
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t end
        cdef Py_ssize_t i
        cdef bytes rest = b""
        cdef list found = []
        cdef Unsent* topic
        if not 0 <= sent <= size:
            raise ValueError(f"{sent} is not within 0 to {size}.")
        cdef Unsent* topics = <Unsent*>PyMem_RawCalloc(len(self._routes) + 1, sizeof(Unsent))
        if topics == NULL:
            raise MemoryError
        try:
            for i in range(self.messages):
                end = begin + HEADER + <Py_ssize_t>(get_u32(frames + begin) - COUNTED)
                if begin >= sent:
                    topic = &topics[self._places[i]]
                    if not topic.count:
                        topic.first = get_u64(frames + begin + 5)
                    topic.count += 1
                    topic.octets += end - begin
                elif end > sent:
                    rest = self.octets[sent:end]
                begin = end
            for i in range(len(self._routes)):
                topic = &topics[i]
                if topic.count:
                    found.append((self._routes[i], topic.first, topic.count, topic.octets))
        finally:
            PyMem_RawFree(topics)
        return rest, found

    def begun(self, Py_ssize_t sent):
        """Return the message that the first `sent` octets end in, as its route, its id, its frame and the rest of that,
        or None; and the number of messages up to it.
        """
        cdef const uint8_t* frames = octets_of(self.octets)
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t end = 0
        cdef int64_t count = 0
        if not 0 <= sent <= PyBytes_GET_SIZE(self.octets):
            raise ValueError(f"{sent} is not within 0 to {PyBytes_GET_SIZE(self.octets)}.")
        while end < sent:
            begin = end
            end += HEADER + <Py_ssize_t>(get_u32(frames + end) - COUNTED)
            count += 1
        if end == sent:
            return None, count
        route = self._routes[self._places[count - 1]]
        return (route, get_u64(frames + begin + 5), self.octets[begin:end], self.octets[sent:end]), count

    def unsent_runs(self, Py_ssize_t sent):
        """Return the messages after the one that the first `sent` octets end in: neighbours of one topic without a gap
        together, as the route, the first id, the number, the frames, and the offsets of these.
        """
        cdef const uint8_t* frames = octets_of(self.octets)
        cdef Py_ssize_t begin = 0
        cdef Py_ssize_t end, first
        cdef int64_t i = 0
        cdef int64_t j, count
        cdef uint64_t id
        cdef bytes offsets
        cdef uint8_t* index
        cdef list found = []
        if not 0 <= sent <= PyBytes_GET_SIZE(self.octets):
            raise ValueError(f"{sent} is not within 0 to {PyBytes_GET_SIZE(self.octets)}.")
        while begin < sent:
            begin += HEADER + <Py_ssize_t>(get_u32(frames + begin) - COUNTED)
            i += 1
        while i < self.messages:
            first = begin
            id = get_u64(frames + begin + 5)
            count = 0
            while (
                i + count < self.messages
                and self._places[i + count] == self._places[i]
                and get_u64(frames + begin + 5) == id + <uint64_t>count
            ):
                begin += HEADER + <Py_ssize_t>(get_u32(frames + begin) - COUNTED)
                count += 1
            offsets = PyBytes_FromStringAndSize(NULL, NUMBER * (count + 1))
            index = octets_of(offsets)
            end = first
            for j in range(count + 1):
                put_little(index + NUMBER * j, <uint32_t>(end - first))
                if j < count:
                    end += HEADER + <Py_ssize_t>(get_u32(frames + end) - COUNTED)
            found.append((self._routes[self._places[i]], id, count, self.octets[first:begin], offsets))
            i += count
        return found
