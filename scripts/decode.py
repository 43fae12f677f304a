"""Decodes a message of docs/wire.md: `decode(frame)` returns its values as a numpy array."""
import struct, zlib
from numpy import arange, array, float32, float64, frombuffer, where, zeros

def bits(data):
    return [(byte >> i) & 1 for byte in data for i in range(8)]

def number(stream, at, width):
    return sum(stream[at + i] << i for i in range(width))

def codes(data, n, width):
    stream = bits(data)
    return [number(stream, i * width, width) for i in range(n)]

def indices(data, k, r):
    stream, at, index = bits(data), 0, -1
    for _ in range(k):
        zeros_ = 0
        while stream[at] == 0:
            zeros_, at = zeros_ + 1, at + 1
        index += 1 + (zeros_ << r) + number(stream, at + 1, r)
        at += 1 + r
        yield index

def elias(data, n, width):
    stream, at = bits(data), 0
    for _ in range(n):
        k = 1
        while stream[at] == 1:
            digits = k + 1
            k = int("".join(map(str, stream[at:at + digits])), 2)
            at += digits
        at, level = at + 1, k - 1
        yield level + (stream[at] << (width - 1) if level else 0)
        at += level > 0

def shares(levels, base):
    table = zeros(levels + 1, "<f4")
    share = float64(1)
    for level in range(levels, 0, -1):
        table[level] = level / float32(levels) if base is None else share
        share = share / float64(base or 1)
    return table

def floats(exponent, fraction):
    table = [(1 << fraction) + level % (1 << fraction) if level >> fraction else 2 * level for level in range(1 << exponent + fraction)]
    table = array([number * 2.0 ** (level >> fraction) for level, number in enumerate(table)], "<f4")
    return table / table[-1]

