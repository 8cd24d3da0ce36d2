"""The descriptions of AWS services, read once in a process: reading them takes ten times as long as the rest of a client."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch

from botocore.loaders import Loader


@contextmanager
def read_once() -> Generator[None]:
    """Every session of botocore gets what the first one has read; moto reads more, and reads it itself."""
    loader = Loader()
    read_itself, load_itself = Loader.load_data_with_path, Loader.load_service_model
    read, model = cache(loader.load_data_with_path), cache(loader.load_service_model)

    def load(self: Loader, name: str) -> object:
        return read(name) if type(self) is Loader else read_itself(self, name)

    def load_model(self: Loader, service_name: str, type_name: str, api_version: str | None = None) -> object:
        if type(self) is not Loader:
            return load_itself(self, service_name, type_name, api_version)
        return model(service_name, type_name, api_version)

    with (
        patch.object(Loader, "load_data_with_path", load),
        patch.object(Loader, "load_service_model", load_model),
    ):
        yield
