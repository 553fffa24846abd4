"""An S3 API on loopback, in this process, that remembers the requests it answers. Nothing leaves the machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

BUCKET = "bucket"
_KEYS = {"key": "testing", "secret": "testing"}
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": None,
    "AWS_SECRET_ACCESS_KEY": None,
    "AWS_PROFILE": None,
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class S3Server:
    """A running server with one bucket.

    Attributes
    ----------
    endpoint
        Its address.
    requests
        What it was asked for: method and key, without the bucket.
    """

    endpoint: str
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def client_options(self) -> dict[str, Any]:
        return {"client_kwargs": {"endpoint_url": self.endpoint, "region_name": "us-east-1"}}

    @property
    def options(self) -> dict[str, Any]:
        """`storage_options`; without parallel parts s3fs asks for no sizes, so that each request is one of the caller's."""
        return {**_KEYS, **self.client_options, "max_concurrency": 1}

    def url(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def asked(self) -> list[tuple[str, str]]:
        """The requests since the last call."""
        found, self.requests[:] = sorted(self.requests), []
        return found

    def obstore(self, prefix: str) -> Any:
        """The same bucket through obstore."""
        from obstore.store import S3Store

        return S3Store(
            BUCKET,
            prefix=prefix,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id="testing",
            secret_access_key="testing",
            client_options={"allow_http": True},
            virtual_hosted_style_request=False,
        )


@contextmanager
def running() -> Iterator[S3Server]:
    """Start a server on a free port, and stop it."""
    import boto3
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        for name, value in _ENVIRONMENT.items():
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        moto.start()
        try:
            host, port = moto.get_host_and_port()
            server = S3Server(f"http://{host}:{port}")
            client = boto3.client(
                "s3",
                endpoint_url=server.endpoint,
                region_name="us-east-1",
                aws_access_key_id="testing",
                aws_secret_access_key="testing",
            )
            client.create_bucket(Bucket=BUCKET)
            client.close()
            _remember(moto, server)
            yield server
        finally:
            moto.stop()


def _remember(moto: Any, server: S3Server) -> None:
    answer = moto._server.app

    def remembering(environ: dict[str, Any], start: Any) -> Any:
        key = environ["PATH_INFO"].removeprefix(f"/{BUCKET}").lstrip("/")
        server.requests.append((environ["REQUEST_METHOD"], key or f"?{environ['QUERY_STRING']}"))
        return answer(environ, start)

    moto._server.app = remembering
