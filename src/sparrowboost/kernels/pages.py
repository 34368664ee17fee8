"""Pages of a Parquet file: their headers, and runs of indices into a dictionary."""

from __future__ import annotations

import numpy as np

from sparrowboost.kernels._jit import kernel

# Fields of a header, by index; -1 where absent.
(
    KIND, UNPACKED, PACKED, CRC, VALUES, ENCODING, LEVEL_ENCODING, LEVEL_BYTES, REPEAT_BYTES,
    IS_PACKED,
) = range(10)  # fmt: skip
N_SAID = 10
# State of a reader: position in its run; values left in its page, their width in bits, the end of
# the page; where the next page begins; and the largest width of a page so far.
AT, LEFT, REPEATED, VALUE, BIT, PAGE_LEFT, WIDTH, STOP, NEXT, WIDEST = range(10)
N_STATE = 10

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8
MAX_WIDTH = 24  # bits of an index
MAX_REPEATS = 2**31 - 1  # of a number in a run, and
MAX_GROUPS = MAX_REPEATS // 8  # groups of eight numbers in one: more means damage

MORE, WRONG = -1, -2  # instead of a position: bytes are missing, or invalid
MAX_DEPTH = 8
SPARE = 8  # bytes that must follow the last one of a run: it is read eight bytes at a time


@kernel
def read_header(data, said):
    """Parse a page header: a struct in Thrift's compact protocol.

    data (n,)      uint8  IN   begins with the header
    said (N_SAID,) int64  OUT  its fields; CRC as an unsigned number

    Returns where the header ends, MORE if `data` ends before it does, WRONG if it is invalid.
    """
    n = data.shape[0]
    said[:] = -1
    field = np.zeros(MAX_DEPTH, np.int64)  # the last one of each open struct
    depth = 0
    at = 0
    while True:
        if at >= n:
            return MORE
        byte = np.int64(data[at])
        at += 1
        if byte == 0:  # a struct ends
            if depth == 0:
                return at
            depth -= 1
            continue
        kind = byte & 15
        if byte >> 4:
            field[depth] += byte >> 4
        else:
            number, at = _varint(data, at)
            if at < 0:
                return at
            field[depth] = (number >> 1) ^ -(number & 1)
        value = np.int64(0)
        if kind == 1 or kind == 2:  # true, false
            value = 2 - kind
        elif kind == 3:
            at += 1
        elif 4 <= kind <= 6:
            number, at = _varint(data, at)
            if at < 0:
                return at
            value = (number >> 1) ^ -(number & 1)
        elif kind == 7:
            at += 8
        elif kind == 8:
            number, at = _varint(data, at)
            if at < 0:
                return at
            if number < 0 or number > 1 << 30:
                return WRONG
            at += number
        elif kind == 12:
            if depth + 1 == MAX_DEPTH:
                return WRONG
            depth += 1
            field[depth] = 0
            continue
        else:  # lists, sets and maps: a page header has none
            return WRONG
        place = _place(depth, field)
        if place >= 0:
            said[place] = value & 0xFFFFFFFF if place == CRC else value


@kernel
def _varint(data, at):
    """A number of seven bits a byte, and where it ends, or MORE or WRONG."""
    number = np.int64(0)
    shift = 0
    while True:
        if at >= data.shape[0]:
            return np.int64(0), MORE
        byte = np.int64(data[at])
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 56:
            return np.int64(0), WRONG


@kernel
def _place(depth, field):
    """The index of a header field in `said`; -1 if it is not needed."""
    if depth == 0:
        return field[0] - 1 if 1 <= field[0] <= 4 else -1
    if depth == 1 and (field[0] == 5 or field[0] == 7):  # data page, dictionary page
        if field[1] == 1:
            return VALUES
        if field[1] == 2:
            return ENCODING
        if field[1] == 3 and field[0] == 5:
            return LEVEL_ENCODING
    if depth == 1 and field[0] == 8:  # data page, version 2
        if field[1] == 1:
            return VALUES
        if 4 <= field[1] <= 7:
            return (ENCODING, LEVEL_BYTES, REPEAT_BYTES, IS_PACKED)[field[1] - 4]
    return -1


