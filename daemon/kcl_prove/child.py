from __future__ import annotations

from collections.abc import Mapping

from kcl_client import Record
from kcl_local.demo.wordcount import WordCount, main
from kcl_prove.numbered import word_of


class Noting(WordCount):
    def count(self, record: Record) -> Mapping[str, int]:
        schema = record.schema
        return {word_of(record.data, "" if schema is None else schema.name): 1}


if __name__ == "__main__":
    main(Noting)
