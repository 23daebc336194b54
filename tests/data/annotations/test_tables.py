from __future__ import annotations

import gzip

import pytest

from xbench.data.annotations.tables import read_csv, read_image_list, read_json
from xbench.runtime.errors import UserError

COLUMNS = ("id", "x")
READERS = (read_json, read_image_list, lambda *given: list(read_csv(*given, COLUMNS)))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("tables") / "table.csv"


def rows(path, text, columns=COLUMNS, **options):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [row.values for row in read_csv("toy", path, columns, **options)]


def refusal(path, text, **options):
    with pytest.raises(UserError) as caught:
        rows(path, text, **options)
    message = str(caught.value)
    assert message.startswith("toy: ")
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "text",
    [
        "id,x\na,1\nb,2\n",
        "id,x\na,1\nb,2",
        "id,x\r\na,1\r\nb,2\r\n",
        "id,x\ra,1\rb,2\r",
        "\ufeffid,x\na,1\nb,2\n",
        " id , x \n a , 1 \n\tb,2 \n",
        '"id","x"\n"a","1"\nb,"2"\n',
        "id,x,\na,1,\nb,2,,,\n",
        "id,x\na,1,\nb,2\n",
        "id,x\n\na,1\n,\n   \nb,2\n\n",
    ],
)
def test_ways_to_write_a_table(path, text):
    assert rows(path, text) == [{"id": "a", "x": "1"}, {"id": "b", "x": "2"}]


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("id,x\na,1\nb,2\n", [True, True]),
        ("id,x\r\na,1\r\nb,2\r\n", [True, True]),
        ("id,x\ra,1\rb,2\r", [True, True]),
        ("id,x\na,1\nb,2", [True, False]),
        ("id,x\na,1\nb,2,,", [True, False]),
        ('id,x\na,1\nb,"2"', [True, False]),
        ("id,x\na,1\nb,2\n\n \n, ", [True, True]),
    ],
)
def test_a_last_row_without_a_line_end_is_told(path, text, ended):
    path.write_bytes(text.encode())
    assert [row.ended for row in read_csv("toy", path, COLUMNS)] == ended


def test_a_last_row_that_is_cut_off(path):
    assert len(rows(path, "id,x,,,\na,1,,,\nb,2,\n")) == 2
    assert "ends within its first line" in refusal(path, "id,x,mo")
    assert "line 3: the file is cut off: 3 values, 5 in the row before" in refusal(path, "id,x,,,\na,1,,,\nb,2,")


@pytest.mark.parametrize("content", [gzip.compress(b"id,x\na,1\n", mtime=0), b"PK\x03\x04 and so on"])
def test_packed_files(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    for read in READERS:
        with pytest.raises(UserError, match=r"it is packed \(gzip or zip\): unpack it"):
            read("toy", path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lacks id, x. Expected columns: id, x; found: none"),
        ("id\na\n", "lacks x. Expected columns: id, x; found: 'id'"),
        ("id;x\na;1\n", "lacks id, x. Expected columns: id, x; found: 'id;x'"),
        ("id,x\na\n", "line 2: 1 values for the 2 columns id, x"),
        ("id,x,x\na,1,2\n", "the column 'x' occurs twice"),
        ("id,x\na,1\nb,1,2\n", "line 3: 3 values for the 2 columns"),
        ('id,x\na,"1\nb,2\nc,3\n', "cannot be read"),
        (b"id,x\na,\xff\n", "cannot be read"),
        ("id,x\na,1\n".encode("utf-16"), "cannot be read"),
        (f"id,x\na,{'1' * 200_000}\n", "cannot be read"),
    ],
)
def test_malformed_tables(path, text, said):
    assert said in refusal(path, text)


def test_a_missing_file(tmp_path):
    for place in (tmp_path / "none.csv", tmp_path):
        for read in READERS:
            with pytest.raises(UserError, match="cannot be read"):
                read("toy", place)


def test_columns_by_position(path):
    header = ("id", "two words", "x", "y")
    text = "id,two words,frame [x,y],,\na,b,1,2\nc,d,3,4,5,6\n"
    assert rows(path, text, header, header=header) == [
        {"id": "a", "two words": "b", "x": "1", "y": "2"},
        {"id": "c", "two words": "d", "x": "3", "y": "4"},
    ]
    assert "lacks two words, x, y" in refusal(path, "id,other,frame [x,y],,\na,b,1,2\n", columns=header, header=header)
    assert "line 2: 3 values for the 4" in refusal(path, "id,two words,f\na,b,1\n", columns=header, header=header)


def accepts(call):
    try:
        return call()
    except UserError as error:
        assert "line 2" in str(error)
        assert "\n" not in str(error)
        return "refused"


NUMBERS = {"1": 1, "+1.50": 1.5, "-0": 0, "1e3": 1000, ".5": 0.5, " 7 ": 7}
NUMBERS |= dict.fromkeys(
    ("", "x", "nan", "inf", "-Infinity", "1_0", "\u0661", "0x10", "1,5", "1 2", "1e999"), "refused"
)
FLAGS = {"1": 1, "1.0": 1, "0": 0, "0.0": 0, "": None, "-1": None, "-1.0": None}
FLAGS |= dict.fromkeys(("2", "0.5", "true", "nan", "u"), "refused")


@pytest.mark.parametrize(
    ("kind", "text"), [*(("number", text) for text in NUMBERS), *(("flag", text) for text in FLAGS)]
)
def test_numbers_and_flags(path, kind, text):
    path.write_text(f'id,x\na,"{text}"\n')
    (row,) = read_csv("toy", path, COLUMNS)
    assert accepts(lambda: getattr(row, kind)("x")) == {"number": NUMBERS, "flag": FLAGS}[kind][text]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1,",
        b'[{"a": 1, "b": 2, "a": 1}]',
        b"\xff",
        b"{'a': 1}",
        b"[" * 100_000,
        b"1" * 5000,
        '{"a": 1}'.encode("utf-16"),
        b"\x00" * 9,
    ],
)
def test_malformed_json(path, text):
    path.write_bytes(text)
    with pytest.raises(UserError, match="cannot be read") as caught:
        read_json("toy", path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a.png\r\nb.png\r\n", ["a.png", "b.png"]),
        ("\ufeffa\nb", ["a", "b"]),
        ("Image Index,Finding Labels\na.png,Mass\nb.png,\n", ["a.png", "b.png"]),
        ("ImageId,EncodedPixels\n a, -1\n a, 1 2\n", ["a", "a"]),
        ('"filepath"\n"a"\n', ["a"]),
        ("\n\n  a  \n\n'b'\n", ["a", "b"]),
        ("id\nid\n", ["id"]),
        ("/data/x/a.png,1\nC:\\x\\b.png,0\n", ["/data/x/a.png", "C:\\x\\b.png"]),
    ],
)
def test_image_lists(path, text, entries):
    path.write_bytes(text.encode())
    assert read_image_list("toy", path) == entries


@pytest.mark.parametrize("text", [b"", b"\n\n", b"ImageId\n", b" , \n"])
def test_lists_of_nothing(path, text):
    path.write_bytes(text)
    with pytest.raises(UserError, match="is empty"):
        read_image_list("toy", path)