@kernel
def take_places(data, end, optional, state, said, out):
    """Read the next indices from consecutive pages, as long as these are simple.

    data     (n,)       uint8  IN       pages, not packed; n is at least `end` + SPARE
    end      int               IN       where they end; the last may be cut off
    optional bool              IN       whether values have levels
    state    (N_STATE,) int64  IN, OUT  of the reader
    said     (N_SAID,)  int64  OUT      scratch
    out      (m,)       uint8 or int32  OUT

    Returns how many indices were read: m, or fewer if the next page is not simple (a value is
    missing, there is a checksum, the page is incomplete, it is not a data page, ...).
    """
    m = out.shape[0]
    most = 8 if out.itemsize == 1 else MAX_WIDTH
    done = 0
    while done < m:
        if state[PAGE_LEFT] == 0 and not _next_page(data, end, optional, state, said):
            return done
        if state[WIDTH] > most:
            return done
        n = min(m - done, state[PAGE_LEFT])
        n = take_runs(data, state[STOP], state[WIDTH], state, out[done : done + n])
        done += n
        state[PAGE_LEFT] -= n
        if n == 0:
            return done
    return done


@kernel
def open_all(data, filled, state, said, words):
    """Find the dictionaries at the start of many columns, where these are simple.

    data   (k, w)       uint8  IN   a column's pages, not packed
    filled (k,)         int64  IN   where they end; 0: not this column
    state  (k, N_STATE) int64  OUT  of a reader before the page after it
    said   (N_SAID,)    int64  OUT  scratch
    words  (k, 3)       int64  OUT  number of strings, and where their bytes begin and end; or -1
    """
    for c in range(data.shape[0]):
        words[c] = -1
        state[c] = 0
        start = read_header(data[c, : filled[c]], said)
        stop = start + said[PACKED]
        if start < 0 or said[PACKED] < 0 or stop > filled[c] or said[CRC] >= 0:
            continue
        if (
            said[KIND] == DICTIONARY_PAGE
            and said[VALUES] >= 0
            and (said[ENCODING] == PLAIN or said[ENCODING] == PLAIN_DICTIONARY)
        ):
            words[c, 0], words[c, 1], words[c, 2] = said[VALUES], start, stop
            state[c, NEXT] = stop


@kernel
def take_all(data, filled, optional, state, said, out, done):
    """`take_places` of many columns at once.

    data     (k, w)       uint8  IN       a column's pages
    filled   (k,)         int64  IN       where they end
    optional (k,)         bool   IN
    state    (k, N_STATE) int64  IN, OUT
    said     (N_SAID,)    int64  OUT      scratch
    out      (k, m)       uint8  OUT
    done     (k,)         int64  OUT      how many indices were read of each
    """
    for c in range(out.shape[0]):
        done[c] = take_places(data[c], filled[c], optional[c], state[c], said, out[c])


@kernel
def _next_page(data, end, optional, state, said):
    """Open the next page; False unless it is complete, has indices, and no value is missing."""
    start = state[NEXT]
    size = read_header(data[start:end], said)
    if size < 0:
        return False
    at = start + size
    stop = at + said[PACKED]
    if said[KIND] != DATA_PAGE or said[CRC] >= 0 or said[PACKED] < 0 or stop > end:
        return False
    if said[ENCODING] != RLE_DICTIONARY and said[ENCODING] != PLAIN_DICTIONARY:
        return False
    if optional:
        if said[LEVEL_ENCODING] != RLE or at + 4 > stop:
            return False
        levels = at + 4
        at = levels + (
            np.int64(data[at])
            | np.int64(data[at + 1]) << 8
            | np.int64(data[at + 2]) << 16
            | np.int64(data[at + 3]) << 24
        )
        head, value = _varint(data[:stop], levels)
        if value < 0 or value >= stop or head & 1 or head >> 1 < said[VALUES] or data[value] != 1:
            return False  # more than one run of ones
    if at >= stop or said[VALUES] <= 0:
        return False
    turn_to(state, at, stop, said[VALUES], stop, data)
    return state[WIDTH] <= MAX_WIDTH


@kernel
def turn_to(state, at, stop, n, after, data):
    """Prepare to read n indices of a page: at `at` the width in bits, then runs up to `stop`."""
    widest = max(state[WIDEST], data[at])
    state[:] = 0
    state[AT], state[STOP], state[NEXT] = at + 1, stop, after
    state[WIDTH], state[PAGE_LEFT], state[WIDEST] = data[at], n, widest


