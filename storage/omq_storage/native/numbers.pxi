# Big-endian and little-endian numbers in octets.

cdef inline uint16_t get_u16(const uint8_t* at) noexcept nogil:
    return <uint16_t>((<uint16_t>at[0] << 8) | at[1])


cdef inline uint32_t get_u32(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline uint64_t get_u64(const uint8_t* at) noexcept nogil:
    return (<uint64_t>get_u32(at) << 32) | get_u32(at + 4)


cdef inline void put_u16(uint8_t* at, uint16_t number) noexcept nogil:
    at[0] = <uint8_t>(number >> 8)
    at[1] = <uint8_t>number


cdef inline void put_u32(uint8_t* at, uint32_t number) noexcept nogil:
    at[0] = <uint8_t>(number >> 24)
    at[1] = <uint8_t>(number >> 16)
    at[2] = <uint8_t>(number >> 8)
    at[3] = <uint8_t>number


cdef inline void put_u64(uint8_t* at, uint64_t number) noexcept nogil:
    put_u32(at, <uint32_t>(number >> 32))
    put_u32(at + 4, <uint32_t>number)


cdef inline uint32_t get_little(const uint8_t* at) noexcept nogil:
    return at[0] | (<uint32_t>at[1] << 8) | (<uint32_t>at[2] << 16) | (<uint32_t>at[3] << 24)


cdef inline void put_little(uint8_t* at, uint32_t number) noexcept nogil:
    at[0] = <uint8_t>number
    at[1] = <uint8_t>(number >> 8)
    at[2] = <uint8_t>(number >> 16)
    at[3] = <uint8_t>(number >> 24)


cdef inline uint8_t* octets_of(bytes owner) noexcept:
    return <uint8_t*>PyBytes_AS_STRING(owner)


cdef inline bint occurs(uint64_t eight, uint64_t octet) noexcept nogil:
    """Return whether an octet is one of eight octets that were read as a number."""
    cdef uint64_t difference = eight ^ (octet * 0x0101010101010101ULL)
    return ((difference - 0x0101010101010101ULL) & ~difference & 0x8080808080808080ULL) != 0
