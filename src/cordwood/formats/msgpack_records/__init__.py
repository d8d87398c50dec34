"""A stream of msgpack records, read only: a key path and Flax's bytes of a value each."""

from __future__ import annotations

from cordwood.formats.format_protocol import Match, Opened, OpenOptions, Path, Place

_PAIR = b"\x92"  # msgpack's first byte of a record of two


class MsgpackRecordsFormat:
    """Streams of msgpack records, read only."""

    name = "msgpack-records"
    description = "a stream of msgpack records, as EasyLM writes it"
    suffixes: tuple[str, ...] = (".msgpack",)
    index_name = ""

    def matches(self, place: Place) -> Match:
        """Return MAYBE for a damaged stream: it begins with a record and is no file of Flax's."""
        file = place.file
        if file is None or not file.size_bytes or file.read(0, 1) != _PAIR:
            return Match.NO
        from cordwood.formats.flax_msgpack.read_index import read_index as read_flax_index
        from cordwood.formats.msgpack_records.read_index import begins_record, read_index
        from cordwood.formats.single_file import can_read

        if can_read(file, read_index):
            return Match.YES
        if begins_record(file.map(), file.name) and not can_read(file, read_flax_index):
            return Match.MAYBE
        return Match.NO

    def open(self, path: Path, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.msgpack_records.read_index import read_index
        from cordwood.formats.single_file import open_file

        del item, options
        return open_file(path, read_index, name=self.name)


MSGPACK_RECORDS = MsgpackRecordsFormat()