@kernel
def take_runs(data, stop, width, state, out):
    """Read the next numbers from runs: one number repeated, or numbers packed `width` bits each.

    data  (n,)       uint8  IN       n is at least `stop` + SPARE
    stop  int               IN       where the runs end
    width int               IN       0 ... 24, for `out` to hold
    state (N_STATE,) int64  IN, OUT  of the reader
    out   (m,)       uint8 or int32  OUT

    Returns how many numbers were read: m, or fewer if the runs end or are invalid.
    """
    m = out.shape[0]
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    w = np.uint64(width)
    done = 0
    while done < m:
        if state[LEFT] == 0:
            head, at = _varint(data[:stop], state[AT])
            if at < 0 or head < 0 or head >> 1 > (MAX_GROUPS if head & 1 else MAX_REPEATS):
                return done
            state[REPEATED] = 1 - (head & 1)
            if head & 1:
                groups = head >> 1
                # The last run of a page may be cut off where its numbers end.
                state[LEFT] = min(8 * groups, (stop - at) * 8 // max(width, 1))
                state[BIT] = 0
            else:
                state[LEFT] = head >> 1
                value = np.int64(0)
                for k in range((width + 7) // 8):
                    if at >= stop:
                        return done
                    value |= np.int64(data[at]) << (8 * k)
                    at += 1
                if value >> width:
                    return done
                state[VALUE] = value
            if state[LEFT] == 0:
                return done
            state[AT] = at
        n = min(m - done, state[LEFT])
        if state[REPEATED]:
            out[done : done + n] = state[VALUE]
        else:
            _unpack(data, state[AT], state[BIT], w, mask, out[done : done + n])
            state[BIT] += n * width
            if n == state[LEFT]:
                state[AT] += (state[BIT] + 7) // 8
        state[LEFT] -= n
        done += n
    return done


@kernel
def _unpack(data, at, bit, w, mask, out):
    """Numbers of `w` bits, from the `bit`-th bit after byte `at` on."""
    n = out.shape[0]
    byte = np.uint64(at)
    pos = np.uint64(bit)
    eight, seven, three = np.uint64(8), np.uint64(7), np.uint64(3)
    i = 0
    while i < n and (pos & seven != 0 or n - i < 8 or w > eight):
        x = _eight_bytes(data, byte + (pos >> three))
        out[i] = (x >> (pos & seven)) & mask
        pos += w
        i += 1
    p = byte + (pos >> three)
    k = np.uint64(i)
    for _ in range((n - i) // 8):  # eight numbers take w whole bytes
        x = _eight_bytes(data, p)
        for j in range(8):
            out[k + np.uint64(j)] = (x >> (w * np.uint64(j))) & mask
        p += w
        k += eight
    for j in range(n - np.int64(k)):
        x = _eight_bytes(data, p)
        out[k + np.uint64(j)] = (x >> (w * np.uint64(j))) & mask


@kernel
def _eight_bytes(data, p):
    """The eight bytes from `p` on as one number; the compiler makes one load of it."""
    return (
        np.uint64(data[p])
        | (np.uint64(data[p + np.uint64(1)]) << np.uint64(8))
        | (np.uint64(data[p + np.uint64(2)]) << np.uint64(16))
        | (np.uint64(data[p + np.uint64(3)]) << np.uint64(24))
        | (np.uint64(data[p + np.uint64(4)]) << np.uint64(32))
        | (np.uint64(data[p + np.uint64(5)]) << np.uint64(40))
        | (np.uint64(data[p + np.uint64(6)]) << np.uint64(48))
        | (np.uint64(data[p + np.uint64(7)]) << np.uint64(56))
    )


@kernel
def spread(codes, present, out):
    """Write the codes of present values to their rows, 0 to the others.

    codes   (k,) uint8 or int32  IN
    present (n,) uint8           IN   1 where there is a value, k times in all
    out     (n,) like codes      OUT
    """
    k = 0
    for i in range(present.shape[0]):
        if present[i]:
            out[i] = codes[k]
            k += 1
        else:
            out[i] = 0