def quantized(body, n, kind):
    levels, body = body[0], body[1:]
    base = table = None
    if kind == 18:
        table = floats(levels >> 4, levels & 15)
        levels = len(table) - 1
    if kind in (11, 13):
        base, body = frombuffer(body[:4], "<f4")[0], body[4:]
    bucket, body = struct.unpack_from("<I", body)[0], body[4:]
    count, width = -(-n // bucket), 1 + levels.bit_length()
    scales, body = frombuffer(body[:4 * count], "<f4"), body[4 * count:]
    read = codes if kind in (6, 11, 18) else elias
    code = zeros(n, "u1")
    code[:] = list(read(body, n, width))
    table = shares(levels, base) if table is None else table
    value = table[code & (2 ** (width - 1) - 1)] * where(code >> (width - 1), float32(-1), float32(1))
    return value * scales[arange(n) // bucket]

def symbols(body, n):
    """Symbols of a coded block of kind 17, and the bytes after them."""
    first, count = body[0], body[1] + 1
    lengths = codes(body[2:2 + (count + 1) // 2], count, 4)
    table, code = {}, 0
    for length in range(1, 12):
        for symbol, own in enumerate(lengths, first):
            if own == length:
                table[length, code], code = symbol, code + 1
        code *= 2
    body, out = body[2 + (count + 1) // 2:], []
    sizes, body = struct.unpack_from("<4H", body), body[8:]
    for number_, size in enumerate(sizes):
        stream, at = bits(body[:size]), 0
        for _ in range(min(n, (number_ + 1) * -(-n // 4)) - min(n, number_ * -(-n // 4))):
            length, code = 0, 0
            while (length, code) not in table:
                length, code, at = length + 1, 2 * code + stream[at], at + 1
            out.append(table[length, code])
        body = body[size:]
    return frombuffer(bytes(out), "u1").astype("<u4"), body

def lossless(body, n):
    out = zeros(n, "<u4")
    for start in range(0, n, 16384):
        flags, body, part = body[0], body[1:], out[start:start + 16384]
        size = 2 if flags & 2 else 4
        if not flags & 1:
            part[:] = frombuffer(body[:size * len(part)], f"<u{size}")
            part <<= 32 - 8 * size
            body = body[size * len(part):]
            continue
        exponents, body = symbols(body, len(part))
        at = where(exponents != 255)[0] if flags & 4 else arange(len(part))
        high = frombuffer(body[:len(at)], "u1").astype("<u4")
        part[at] = (high >> 7 << 31) | (exponents[at] << 23) | ((high & 127) << 16)
        body = body[len(at):]
        if size == 4:
            part[at] |= frombuffer(body[:2 * len(at)], "<u2")
            body = body[2 * len(at):]
    return out.view("<f4")

def payload(body, kind, n):
    if kind == 0:
        return frombuffer(body, "<f4")
    if kind == 1:
        return frombuffer(body, "<f2").astype("<f4")
    if kind == 15:
        count = -(-n // 256)
        unit = float32(2.0) ** frombuffer(body[:count], "i1").astype("<f4")
        return frombuffer(body[count:], "<f2").astype("<f4") * unit.repeat(256)[:n]
    if kind == 2:
        return (frombuffer(body, "<u2").astype("<u4") << 16).view("<f4")
    if kind in (6, 11, 12, 13, 18):
        return quantized(body, n, kind)
    if kind == 8:
        sign = frombuffer(bytes(codes(body[n:], n, 1)), "u1").astype("<u4")
        return ((frombuffer(body[:n], "u1").astype("<u4") << 23) | (sign << 31)).view("<f4")
    if kind in (7, 9, 10):
        (bucket,) = struct.unpack_from("<I", body)
        count, pair = -(-n // bucket), 1 if kind == 7 else 2
        table, rest = frombuffer(body[4:4 + 4 * pair * count], "<f4").reshape(-1, pair), body[4 + 4 * pair * count:]
        table = table[arange(n) // bucket]
        if kind == 10:
            share = frombuffer(rest, "u1").astype("<f4") / float32(255)
            return (table[:, 0] * (1 - share) + table[:, 1] * share).clip(table[:, 0], table[:, 1])
        bit = frombuffer(bytes(codes(rest, n, 1)), "u1")
        return where(bit, -table[:, 0], table[:, 0]) if kind == 7 else where(bit, table[:, 1], table[:, 0])
    if kind == 16:
        bits, bucket = struct.unpack_from("<BI", body)
        size = 4 * (-(-n // bucket) << bits)
        table = frombuffer(body[5:5 + size], "<f4").reshape(-1, 1 << bits)
        return table[arange(n) // bucket, frombuffer(bytes(codes(body[5 + size:], n, bits)), "u1")]
    if kind == 17:
        return lossless(body, n)
    out = zeros(n, "<f4")
    k, r = struct.unpack_from("<IB", body)
    if kind == 14:
        (size,) = struct.unpack_from("<I", body, 5)
        out[list(indices(body[9:9 + size], k, r))] = payload(body[10 + size:], body[9 + size], k)
        return out
    size = {3: 4 * k, 4: 1 + 2 * k, 5: 8 * -(-k // 256) + k}[kind]
    stream, values = body[5:len(body) - size], body[len(body) - size:]
    at = list(indices(stream, k, r))
    if kind == 3:
        out[at] = frombuffer(values, "<f4")
    elif kind == 4:
        unit = float32(2.0) ** int.from_bytes(values[:1], "little", signed=True)
        out[at] = frombuffer(values[1:], "<f2").astype("<f4") * float32(unit)
    else:
        ranges = frombuffer(values[:len(values) - k], "<f4").reshape(-1, 2)
        code = frombuffer(values[len(values) - k:], "u1")
        low, high = ranges.repeat(256, axis=0)[:k].T
        size = (low + (code & 127).astype("<f4") / float32(127) * (high - low)).clip(max=high)
        out[at] = size * (1 - 2 * (code >> 7).astype("<f4"))
    return out

def decode(frame):
    body, (checksum,) = frame[:-4], struct.unpack("<I", frame[-4:])
    magic, version, kind, n = struct.unpack_from("<2sBBI", body)
    assert (magic, version, checksum) == (b"BQ", 1, zlib.crc32(body))
    return payload(body[8:], kind, n)
