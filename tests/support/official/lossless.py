"""Two lossless codes of grey images, encoded number by number: JPEG (T.81, annex H) and JPEG-LS (T.87)."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


def jpeg_lossless(pixels: NDArray[Any], bits: int) -> bytes:
    """Grey image (H, W) as lossless JPEG with first-order prediction, codes of 5 bits each."""
    height, width = pixels.shape
    code = []
    above = 1 << (bits - 1)
    for row in pixels.tolist():
        left = above
        for value in row:
            difference = (value - left + 32768) % 65536 - 32768
            size = abs(difference).bit_length()
            code.append(f"{size:05b}")
            # A negative number is written less 1; -32768 has no bits of its own.
            if 0 < size < 16:
                code.append(f"{difference if difference > 0 else difference + (1 << size) - 1:0{size}b}")
            left = value
        above = row[0]
    text = "".join(code)
    text += "1" * (-len(text) % 8)
    scan = int(text, 2).to_bytes(len(text) // 8).replace(b"\xff", b"\xff\x00")
    return b"".join(
        [
            b"\xff\xd8",
            _segment(0xC3, bytes([bits]) + height.to_bytes(2) + width.to_bytes(2) + bytes([1, 1, 0x11, 0])),
            _segment(0xC4, bytes([0, *[0] * 4, 17, *[0] * 11, *range(17)])),
            _segment(0xDA, bytes([1, 1, 0, 1, 0, 0])),
            scan,
            b"\xff\xd9",
        ]
    )


def jpeg_ls(pixels: NDArray[Any], bits: int) -> bytes:
    """Grey image (H, W) of 8 to 16 bits as lossless JPEG-LS."""
    height, width = pixels.shape
    return b"".join(
        [
            b"\xff\xd8",
            _segment(0xF7, bytes([bits]) + height.to_bytes(2) + width.to_bytes(2) + bytes([1, 1, 0x11, 0])),
            _segment(0xDA, bytes([1, 1, 0, 0, 0, 0])),
            _stuffed("".join(_Scan(bits).encode(pixels.tolist()))),
            b"\xff\xd9",
        ]
    )


class _Scan:
    """State of the encoder; A, B, C, N, Nn and J are called so in T.87."""

    _J = (*[0] * 4, *[1] * 4, *[2] * 4, *[3] * 4, 4, 4, 5, 5, 6, 6, 7, 7, *range(8, 16))

    def __init__(self, bits: int) -> None:
        self.maximum = (1 << bits) - 1
        self.bits = bits
        self.limit = 2 * (max(2, bits) + max(8, bits))
        factor = (min(self.maximum, 4095) + 128) // 256
        self.thresholds = (factor + 2, factor * 4 + 3, factor * 17 + 4)
        # 365 contexts, and two for what ends a run.
        self.A = [max(2, (self.maximum + 33) // 64)] * 367
        self.B, self.C, self.N, self.Nn = [0] * 367, [0] * 367, [1] * 367, [0] * 367
        self.run = 0
        self.code: list[str] = []

    def encode(self, rows: list[list[int]]) -> list[str]:
        width = len(rows[0])
        above, corner = [0] * (width + 1), 0
        for row in rows:
            # One pixel more on each side: the first of the row above on the left, the last one again on the right.
            line, x = [above[0], *row], 0
            while x < width:
                a, b = line[x], above[x]
                c = above[x - 1] if x else corner
                d = above[min(x + 1, width - 1)]
                gradients = [self._quantise(difference) for difference in (d - b, b - c, c - a)]
                if any(gradients):
                    self._regular(row[x], a, b, c, gradients)
                    x += 1
                else:
                    x = self._run_mode(row, above, x, a)
            corner, above = above[0], row
        return self.code

    def _quantise(self, difference: int) -> int:
        size = sum(abs(difference) >= edge for edge in (1, *self.thresholds))
        return size if difference > 0 else -size

    def _regular(self, value: int, a: int, b: int, c: int, gradients: list[int]) -> None:
        q = 81 * gradients[0] + 9 * gradients[1] + gradients[2]
        sign = 1 if q > 0 else -1
        q *= sign
        predicted = min(a, b) if c >= max(a, b) else max(a, b) if c <= min(a, b) else a + b - c
        predicted = min(max(predicted + sign * self.C[q], 0), self.maximum)
        error = self._reduced(sign * (value - predicted))
        k = self._golomb(self.A[q], self.N[q])
        flipped = k == 0 and 2 * self.B[q] <= -self.N[q]
        mapped = 2 * abs(error) - (error < 0)
        if flipped:
            mapped = 2 * error + 1 if error >= 0 else -2 * (error + 1)
        self._write(mapped, k, self.limit)
        self.B[q] += error
        self.A[q] += abs(error)
        if self.N[q] == 64:
            self.A[q], self.B[q], self.N[q] = self.A[q] >> 1, self.B[q] >> 1, 32
        self.N[q] += 1
        if self.B[q] <= -self.N[q]:
            self.B[q] = max(self.B[q] + self.N[q], 1 - self.N[q])
            self.C[q] = max(self.C[q] - 1, -128)
        elif self.B[q] > 0:
            self.B[q] = min(self.B[q] - self.N[q], 0)
            self.C[q] = min(self.C[q] + 1, 127)

    def _run_mode(self, row: list[int], above: list[int], x: int, a: int) -> int:
        start = x
        while x < len(row) and row[x] == a:
            x += 1
        length = x - start
        while length >= 1 << self._J[self.run]:
            self.code.append("1")
            length -= 1 << self._J[self.run]
            self.run = min(self.run + 1, 31)
        if x == len(row):
            if length:
                self.code.append("1")
            return x
        width = self._J[self.run]
        self.code.append("0" + (f"{length:0{width}b}" if width else ""))
        self._end_of_run(row[x], a, above[x])
        self.run = max(self.run - 1, 0)
        return x + 1

    def _end_of_run(self, value: int, a: int, b: int) -> None:
        same = a == b
        q = 365 + same
        error = self._reduced((value - b) * (-1 if not same and a > b else 1))
        k = self._golomb(self.A[q] + (self.N[q] >> 1 if same else 0), self.N[q])
        flips = (k == 0 and error > 0 and 2 * self.Nn[q] < self.N[q]) or (
            error < 0 and (2 * self.Nn[q] >= self.N[q] or k != 0)
        )
        mapped = 2 * abs(error) - same - flips
        self._write(mapped, k, self.limit - self._J[self.run] - 1)
        self.Nn[q] += error < 0
        self.A[q] += (mapped + 1 - same) >> 1
        if self.N[q] == 64:
            self.A[q], self.N[q], self.Nn[q] = self.A[q] >> 1, 32, self.Nn[q] >> 1
        self.N[q] += 1

    def _reduced(self, error: int) -> int:
        error %= self.maximum + 1
        return error - self.maximum - 1 if error > self.maximum // 2 else error

    @staticmethod
    def _golomb(a: int, n: int) -> int:
        k = 0
        while n << k < a:
            k += 1
        return k

    def _write(self, mapped: int, k: int, limit: int) -> None:
        high = mapped >> k
        if high < limit - self.bits - 1:
            self.code.append("0" * high + "1" + (f"{mapped & ((1 << k) - 1):0{k}b}" if k else ""))
        else:
            self.code.append("0" * (limit - self.bits - 1) + "1" + f"{mapped - 1:0{self.bits}b}")


def _stuffed(text: str) -> bytes:
    """Bits as bytes; one that follows FF begins with an extra 0."""
    data, place = bytearray(), 0
    while place < len(text):
        width = 7 if data and data[-1] == 0xFF else 8
        data.append(int(text[place : place + width].ljust(width, "0"), 2))
        place += width
    return bytes(data) + (b"\x00" if data[-1] == 0xFF else b"")


def _segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2) + content
